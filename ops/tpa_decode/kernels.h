#pragma once
// What a back end provides for attention over factored keys and values.
// Internal to ops/ and the back ends.
#include "quipu/core/dispatch/query.h"
#include "quipu/ops/reduce/log_sum_kernels.h"

namespace quipu::detail {

/// The factors, with any strides. In backward, av or bv is undefined where it is not needed.
struct TpaInputs {
  View aq, bq;             // (b, h, r), (b, r, d)
  View ak, bk;             // (b, m, key rank, h), (b, m, key rank, d)
  View av, bv;             // (b, m, value rank, h), (b, m, value rank, e)
  View lengths;            // (b,) i64, or undefined
  double score_scale = 1;  // scale scale_q scale_k
  double value_scale = 1;
  bool split = true;  // entries may be cut into blocks

  const View* first_view() const { return &aq; }
  template <class F>
  void each_view(F f) {
    f("aq", aq, Role::value), f("bq", bq, Role::value), f("ak", ak, Role::value);
    f("bk", bk, Role::value), f("av", av, Role::value), f("bv", bv, Role::value);
    f("lengths", lengths, Role::value);
  }
};

/// Where a backward kernel leaves gradients; shapes as in TpaInputs.
struct TpaInputGrads {
  Grad aq, bq, ak, bk, av, bv;

  /// Whether a gradient flows through the scores.
  bool of_scores() const { return aq.wanted() || bq.wanted() || ak.wanted() || bk.wanted(); }
  template <class F>
  void each_view(F f) {
    f("d_aq", aq.view, Role::value), f("d_bq", bq.view, Role::value);
    f("d_ak", ak.view, Role::value), f("d_bk", bk.view, Role::value);
    f("d_av", av.view, Role::value), f("d_bv", bv.view, Role::value);
  }
};

/// Heads, and r, that a kernel can do with.
inline constexpr std::int64_t most_tpa_width = 1024;

/// The sizes of a call: h heads of r query factors, m entries, keys of d and values of e features.
struct TpaSizes {
  std::int64_t b = 0, m = 0, h = 0, r = 0, d = 0, e = 0;
};
/// Workspace of forward, in the compute type, (b, blocks, h, e + 2): of each block that the entries
/// are cut into its output, log-sum-exp and its rest, in an order of the device's own; no
/// dimensions where there is one block.
inline constinit Query<Shape(const TpaSizes&, bool split)> tpa_forward_workspace{
    "tpa_forward_workspace"};
/// Workspace of backward, in the compute type, if aq or bq wants a gradient: each block's part of
/// both, (b, blocks, h r + r d).
inline constinit Query<Shape(const TpaSizes&, bool split)> tpa_backward_workspace{
    "tpa_backward_workspace"};

/// o (b, h, e) in the type of the factors or in the compute type, and the log-sum-exps of the
/// scores, (b, h), if they are defined. A length that is not in [0, m] is an error: thrown, or at
/// the next synchronisation of the device.
inline constinit Kernel<void(const TpaInputs&, View o, const LogSums&, View workspace)>
    tpa_decode_forward_kernel{"tpa_decode_forward", "inputs o lse workspace*"};
/// Gradients (=|+=) from d_o (b, h, e). o is in the compute type, and undefined where no gradient
/// flows through the scores.
inline constinit Kernel<void(const TpaInputs&, View o, const LogSums&, View d_o,
                             const TpaInputGrads&, View workspace)>
    tpa_decode_backward_kernel{"tpa_decode_backward", "inputs o lse d_o grads workspace*"};

}  // namespace quipu::detail
