#pragma once
// What the tests of tpa_decode and of its cache share.
#include <quipu/quipu.h>

#include <cmath>
#include <string>
#include <vector>

#include "support.h"

namespace quipu::testing::tpa {

struct Size {
  std::int64_t b, m, h, r, d, e, key_rank = 1, value_rank = 1;
};
using Six = std::vector<Tensor>;

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
  Six in;
  for (const Shape& shape : shapes_of(s)) {
    in.push_back(randn(shape, dtype == f64 ? f64 : f32, device).to(dtype));
  }
  return in;
}
inline Six wanting(Six in) {
  for (const Tensor& x : in) x.set_requires_grad();
  return in;
}
inline Six as(DType dtype, const Six& in) {
  Six out;
  for (const Tensor& x : in) out.push_back(x.detach().to(dtype).detach());
  return out;
}

inline Tensor fused(const Six& in, const TpaOptions& options = {}) {
  return tpa_decode(in[0], in[1], in[2], in[3], in[4], in[5], options);
}
inline Tensor composed(const Six& in, const TpaOptions& options = {}) {
  return tpa_decode_composed(in[0], in[1], in[2], in[3], in[4], in[5], options);
}

/// The output and all gradients.
template <class F>
Six everything(F f, const Six& in, const Tensor& d_o, const TpaOptions& options = {}) {
  const Six leaves = wanting(as(in[0].dtype(), in));
  Tape tape;
  const Tensor o = f(leaves, options);
  Six out = tape.gradients(o, leaves, {d_o});
  out.insert(out.begin(), o.detach());
  return out;
}

inline double largest(const Tensor& x) {
  double most = 0;
  for (const double v : x.to_vector()) most = std::max(most, std::abs(v));
  return most;
}
/// The largest difference, as a part of the largest entry.
inline double distance(const Tensor& x, const Tensor& wanted) {
  REQUIRE(x.shape() == wanted.shape());
  if (x.numel() == 0) return 0;
  const std::vector<double> a = x.to_vector(), b = wanted.to_vector();
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= most)) most = std::abs(a[i] - b[i]);
    if (std::isnan(most)) return most;
  }
  return most / std::max(largest(wanted), 1e-300);
}

}  // namespace quipu::testing::tpa
