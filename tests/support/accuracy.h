#pragma once
// How far a result in bf16 or f16 may lie from that in f64 for the same inputs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "quipu/core/tensor.h"
#include "quipu/ops/act.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu::testing {

inline double smallest_normal(DType dtype) {
  return dtype == f64 ? 0x1p-1022 : dtype == f16 ? 0x1p-14 : 0x1p-126;
}
/// The distance between the numbers around 0, and so what underflow may lose.
inline double smallest_subnormal(DType dtype) {
  return epsilon_of(dtype) * smallest_normal(dtype);
}

/// The distance between neighbouring numbers of a reduced type at x.
inline double unit_in_last_place(double x, DType dtype) {
  constexpr std::uint64_t exponent_bits = 0x7ff0'0000'0000'0000;
  const double power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(x) & exponent_bits);
  return epsilon_of(dtype) * std::max(power, smallest_normal(dtype));
}

/// What an operator is held to in reduced types. Elementwise operators and rotations (`sums` is 0):
/// 2 units in the last place, and f32's epsilon of the row's largest entry, where the two terms of
/// a rotation cancel. With a softmax or sums: `sums` times epsilon times the largest entry of the
/// row. A row is one of the last dimension; for act, it is what a softmax runs over.
struct Accuracy {
  double sums = 0;
  int row_dim = -1;
};

// Each result is rounded once, which is half an epsilon; the rest is room for what is rounded
// before it. act keeps the rounded softmax, so that each term of its gradients carries half an
// epsilon more; flao keeps rounded products where it is told to keep qkv. tpa_decode keeps nothing
// that is rounded.
inline constexpr Accuracy of_units{}, of_softmax{4}, of_flao{4}, of_tpa{2};

inline Accuracy accuracy_of_act(Act kind, std::optional<int> dim) {
  return kind == Act::softmax ? Accuracy{of_softmax.sums, dim.value_or(-1)} : of_units;
}

/// What each entry of a result may be off by; `wanted` is f64. `sizes` are those of the terms that
/// it is summed from, where they may be larger than what is left of them.
inline Tensor bounds_of_reduced(const Tensor& wanted, DType dtype, const Accuracy& accuracy,
                                const Tensor& sizes = {}) {
  if (wanted.numel() == 0) return wanted;
  const Tensor largest = max(sizes.defined() ? sizes : abs(wanted), accuracy.row_dim, true);
  if (accuracy.sums > 0) {
    return (largest * (accuracy.sums * epsilon_of(dtype))).expand(wanted.shape());
  }
  const Tensor units = wanted.to(cpu).clone();
  double* unit = units.view().as<double>();
  for (std::int64_t i = 0; i < units.numel(); ++i) unit[i] = unit_in_last_place(unit[i], dtype);
  return units.to(wanted.device()) * 2 + largest * epsilon_of(f32);
}

/// Says where a result is first off by more than its bound, or is no number.
inline std::optional<std::string> first_beyond(const Tensor& got, const Tensor& wanted,
                                               const Tensor& bounds) {
  if (got.shape() != wanted.shape()) {
    return "has shape " + to_string(got.shape()) + ", not " + to_string(wanted.shape());
  }
  const Tensor compared[] = {got.to(f64).to(cpu).contiguous(), wanted.to(cpu).contiguous(),
                             bounds.to(cpu).contiguous()};
  const auto* a = compared[0].view().as<double>();
  const auto* b = compared[1].view().as<double>();
  const auto* bound = compared[2].view().as<double>();
  for (std::int64_t i = 0; i < wanted.numel(); ++i) {
    if (std::abs(a[i] - b[i]) <= bound[i] || a[i] == b[i]) continue;  // or the same infinity
    std::ostringstream text;
    text.precision(17);
    text << "entry " << i << " is " << a[i] << ", wanted " << b[i] << ", off by "
         << std::abs(a[i] - b[i]) << " of " << bound[i];
    return text.str();
  }
  return {};
}

}  // namespace quipu::testing
