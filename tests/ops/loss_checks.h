#pragma once
// What the tests of losses and lookups have in common: functions of several inputs, some of which
// want gradients.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/threads/parallel.h"
#include "support/support.h"

namespace quipu::loss_testing {

using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

inline Tensor normals(const Shape& shape, DType dtype, Device device, std::uint64_t seed = 2024) {
  Generator generator(seed);
  return randn(shape, f64, device, generator).to(dtype);
}

/// The output, then the gradient of each floating input, under a made-up upstream gradient.
inline std::vector<Tensor> outcome(const Function& f, const Inputs& in) {
  Inputs leaves, wanted;
  for (const Tensor& x : in) {
    leaves.push_back(x.detach());
    if (is_floating(x.dtype())) wanted.push_back(leaves.back().set_requires_grad());
  }
  Tape tape;
  const Tensor o = f(leaves);
  const Tensor upstream = normals(o.shape(), f32, o.device(), 7).to(bf16).to(o.dtype());
  std::vector<Tensor> results{o.detach()};
  for (const Tensor& g : tape.gradients(o, wanted, {upstream, false})) results.push_back(g);
  return results;
}

inline Inputs as(DType dtype, const Inputs& in) {
  Inputs result;
  for (const Tensor& x : in) result.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
  return result;
}

inline void expect_gradients(const Function& f, const Inputs& in) {
  for (const Tensor& x : in) {
    if (is_floating(x.dtype())) x.set_requires_grad();
  }
  const GradcheckResult result = gradcheck(f, in);
  CHECK_MESSAGE(result.ok, result.report);
}

/// Gradients for every choice of inputs that want one.
inline void expect_gradients_of_subsets(const Function& f, const Inputs& in) {
  for (unsigned subset = 1; subset < 1u << in.size(); ++subset) {
    CAPTURE(subset);
    Inputs some;
    bool sensible = true;
    for (std::size_t k = 0; k < in.size(); ++k) {
      const bool wants = subset >> k & 1u;
      sensible &= !wants || is_floating(in[k].dtype());
      some.push_back(in[k].detach());
      if (wants && sensible) some.back().set_requires_grad();
    }
    if (!sensible) continue;
    const GradcheckResult result = gradcheck(f, some);
    CHECK_MESSAGE(result.ok, result.report);
  }
}

/// The largest distance, as a part of the largest entry; NaN if there is one.
inline double distance(const Tensor& got, const Tensor& exact) {
  REQUIRE(got.shape() == exact.shape());
  const std::vector<double> a = got.to(f64).to_vector(), b = exact.to(f64).to_vector();
  double most = 0, largest = 1e-3;  // below it, all is rounding
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    const double off = std::abs(a[i] - b[i]);
    if (!(off <= most)) most = off;
  }
  return most / largest;
}

/// Equal to the composition in f64. In other types no further from the f64 result than it, or
/// within `units` of f32's epsilon, beside `roundings` roundings to the type.
inline void check_composition(const Function& fused, const Function& composed, const Inputs& in,
                              double units = 4, double roundings = 1) {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const Inputs rounded = as(dtype, in);
    const auto got = outcome(fused, rounded), beside = outcome(composed, rounded);
    const auto exact = outcome(composed, as(f64, rounded));
    for (std::size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      const double rounding =
          detail::is_reduced(got[k].dtype()) ? roundings / 2 * epsilon_of(got[k].dtype()) : 0.0;
      const double allowed = dtype == f64 ? 1e-12
                                          : std::max(distance(beside[k], exact[k]),
                                                     units * epsilon_of(f32) + rounding);
      const double off = distance(got[k], exact[k]);
      CHECK_MESSAGE(off <= allowed, off, " instead of ", allowed);
    }
  }
}

/// The same bits on 1, 2 and 3 threads.
inline void check_threads(const Function& f, const Inputs& in) {
  const int before = set_num_threads(1);
  const auto alone = outcome(f, in);
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const auto several = outcome(f, in);
    for (std::size_t k = 0; k < alone.size(); ++k) CHECK(same_bits(alone[k], several[k]));
  }
  set_num_threads(before);
}

/// The peak above the inputs of a forward and a backward.
inline std::size_t training_peak(const Function& f, const Inputs& in, Device device) {
  Inputs there;
  for (const Tensor& x : in) there.push_back(x.to(device));
  const PeakMemory peak(device);
  outcome(f, there);
  return peak.bytes_above();
}
inline void check_peak_on_meta(const Function& f, const Inputs& in) {
  const Device device = in[0].device();
  CHECK(training_peak(f, in, meta_of(device)) == training_peak(f, in, device));
}

/// What the knots of f keep where all floating inputs want gradients.
inline std::size_t saved_bytes(const Function& f, const Inputs& in) {
  Inputs leaves;
  for (const Tensor& x : in) {
    leaves.push_back(x.detach());
    if (is_floating(x.dtype())) leaves.back().set_requires_grad();
  }
  Tape tape;
  f(leaves);
  CHECK(tape.size() == 1);
  return tape.saved_bytes();
}

/// Views with the values of x that lie in memory in other ways: transposed, and every second entry.
inline std::vector<Tensor> strided_forms(const Tensor& x) {
  Dims reversed;
  for (int d = x.dim() - 1; d >= 0; --d) reversed.push_back(d);
  Shape wide = x.shape();
  for (int d = 0; d < wide.size(); ++d) wide[d] = 2 * wide[d] + 1;
  Tensor part = full(wide, 1, x.dtype(), x.device());
  for (int d = 0; d < wide.size(); ++d) part = part.slice(d, 1, {}, 2);
  part.copy_from(x);
  return {x.permute(reversed).contiguous().permute(reversed), part};
}

/// How the inputs lie in memory changes nothing, forward or backward.
inline void check_layouts(const Function& f, const Inputs& in) {
  const auto wanted = outcome(f, in);
  for (std::size_t layout = 0; layout < 2; ++layout) {
    CAPTURE(layout);
    Inputs views;
    for (const Tensor& x : in) views.push_back(strided_forms(x)[layout]);
    const auto got = outcome(f, views);
    for (std::size_t k = 0; k < got.size(); ++k) CHECK(allclose(got[k], wanted[k]));
  }
}

}  // namespace quipu::loss_testing
