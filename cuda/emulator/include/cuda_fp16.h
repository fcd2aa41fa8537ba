#pragma once
// Stands in for the toolkit's header of this name.
#include "../reduced.h"

QUIPU_REDUCED_TYPE(__half, half, half_bits)
using half = __half;
using half2 = __half2;
