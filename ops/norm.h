#pragma once
// Normalisation of rows or groups, fused: x and one or two statistics a row are all that backward
// needs. Everything is computed in f32 (f64 for f64) and rounded once.
//   rms_norm    Zhang and Sennrich 2019, arXiv:1910.07467
//   layer_norm  Ba et al. 2016, arXiv:1607.06450
//   group_norm  Wu and He 2018, arXiv:1803.08494
//
// weight and bias have the type of x, one number a feature (a channel for group_norm); leave them
// out as Tensor(). Kept: x and, in the compute type, a factor (and a mean) for every row, and the
// weight where x wants a gradient.
#include "quipu/core/tensor.h"

namespace quipu {

/// x (..., d) -> x / sqrt(mean of x^2 + eps) * weight, row by row.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-6);

/// x (..., d) -> (x - mean) / sqrt(variance + eps) * weight + bias, row by row; the variance is
/// the mean square distance.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

/// x (b, c, ...) -> the same with the channels cut into `groups`, each normalised as one row.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

namespace detail {

// The same from smaller operators: the oracle of the tests and the baseline of the benchmarks.
Tensor rms_norm_composed(const Tensor& x, const Tensor& weight = {}, double eps = 1e-6);
Tensor layer_norm_composed(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                           double eps = 1e-5);
Tensor group_norm_composed(const Tensor& x, std::int64_t groups, const Tensor& weight = {},
                           const Tensor& bias = {}, double eps = 1e-5);

// Without any tape: each gradient that is wanted (=|+=). The statistics are computed again.
void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                       const Grad& d_weight, double eps = 1e-6);
void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                         const Grad& d_weight, const Grad& d_bias, double eps = 1e-5);
void group_norm_backward(const Tensor& x, std::int64_t groups, const Tensor& weight,
                         const Tensor& d_o, const Grad& d_x, const Grad& d_weight,
                         const Grad& d_bias, double eps = 1e-5);

}  // namespace detail
}  // namespace quipu
