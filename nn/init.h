#pragma once
// How parameters begin: where they are made, and the usual distributions.
#include "quipu/core/tensor.h"

namespace quipu::nn {

/// Where and how the parameters of a module are made.
struct Place {
  Device device = {};              // the CPU
  DType dtype = f32;               // a floating type
  Generator* generator = nullptr;  // the default one
};

/// Memory for a parameter, not filled yet.
Tensor make_parameter(const Shape& shape, const Place& place);
/// The tensor counts as part of the model in the ledger, but is not learned.
Tensor make_buffer(const Tensor& x);

/// They fill a tensor in place and give it back; bf16 and f16 get the numbers of f32, rounded. A
/// weight is (out, in, ...): `in` times the rest is its fan in, `out` times the rest its fan out.
namespace init {

// All entries the same.
const Tensor& constant(const Tensor& x, double value);
const Tensor& zeros(const Tensor& x);
const Tensor& ones(const Tensor& x);
// Independent numbers, evenly from [low, high) or normal. Bounds that are not finite or the wrong
// way round, and negative deviations, are errors.
const Tensor& uniform(const Tensor& x, double low, double high, Generator* generator = nullptr);
const Tensor& normal(const Tensor& x, double mean, double deviation,
                     Generator* generator = nullptr);
// Glorot and Bengio 2010. Variance gain^2 * 2 / (fan in + fan out): keeps the size of values and
// of gradients alike.
const Tensor& xavier_uniform(const Tensor& x, double gain = 1, Generator* generator = nullptr);
const Tensor& xavier_normal(const Tensor& x, double gain = 1, Generator* generator = nullptr);
// He et al. 2015, arXiv:1502.01852. Variance gain^2 / fan in: keeps the size of values. The gain
// of relu is sqrt 2.
const Tensor& kaiming_uniform(const Tensor& x, double gain = 1, Generator* generator = nullptr);
const Tensor& kaiming_normal(const Tensor& x, double gain = 1, Generator* generator = nullptr);

}  // namespace init
}  // namespace quipu::nn
