#pragma once
// What a back end provides for gated linear attention. Inputs are (b, h, tokens, features) with any
// strides; kv and d_kv are (b, h, d', e), contiguous, in the compute type, where d' are the
// features of an encoded row of q or k.
#include "quipu/core/dispatch.h"
#include "quipu/ops/lrpe_kernels.h"

namespace quipu {

/// What makes q~, k~, v~, g~ of q, k, v, g.
struct FlaoEncodings {
  RowEncoding q, k, v, g;
};

/// Features of a row, encoded or not, so that a thread's tiles stay small.
constexpr std::int64_t most_flao_features(DType dtype) {
  return dtype == DType::f64 ? 512 : 1024;
}

/// What flao_backward reads. Views that the wanted gradients do not need may be undefined.
struct FlaoSaved {
  View q, k, v, g;
  View kv;  // workspace to be filled if `fill_kv`
  bool fill_kv = false;
  View qkv;  // computed again if it is undefined
};
struct FlaoGrads {
  Grad q, k, v, g;
};

/// kv = k~^T v~, qkv = q~ kv unless it is undefined, o = g~ * (q~ kv).
inline constinit Kernel<void(View q, View k, View v, View g, View kv, View qkv, View o,
                             const FlaoEncodings&)>
    flao_forward{"flao_forward"};
/// Gradients (=|+=) those of the inputs that are wanted. d_kv is workspace, undefined if neither k
/// nor v want one.
inline constinit Kernel<void(View d_o, const FlaoSaved&, View d_kv, const FlaoGrads&,
                             const FlaoEncodings&)>
    flao_backward_kernel{"flao_backward"};

}  // namespace quipu
