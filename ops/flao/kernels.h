#pragma once
// What a back end provides for gated linear attention. Inputs are (b, h, tokens, features) with any
// strides; kv and d_kv are (b, h, d', e), contiguous, in the compute type, where d' are the
// features of an encoded row of q or k. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/query.h"
#include "quipu/ops/lrpe/kernels.h"

namespace quipu::detail {

/// What makes q~, k~, v~, g~ of q, k, v, g.
struct FlaoTransforms {
  RowTransform q, k, v, g;

  template <class F>
  void each_view(F f) {
    for (RowTransform* r : {&q, &k, &v, &g}) r->each_view(f);
  }
};

/// Features of a row, encoded or not, so that a thread's tiles stay small.
constexpr std::int64_t most_flao_features(DType dtype) {
  return dtype == DType::f64 ? 512 : 1024;
}

/// The sizes of a call: b * h units with n queries and m keys each; q and k have d features, width
/// when they are encoded, v and g have e.
struct FlaoSizes {
  std::int64_t units = 0, n = 0, m = 0, d = 0, width = 0, e = 0;
};

/// Elements of the compute type that a back end takes for its own use in forward.
inline constinit Query<std::int64_t(const FlaoSizes&, const FlaoTransforms&, DType)>
    flao_forward_workspace{"flao_forward_workspace"};
/// The same in backward, where it sums over queries (d_kv is wanted), over keys (kv is to be found
/// again), or both.
inline constinit Query<std::int64_t(const FlaoSizes&, const FlaoTransforms&, bool over_queries,
                                    bool over_keys)>
    flao_backward_workspace{"flao_backward_workspace"};

/// Whether backward of a call with inputs of this type reads qkv if it is given, and is the quicker
/// for it. Where it does not, it is not kept.
inline constinit Query<bool(const FlaoSizes&, const FlaoTransforms&, DType)>
    flao_backward_reads_qkv{"flao_backward_reads_qkv"};

/// What flao_backward reads. Views that the wanted gradients do not need may be undefined.
struct FlaoSaved {
  View q, k, v, g;
  View kv;  // workspace to be filled if `fill_kv`
  bool fill_kv = false;
  View qkv;  // computed again if it is undefined
  FlaoSizes sizes;

  template <class F>
  void each_view(F f) {
    f("q", q, Role::value), f("k", k, Role::value), f("v", v, Role::value), f("g", g, Role::value);
    f("kv", kv, fill_kv ? Role::workspace : Role::value), f("qkv", qkv, Role::value);
  }
};
struct FlaoGrads {
  Grad q, k, v, g;

  template <class F>
  void each_view(F f) {
    f("d_q", q.view, Role::value), f("d_k", k.view, Role::value);
    f("d_v", v.view, Role::value), f("d_g", g.view, Role::value);
  }
};

/// kv = k~^T v~, qkv = q~ kv unless it is undefined, o = g~ * (q~ kv). `space` is
/// flao_forward_workspace, not defined where that is 0; o is dense.
inline constinit Kernel<void(View q, View k, View v, View g, View kv, View qkv, View o, View space,
                             const FlaoTransforms&, const FlaoSizes&)>
    flao_forward_kernel{"flao_forward", "q k v g kv qkv o space* transforms sizes"};
/// Gradients (=|+=) those of the inputs that are wanted. d_kv is workspace, undefined if neither k
/// nor v want one; `space` is flao_backward_workspace.
inline constinit Kernel<void(View d_o, const FlaoSaved&, View d_kv, const FlaoGrads&, View space,
                             const FlaoTransforms&)>
    flao_backward_kernel{"flao_backward", "d_o saved d_kv* grads space* transforms"};

}  // namespace quipu::detail
