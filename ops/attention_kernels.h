#pragma once
// What a back end provides for softmax attention. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/query.h"
#include "quipu/ops/reduce/log_sum_kernels.h"

namespace quipu::detail {

/// Any strides. In backward v is undefined where it is not needed.
struct AttentionInputs {
  View q, k, v;  // (b, h, n, d), (b, hk, m, d), (b, hk, m, e)
  bool causal = false;
  double scale = 1;

  const View* first_view() const { return &q; }
  template <class F>
  void each_view(F f) {
    f("q", q, Role::value), f("k", k, Role::value), f("v", v, Role::value);
  }
};

/// Where a backward kernel leaves gradients.
struct AttentionInputGrads {
  Grad q, k, v;

  template <class F>
  void each_view(F f) {
    f("d_q", q.view, Role::value), f("d_k", k.view, Role::value), f("d_v", v.view, Role::value);
  }
};

/// d and e that a kernel can do with.
inline constexpr std::int64_t most_attention_features = 512;

/// The shape (b hk, parts, n h / hk, e + 2), in the compute type, of what parts of the keys give
/// where a back end splits them in forward; no dimensions where it does not.
inline constinit Query<Shape(const AttentionInputs&)> attention_forward_workspace{
    "attention_forward_workspace"};
/// How many elements of the compute type backward needs where q or k wants a gradient: b h n, and
/// what a back end wants beside them.
inline constinit Query<std::int64_t(const AttentionInputs&, const Grad& d_q)>
    attention_backward_workspace{"attention_backward_workspace"};
/// The shape (parts, b, h, n, d), in the compute type, of the parts in which a back end sums the
/// gradient of q and which are added afterwards; no dimensions where it has one sum, which it makes
/// in its place.
inline constinit Query<Shape(const AttentionInputs&, const Grad& d_q)> attention_partial_sums{
    "attention_partial_sums"};

/// o (b, h, n, e), and the log-sum-exps of the scores, (b, h, n) and contiguous, if they are
/// defined. `partial` is workspace where attention_forward_workspace asks for it.
inline constinit Kernel<void(const AttentionInputs&, View o, const LogSums&, View partial)>
    attention_forward_kernel{"attention_forward", "inputs o lse partial*"};
/// Gradients (=|+=) from d_o (b, h, n, e), but those of q into `partial` if that is defined. The
/// log-sum-exps may have no rest. o, v
/// and `mean`, workspace, are undefined where neither q nor k wants a gradient.
inline constinit Kernel<void(const AttentionInputs&, View o, const LogSums&, View d_o,
                             const AttentionInputGrads&, View mean, View partial)>
    attention_backward_kernel{"attention_backward", "inputs o lse d_o grads mean* partial+"};

}  // namespace quipu::detail
