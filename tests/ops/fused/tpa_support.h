#pragma once
// What the tests of tpa_decode and of its cache share.
#include <quipu/quipu.h>

#include <string>

#include "support/several_inputs.h"

namespace quipu::testing::tpa {

struct Size {
  std::int64_t b, m, h, r, d, e, key_rank = 1, value_rank = 1;
};
using Six = Tensors;

inline std::string text(const Size& s) {
  return detail::concat("b ", s.b, " m ", s.m, " h ", s.h, " r ", s.r, " d ", s.d, " e ", s.e,
                        " ranks ", s.key_rank, " ", s.value_rank);
}

inline Shape entries(const Size& s, std::int64_t rank, std::int64_t width) {
  return rank == 1 ? Shape{s.b, s.m, width} : Shape{s.b, s.m, rank, width};
}
inline std::vector<Shape> shapes_of(const Size& s) {
  return {{s.b, 1, s.h, s.r}, entries(s, s.key_rank, s.h), entries(s, s.value_rank, s.h),
          {s.b, 1, s.r, s.d}, entries(s, s.key_rank, s.d), entries(s, s.value_rank, s.e)};
}
/// aq, ak, av, bq, bk, bv
inline Six inputs_of(const Size& s, DType dtype, Device device) {
  return random_tensors(shapes_of(s), dtype, device);
}

inline Tensor fused(const Six& in, const TpaOptions& options = {}) {
  return tpa_decode(in[0], in[1], in[2], in[3], in[4], in[5], options);
}
inline Tensor composed(const Six& in, const TpaOptions& options = {}) {
  return detail::tpa_decode_composed(in[0], in[1], in[2], in[3], in[4], in[5], options);
}

/// The output and all gradients.
template <class F>
Six everything(F f, const Six& in, const Tensor& d_o, const TpaOptions& options = {}) {
  return with_gradients(f, in, d_o, options);
}

}  // namespace quipu::testing::tpa
