#pragma once
// What the tests of fused operators with one input have in common.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "support/support.h"

namespace quipu::testing {

using UnaryFunction = std::function<Tensor(const Tensor&)>;

inline constexpr Device meta_cpu(DeviceKind::cpu, 0, true);

/// Normal numbers, but none near 0, where relu has its kink.
inline Tensor input_of(const Shape& shape, DType dtype, Device device, std::uint64_t seed = 2024) {
  Generator generator(seed);
  const Tensor x = randn(shape, f64, device, generator);
  return where(x < 0, x - 0.05, x + 0.05).to(dtype);
}

struct Outcome {
  Tensor o, d_x;
};

/// f(x) and the gradient of x under a made-up upstream gradient.
inline Outcome run(const UnaryFunction& f, const Tensor& x) {
  const Tensor leaf = x.detach();
  leaf.set_requires_grad();
  Tape tape;
  const Tensor o = f(leaf);
  const Tensor upstream = input_of(o.shape(), f32, x.device(), 7).to(bf16).to(x.dtype());
  return {o.detach(), tape.gradients(o, {leaf}, {upstream, false})[0].detach()};
}

/// By magnitude; NaN if there is one.
inline double largest_of(const Tensor& x) {
  double most = 0;
  for (const double v : x.to(f64).to_vector()) {
    if (std::isnan(v)) return v;
    most = std::max(most, std::abs(v));
  }
  return most;
}

/// Each entry within `units` in the last place, plus a part of the largest entry.
inline void check_units(const Tensor& got, const Tensor& exact, double units, double part) {
  REQUIRE(got.shape() == exact.shape());
  const double slack = part * largest_of(exact), epsilon = epsilon_of(got.dtype());
  const std::vector<double> a = got.to(f64).to_vector(), b = exact.to_vector();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double unit =
        b[i] == 0 ? epsilon : epsilon * std::exp2(std::floor(std::log2(std::abs(b[i]))));
    const double off = (std::abs(a[i] - b[i]) - slack) / unit;
    if (!(off <= worst)) worst = off;
  }
  CHECK_MESSAGE(worst <= units, worst, " units in the last place");
}

/// Forward and backward agree with the composition in f64.
inline void check_composition(const UnaryFunction& fused, const UnaryFunction& composed,
                              const Tensor& x) {
  const Outcome a = run(fused, x), b = run(composed, x);
  for (const auto& [got, wanted] : {std::pair(a.o, b.o), std::pair(a.d_x, b.d_x)}) {
    const double allowed = 1e-12 * std::max(1.0, largest_of(wanted));
    const Difference d = compare(got, wanted, {.relative = 0, .absolute = allowed});
    CHECK_MESSAGE(d.ok, d.text);
  }
}

/// The same bits on 1, 2 and 3 threads.
inline void check_threads(const UnaryFunction& f, const Tensor& x) {
  const int before = set_num_threads(1);
  const Outcome alone = run(f, x);
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const Outcome several = run(f, x);
    CHECK(same_bits(alone.o, several.o));
    CHECK(same_bits(alone.d_x, several.d_x));
  }
  set_num_threads(before);
}

/// The peak above x of a forward and a backward whose gradient stays.
inline std::size_t training_peak(const UnaryFunction& f, const Shape& shape, DType dtype,
                                 Device device) {
  const Tensor x = zeros(shape, dtype, device);
  x.set_requires_grad();
  const PeakMemory peak(device);
  {
    Tape tape;
    const Tensor o = f(x);
    tape.backward(o, {zeros_like(o.detach()), false});
  }
  return peak.bytes_above();
}

/// What the knots of f keep.
inline std::size_t saved_bytes(const UnaryFunction& f, const Tensor& x) {
  const Tensor leaf = x.detach();
  leaf.set_requires_grad();
  Tape tape;
  f(leaf);
  return tape.saved_bytes();
}

/// Views with the values of x that lie in memory in other ways: transposed, sliced, with a wider
/// row.
inline std::vector<Tensor> other_layouts(const Tensor& x) {
  std::vector<Tensor> result;
  Dims reversed;
  for (int d = x.dim() - 1; d >= 0; --d) reversed.push_back(d);
  result.push_back(x.permute(reversed).contiguous().permute(reversed));
  Shape wide = x.shape();
  for (int d = 0; d < wide.size(); ++d) wide[d] = 2 * wide[d] + 1;
  Tensor part = full(wide, 77.0, x.dtype(), x.device());
  for (int d = 0; d < wide.size(); ++d) part = part.slice(d, 1, {}, 2);
  part.copy_from(x);
  result.push_back(part);
  Shape padded = x.shape();
  padded[padded.size() - 1] += 3;
  const Tensor rows = full(padded, 77.0, x.dtype(), x.device()).slice(-1, 0, x.size(-1));
  rows.copy_from(x);
  result.push_back(rows);
  return result;
}

/// The layout of the input changes no bit, forward or backward.
inline void check_layouts(const UnaryFunction& f, const Tensor& x) {
  const Outcome wanted = run(f, x);
  for (const Tensor& view : other_layouts(x)) {
    CAPTURE(to_string(view.strides()));
    const Outcome got = run(f, view);
    CHECK(allclose(got.o, wanted.o));
    CHECK(allclose(got.d_x, wanted.d_x));
  }
}

inline void expect_gradients(const UnaryFunction& f, const Tensor& x) {
  const Tensor leaf = x.detach();
  leaf.set_requires_grad();
  const GradcheckResult result =
      gradcheck([&](const std::vector<Tensor>& in) { return f(in[0]); }, {leaf});
  CHECK_MESSAGE(result.ok, result.report);
}

}  // namespace quipu::testing
