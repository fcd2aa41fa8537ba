#pragma once
// Stands in for the toolkit's header of this name when kernels are emulated: the language, the
// built-ins of kernels, and the part of the runtime API that the library uses.
#include "../device_math.h"
#include "../intrinsics.h"
#include "../language.h"
#include "cuda_runtime_api.h"
