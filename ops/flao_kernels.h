#pragma once
// What a back end provides for gated linear attention. Inputs are (b, h, tokens, features) with any
// strides; kv and d_kv are (b, h, d', e), contiguous, in the compute type, where d' are the
// features of an encoded row of q or k.
#include <algorithm>

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

/// The sizes of a call: b * h units with n queries and m keys each; q and k have d features, width
/// when they are encoded, v and g have e.
struct FlaoSizes {
  std::int64_t units = 0, n = 0, m = 0, d = 0, width = 0, e = 0;
};

/// A device cuts a sequence into parts, works on all of them at once, and adds their sums in order.
/// By sizes alone, so that the bits of a result do not depend on the device.
constexpr std::int64_t flao_parts(std::int64_t tokens, std::int64_t units) {
  constexpr std::int64_t shortest = 512;  // tokens of a part
  constexpr std::int64_t enough = 432;  // parts in all: two rounds of two blocks on 108 processors
  const std::int64_t most = (tokens + shortest - 1) / shortest;
  const std::int64_t wanted = (enough + units - 1) / std::max<std::int64_t>(units, 1);
  return std::max<std::int64_t>(std::min(most, wanted), 1);
}
/// Tokens of a part; the last ones have fewer, or none.
constexpr std::int64_t flao_part_length(std::int64_t tokens, std::int64_t units) {
  constexpr std::int64_t step = 64;
  const std::int64_t parts = flao_parts(tokens, units);
  return ((tokens + parts - 1) / parts + step - 1) / step * step;
}

/// What softmax over the sequence keeps of an input with so many tokens and features: of each
/// column of a unit its largest entry, the inverse of its sum, the mean of its gradient; the same
/// of its parts. 0 for other encodings.
inline std::int64_t flao_column_space(const RowEncoding& encoding, std::int64_t units,
                                      std::int64_t tokens, std::int64_t features) {
  return encoding.has_columns() ? (3 + 2 * flao_parts(tokens, units)) * units * features : 0;
}
/// The sums of parts, where there are several.
constexpr std::int64_t flao_sum_space(const FlaoSizes& s, bool over_queries, bool over_keys) {
  const std::int64_t parts = std::max(over_queries ? flao_parts(s.n, s.units) : 1,
                                      over_keys ? flao_parts(s.m, s.units) : 1);
  return parts > 1 ? parts * s.units * s.width * s.e : 0;
}
/// Whether the sums of parts of kv find room in o, which is not written before they are added.
inline bool flao_sums_fit_output(const FlaoSizes& s, DType dtype) {
  const auto of_o = static_cast<std::int64_t>(size_of(dtype)) * s.n;
  const auto of_sums = static_cast<std::int64_t>(size_of(compute_type(dtype))) * s.width;
  return of_sums * flao_parts(s.m, s.units) <= of_o;
}
/// Elements of the compute type that a back end takes for its own use: first the sums of parts of
/// kv (over keys) and d_kv (over queries), one after the other in the same place, unless they lie
/// in o, then the columns of q, k, v and g.
inline std::int64_t flao_workspace(DeviceKind kind, const FlaoSizes& s,
                                   const FlaoEncodings& encodings, bool over_queries,
                                   bool over_keys) {
  if (kind == DeviceKind::cpu) return 0;
  return flao_sum_space(s, over_queries, over_keys) +
         flao_column_space(encodings.q, s.units, s.n, s.d) +
         flao_column_space(encodings.k, s.units, s.m, s.d) +
         flao_column_space(encodings.v, s.units, s.m, s.e) +
         flao_column_space(encodings.g, s.units, s.n, s.e);
}

/// What flao_backward reads. Views that the wanted gradients do not need may be undefined.
struct FlaoSaved {
  View q, k, v, g;
  View kv;  // workspace to be filled if `fill_kv`
  bool fill_kv = false;
  View qkv;  // computed again if it is undefined
  FlaoSizes sizes;
};
struct FlaoGrads {
  Grad q, k, v, g;
};

/// kv = k~^T v~, qkv = q~ kv unless it is undefined, o = g~ * (q~ kv). `space` is
/// flao_workspace(over keys, unless their sums fit o), not defined where that is 0; o is dense.
inline constinit Kernel<void(View q, View k, View v, View g, View kv, View qkv, View o, View space,
                             const FlaoEncodings&)>
    flao_forward{"flao_forward"};
/// Gradients (=|+=) those of the inputs that are wanted. d_kv is workspace, undefined if neither k
/// nor v want one; `space` is flao_workspace(over queries if there is d_kv, over keys if kv is to
/// be filled).
inline constinit Kernel<void(View d_o, const FlaoSaved&, View d_kv, const FlaoGrads&, View space,
                             const FlaoEncodings&)>
    flao_backward_kernel{"flao_backward"};

}  // namespace quipu
