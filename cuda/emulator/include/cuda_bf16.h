#pragma once
// Stands in for the toolkit's header of this name.
#include "../reduced.h"

QUIPU_REDUCED_TYPE(__nv_bfloat16, bfloat16, bf16_bits)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
