#pragma once
// Everything a program needs: #include <quipu/quipu.h>
#include "quipu/autograd/custom.h"
#include "quipu/autograd/gradcheck.h"
#include "quipu/autograd/knot.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory.h"
#include "quipu/core/parallel.h"
#include "quipu/core/random.h"
#include "quipu/core/tensor.h"
