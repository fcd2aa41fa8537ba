#pragma once
// What a back end provides for position encodings, in 1 to m dimensions, alone and inside flao.
// Internal to ops/ and the back ends.
#include <algorithm>

#include "quipu/core/dispatch/query.h"
#include "quipu/ops/act.h"

namespace quipu::detail {

enum class LrpeKind : std::uint8_t { none, rotate, cosine };

/// How a row (head h, token t) of d features is encoded. The sequence may have one dimension (grid
/// empty: position offset + t) or several (sizes of the grid; the first `lead` tokens are at angle
/// 0).
struct RowTransform {
  LrpeKind kind = LrpeKind::none;
  Act act = Act::none;
  bool over_sequence = false;  // softmax over the tokens instead of the features
  View theta;                  // (h or 1, e); e = 1 is repeated, missing columns are angle 0
  std::int64_t offset = 0;
  Dims grid;
  std::int64_t lead = 0;

  bool softmax_over_sequence() const { return act == Act::softmax && over_sequence; }
  template <class F>
  void each_view(F f) {
    f("theta", theta, Role::value);
  }
};

/// theta as kernels get it for rows of d features. On a grid it may have more columns: of those,
/// the first grid axis takes as many as there are features.
inline View columns_for(View theta, std::int64_t d) {
  if (theta.defined) theta.shape[1] = std::min(theta.size(1), std::max<std::int64_t>(d, 1));
  return theta;
}

/// Features that a row may have, so that a thread's tiles stay small.
constexpr std::int64_t most_features(DType dtype) {
  return dtype == DType::f64 ? 4096 : 8192;
}
/// Angles of a row with d features.
constexpr std::int64_t angles_of(LrpeKind kind, std::int64_t d) {
  return kind == LrpeKind::none ? 0 : kind == LrpeKind::rotate ? d / 2 : d;
}
/// Features of an encoded row: cosine makes two of each, a cosine and a sine half.
template <class Size>
constexpr Size encoded_features(LrpeKind kind, Size d) {
  return kind == LrpeKind::cosine ? 2 * d : d;
}
/// Elements of the compute type that a back end takes for its own use in kernels on x of this shape
/// (b, h, t, d).
inline constinit Query<std::int64_t(const RowTransform&, const Shape&, bool backward)>
    lrpe_workspace{"lrpe_workspace"};

/// x (b, h, t, d) -> o (b, h, t, d or 2d), any strides. `angles` (h, t, angles of a row),
/// contiguous in the compute type, is filled if it is defined and x has elements. `space` is
/// lrpe_workspace, if any.
inline constinit Kernel<void(View x, View o, View angles, const RowTransform&, View space)>
    lrpe_forward_kernel{"lrpe_forward", "x o angles transform space*"};
/// d_x (=|+=) gradient. x is undefined where the activation does not need it; `angles` is read
/// instead of theta if it is defined.
inline constinit Kernel<void(View x, View d_o, Grad d_x, View angles, const RowTransform&,
                             View space)>
    lrpe_backward_kernel{"lrpe_backward", "x d_o d_x angles transform space*"};

/// Numbers in f64 that a back end takes for partial sums of the gradient of theta, for x of this
/// shape (b, h, t, d).
inline constinit Query<std::int64_t(LrpeKind, const Shape&)> lrpe_theta_workspace{
    "lrpe_theta_workspace"};
/// d_theta (h or 1, e) (=|+=) gradient, 0 for columns that no feature has. d_o is of the type of x
/// or of its compute type; there is no softmax; `angles` is read instead of theta if it is defined.
/// `sums` is lrpe_theta_workspace.
inline constinit Kernel<void(View x, View d_o, Grad d_theta, View angles, const RowTransform&,
                             View sums)>
    lrpe_theta_kernel{"lrpe_theta", "x d_o d_theta angles transform sums*"};

}  // namespace quipu::detail
