#pragma once
// One query and the scores of the keys that it attends to: softmax, and its gradient.
// Internal to cpu/reference/.
#include <limits>

#include "quipu/cpu/reference/values.h"
#include "quipu/ops/reduce/log_sum_kernels.h"

namespace quipu::detail::reference {

using Vector = Eigen::VectorXd;
using Row = Eigen::RowVectorXd;
using MatrixRef = Eigen::Ref<const Matrix>;
inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// o = softmax(scores) v; largest + log_sum is the log-sum-exp of the scores.
struct Attended {
  Row o;
  double largest, log_sum;
};

/// scores (m), v (m, e). Where nothing attends, o is 0.
inline Attended attend(const Vector& scores, const MatrixRef& v) {
  if (scores.size() == 0) return {Row::Zero(v.cols()), minus_infinity, 0};
  double largest = scores.maxCoeff<Eigen::PropagateNaN>();
  if (largest == minus_infinity) largest = 0;  // -infinity less itself would not be a number
  const Vector weights = exp_of(scores.array() - largest);
  return {weights.transpose() * v / weights.sum(), largest, std::log(weights.sum())};
}

/// The gradient of the scores, P (P's gradient - mean): P are the weights, d_o v^T is their
/// gradient, and its mean by the weights is o d_o.
inline Vector attend_back(const Vector& weights, const MatrixRef& v, const Row& d_o, double mean) {
  return weights.array() * ((v * d_o.transpose()).array() - mean);
}

/// Leaves log-sum-exps as rounded, and what the rounding leaves off.
inline void store(const LogSums& sums, const Array& largest, const Array& log_sum) {
  if (!sums.lse.defined) return;
  store(sums.lse, Array(largest + log_sum));
  const Array lse = read(sums.lse).flat;
  store(sums.rest, Array(lse.isFinite().select((largest - lse) + log_sum, 0)));
}

/// Log-sum-exps that were stored; without a rest it is 0.
struct KeptLogSums {
  explicit KeptLogSums(const LogSums& sums)
      : lse(read(sums.lse).flat),
        rest(sums.rest.defined ? read(sums.rest).flat : Array::Zero(lse.size())) {}

  /// The weights of scores in softmax i.
  Vector weights(const Vector& scores, std::int64_t i) const {
    return exp_of((scores.array() - lse[i]) - rest[i]);
  }
  Array lse, rest;
};

}  // namespace quipu::detail::reference
