#pragma once
// What the tests of operators with several inputs have in common.
#include <cmath>
#include <vector>

#include "ops/fused/fused_checks.h"

namespace quipu::testing {

using Tensors = std::vector<Tensor>;

/// Normal numbers, rounded to the type.
inline Tensor random_tensor(const Shape& shape, DType dtype, Device device) {
  return randn(shape, dtype == f64 ? f64 : f32, device).to(dtype);
}
inline Tensors random_tensors(const std::vector<Shape>& shapes, DType dtype, Device device) {
  Tensors in;
  for (const Shape& shape : shapes) in.push_back(random_tensor(shape, dtype, device));
  return in;
}

/// Lets those inputs want gradients whose bits are set.
inline Tensors wanting(Tensors in, unsigned subset = ~0u) {
  for (std::size_t i = 0; i < in.size(); ++i) in[i].set_requires_grad((subset >> i & 1) != 0);
  return in;
}
inline Tensors as(DType dtype, const Tensors& in) {
  Tensors out;
  for (const Tensor& x : in) out.push_back(x.detach().to(dtype).detach());
  return out;
}

/// The output of f(inputs, options...) and the gradients of all inputs.
template <class F, class... Options>
Tensors with_gradients(F f, const Tensors& in, const Tensor& d_o, const Options&... options) {
  const Tensors leaves = wanting(as(in[0].dtype(), in));
  Tape tape;
  const Tensor o = f(leaves, options...);
  Tensors out = tape.gradients(o, leaves, {d_o});
  out.insert(out.begin(), o.detach());
  return out;
}

/// The largest difference, as a part of the largest entry; NaN if there is one.
inline double distance(const Tensor& x, const Tensor& wanted) {
  REQUIRE(x.shape() == wanted.shape());
  const std::vector<double> a = x.to_vector(), b = wanted.to_vector();
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::abs(a[i] - b[i]);
    if (!(off <= most)) most = off;
    if (std::isnan(most)) return most;
  }
  return most / std::max(largest_of(wanted), 1e-300);
}

/// run() gives the same bits on 1, 2 and 3 threads.
template <class Run>
void check_bits_on_threads(Run run) {
  const int before = set_num_threads(1);
  const Tensors wanted = run();
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const Tensors ours = run();
    for (std::size_t i = 0; i < ours.size(); ++i) CHECK(same_bits(ours[i], wanted[i]));
  }
  set_num_threads(before);
}

/// The same values as columns of a wider matrix, turned: no dimension is dense.
inline Tensors turned(const Tensors& in) {
  Tensors views;
  for (const Tensor& t : in) {
    const Tensor wide = cat({t, t}, -1).transpose(0, -1).contiguous().transpose(0, -1);
    views.push_back(wide.slice(-1, 0, t.size(-1)));
  }
  return views;
}

}  // namespace quipu::testing
