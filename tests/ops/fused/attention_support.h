#pragma once
// What the tests of softmax attention share.
#include <quipu/quipu.h>

#include <string>

#include "support/several_inputs.h"

namespace quipu::testing::softmax_attention {

struct Size {
  std::int64_t b, key_heads, group, n, m, d, e;
};
using Three = Tensors;

inline std::string text(const Size& s) {
  return detail::concat("b ", s.b, " hk ", s.key_heads, " group ", s.group, " n ", s.n, " m ", s.m,
                        " d ", s.d, " e ", s.e);
}
inline Shape output_of(const Size& s) {
  return {s.b, s.key_heads * s.group, s.n, s.e};
}
inline std::vector<Shape> shapes_of(const Size& s) {
  return {{s.b, s.key_heads * s.group, s.n, s.d},
          {s.b, s.key_heads, s.m, s.d},
          {s.b, s.key_heads, s.m, s.e}};
}
/// q, k, v
inline Three inputs_of(const Size& s, DType dtype, Device device) {
  return random_tensors(shapes_of(s), dtype, device);
}

inline Tensor fused(const Three& in, const AttentionOptions& options = {}) {
  return attention(in[0], in[1], in[2], options);
}
inline Tensor composed(const Three& in, const AttentionOptions& options = {}) {
  return detail::attention_composed(in[0], in[1], in[2], options);
}

/// The output and all gradients.
template <class F>
Three everything(F f, const Three& in, const Tensor& d_o, const AttentionOptions& options = {}) {
  return with_gradients(f, in, d_o, options);
}

}  // namespace quipu::testing::softmax_attention
