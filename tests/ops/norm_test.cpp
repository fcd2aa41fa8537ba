// Normalisation against its composition: values, gradients, memory.
#include "quipu/ops/norm.h"

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

enum class Kind { rms, layer, group };
constexpr double eps = 0.1;  // large, so that short rows are smooth enough for differences

struct NormCase {
  Kind kind;
  Shape shape;
  std::int64_t groups = 1;

  std::int64_t channels() const { return kind == Kind::group ? shape[1] : shape.back(); }
  std::string name() const {
    const char* names[] = {"rms", "layer", "group"};
    return std::string(names[static_cast<int>(kind)]) + " " + to_string(shape) + " " +
           std::to_string(groups) + " groups";
  }
  /// x, weight and bias.
  std::vector<Tensor> inputs(DType dtype, Device device) const {
    std::vector<Tensor> in{randn(shape, f32, device).to(dtype),
                           (randn({channels()}, f32, device) * 0.3 + 1).to(dtype)};
    if (kind != Kind::rms) in.push_back(randn({channels()}, f32, device).to(dtype));
    return in;
  }
  Tensor run(const std::vector<Tensor>& in) const {
    if (kind == Kind::rms) return rms_norm(in[0], in[1], eps);
    if (kind == Kind::layer) return layer_norm(in[0], in[1], in[2], eps);
    return group_norm(in[0], groups, in[1], in[2], eps);
  }
  Tensor composed(const std::vector<Tensor>& in) const {
    if (kind == Kind::rms) return rms_norm_composed(in[0], in[1], eps);
    if (kind == Kind::layer) return layer_norm_composed(in[0], in[1], in[2], eps);
    return group_norm_composed(in[0], groups, in[1], in[2], eps);
  }
};

std::vector<NormCase> small_cases() {
  std::vector<NormCase> cases;
  for (const Kind kind : {Kind::rms, Kind::layer}) {
    for (const Shape& shape :
         {Shape{2}, Shape{7}, Shape{1, 3}, Shape{3, 5}, Shape{2, 3, 4}, Shape{67, 3}, Shape{5, 33},
          Shape{2, 2, 2, 5}, Shape{0, 4}, Shape{3, 0}, Shape{129, 2}}) {
      cases.push_back({kind, shape});
    }
  }
  cases.push_back({Kind::rms, {4, 1}});
  for (const Shape& shape : {Shape{2, 4}, Shape{2, 4, 3}, Shape{1, 4, 2, 3}, Shape{67, 4, 1},
                             Shape{0, 4, 2}, Shape{2, 4, 0}, Shape{3, 4, 1, 1}}) {
    cases.push_back({Kind::group, shape, 1});
    cases.push_back({Kind::group, shape, 2});
  }
  cases.push_back({Kind::group, {2, 6, 5}, 6});
  return cases;
}

/// Shapes that need several pieces and several parts.
std::vector<NormCase> large_cases() {
  return {{Kind::rms, {200, 64}},   {Kind::layer, {70, 130}},       {Kind::rms, {3, 9001}},
          {Kind::layer, {3, 9001}}, {Kind::group, {3, 4, 5003}, 2}, {Kind::group, {130, 6, 7}, 3}};
}

/// Output and gradients under a fixed upstream gradient.
std::vector<Tensor> run_all(const NormCase& c, const std::vector<Tensor>& in, bool fused) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : in) leaves.push_back(x.detach().set_requires_grad());
  Tape tape;
  const Tensor o = fused ? c.run(leaves) : c.composed(leaves);
  const Tensor upstream =
      linspace(-1, 1, o.numel(), f64, o.device()).to(bf16).to(o.dtype()).reshape(o.shape());
  std::vector<Tensor> results = tape.gradients(o, leaves, {upstream, false});
  results.insert(results.begin(), o.detach());
  return results;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "norm: gradients of every input") {
  for (const NormCase& c : small_cases()) {
    CAPTURE(c.name());
    const std::vector<Tensor> in = c.inputs(f64, device);
    for (const Tensor& x : in) x.set_requires_grad();
    const GradcheckResult result = gradcheck([&](const auto& x) { return c.run(x); }, in);
    CHECK_MESSAGE(result.ok, result.report);
  }
}

TEST_CASE_FIXTURE(EachDevice, "norm: every subset of inputs that want gradients") {
  for (const NormCase& c :
       {NormCase{Kind::rms, {3, 5}}, NormCase{Kind::rms, {2, 2, 3}}, NormCase{Kind::layer, {3, 5}},
        NormCase{Kind::layer, {2, 2, 3}}, NormCase{Kind::group, {2, 4, 3}, 2},
        NormCase{Kind::group, {3, 4}, 2}, NormCase{Kind::group, {3, 4, 1, 1}, 1}}) {
    const std::size_t count = c.kind == Kind::rms ? 2 : 3;
    for (unsigned subset = 1; subset < 1u << count; ++subset) {
      CAPTURE(c.name());
      CAPTURE(subset);
      const std::vector<Tensor> in = c.inputs(f64, device);
      for (unsigned k = 0; k < count; ++k) {
        if (subset >> k & 1u) in[k].set_requires_grad();
      }
      const GradcheckResult result = gradcheck([&](const auto& x) { return c.run(x); }, in);
      CHECK_MESSAGE(result.ok, result.report);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "norm: agrees with its composition") {
  std::vector<NormCase> cases = small_cases();
  for (const NormCase& c : large_cases()) cases.push_back(c);
  for (const NormCase& c : cases) {
    if (numel(c.shape) == 0) continue;  // the composition divides by nothing
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(c.name());
      CAPTURE(dtype);
      const std::vector<Tensor> in = c.inputs(dtype, device);
      std::vector<Tensor> exact;
      for (const Tensor& x : in) exact.push_back(x.to(f64));
      const auto got = run_all(c, in, true), wanted = run_all(c, exact, false);
      for (std::size_t k = 0; k < got.size(); ++k) {
        CHECK(got[k].dtype() == dtype);
        // Sums run over up to 15 thousand terms, all of order one.
        const double relative = dtype == f64 ? 1e-12 : dtype == f32 ? 4e-6 : epsilon_of(dtype);
        const double absolute = dtype == f64   ? 1e-12
                                : dtype == f32 ? 2e-4
                                               : 2e-2 * epsilon_of(dtype);
        const Difference difference =
            compare(got[k].to(f64), wanted[k], {relative, k == 0 ? relative : absolute + relative});
        CHECK_MESSAGE(difference.ok, difference.text);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "norm: weight and bias may be left out") {
  const Tensor x = randn({3, 6}, f64, device).set_requires_grad();
  const Tensor bias = randn({6}, f64, device).set_requires_grad();
  const Tolerance close{1e-12, 1e-12};
  CHECK(allclose(rms_norm(x), rms_norm_composed(x), close));
  CHECK(allclose(layer_norm(x), layer_norm_composed(x), close));
  CHECK(allclose(layer_norm(x, {}, bias), layer_norm_composed(x, {}, bias), close));
  CHECK(allclose(group_norm(x, 3), group_norm_composed(x, 3), close));
  CHECK(gradcheck([](const auto& in) { return rms_norm(in[0]); }, {x}));
  CHECK(gradcheck([](const auto& in) { return layer_norm(in[0], {}, in[1]); }, {x, bias}));
  CHECK(gradcheck([](const auto& in) { return group_norm(in[0], 2, in[1]); }, {x, bias}));
}

TEST_CASE_FIXTURE(EachDevice, "norm: strided inputs, outputs and gradients") {
  const auto f = [](const std::vector<Tensor>& in) {
    const Tensor part = in[0].slice(1, 1, 5);
    return layer_norm(part.t(), in[1].slice(0, 0, 6, 2), in[1].slice(0, 1, 6, 2)).t() +
           rms_norm(part, in[1].slice(0, 0, 4));
  };
  CHECK(gradcheck(f, {randn({3, 7}, f64, device).set_requires_grad(),
                      randn({6}, f64, device).set_requires_grad()}));
}

TEST_CASE_FIXTURE(EachDevice, "norm: backward without a tape adds to what is there") {
  for (const NormCase& c : {NormCase{Kind::rms, {5, 7}}, NormCase{Kind::layer, {5, 7}},
                            NormCase{Kind::group, {5, 4, 3}, 2}}) {
    CAPTURE(c.name());
    const std::vector<Tensor> in = c.inputs(f64, device);
    const auto wanted = run_all(c, in, true);
    const Tensor up =
        linspace(-1, 1, numel(c.shape), f64, device).to(bf16).to(f64).reshape(c.shape);
    std::vector<Tensor> d;
    for (const Tensor& x : in) d.push_back(ones(x.shape(), f64, device));
    const auto into = [&](std::size_t k) { return Grad::add_to(d[k]); };
    if (c.kind == Kind::rms) rms_norm_backward(in[0], in[1], up, into(0), into(1), eps);
    if (c.kind == Kind::layer)
      layer_norm_backward(in[0], in[1], up, into(0), into(1), into(2), eps);
    if (c.kind == Kind::group) {
      group_norm_backward(in[0], c.groups, in[1], up, into(0), into(1), into(2), eps);
    }
    for (std::size_t k = 0; k < in.size(); ++k) {
      CHECK(allclose(d[k].add_(-1), wanted[k + 1], {1e-12, 1e-12}));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "norm: keeps x, the weight and the statistics") {
  for (const DType dtype : {f64, f32, bf16}) {
    const Tensor x = randn({6, 10}, f32, device).to(dtype).set_requires_grad();
    const Tensor w = ones({10}, dtype, device).set_requires_grad(), b = zeros({10}, dtype, device);
    const std::size_t statistic = 6 * size_of(compute_type(dtype));
    {
      Tape tape;
      const Tensor o = rms_norm(x, w);
      CHECK(tape.saved_bytes() == x.nbytes() + w.nbytes() + statistic);
    }
    {
      Tape tape;
      const Tensor o = layer_norm(x, w, b);
      CHECK(tape.saved_bytes() == x.nbytes() + w.nbytes() + 2 * statistic);
    }
    {
      Tape tape;
      const Tensor o = layer_norm(x.detach(), w, b);
      CHECK(tape.saved_bytes() == x.nbytes() + 2 * statistic);
    }
    {
      Tape tape;
      const Tensor o = group_norm(x, 5, w, b);
      CHECK(tape.saved_bytes() == x.nbytes() + w.nbytes() + 10 * statistic);
    }
    const Tensor leaf = b.detach().set_requires_grad();
    Tape tape;
    const Tensor o = layer_norm(x.detach(), w.detach(), leaf);
    CHECK(tape.saved_bytes() == 0);
  }
}

TEST_CASE_FIXTURE(EachDevice, "norm: the same bits for any number of threads") {
  const int threads = num_threads();
  for (const NormCase& c : large_cases()) {
    CAPTURE(c.name());
    const std::vector<Tensor> in = c.inputs(bf16, device);
    set_num_threads(1);
    const auto wanted = run_all(c, in, true);
    for (const int count : {2, 3}) {
      set_num_threads(count);
      const auto got = run_all(c, in, true);
      for (std::size_t k = 0; k < got.size(); ++k) CHECK(same_bits(got[k], wanted[k]));
    }
    set_num_threads(threads);
  }
}

TEST_CASE_FIXTURE(EachDevice, "norm: meta knows the peak") {
  for (const NormCase& c : large_cases()) {
    CAPTURE(c.name());
    const auto peak_on = [&](Device where) {
      const std::vector<Tensor> in = c.inputs(bf16, where);
      const PeakMemory peak(where);
      run_all(c, in, true);
      return peak.bytes_above();
    };
    CHECK(peak_on(meta_of(device)) == peak_on(device));
  }
}

TEST_CASE("norm: says what does not fit") {
  const Tensor x = ones({2, 6});
  expect_error([] { rms_norm(arange(3)); }, "rms_norm", "x is i64");
  expect_error([] { layer_norm(ones({})); }, "layer_norm", "at least one dimension");
  expect_error([&] { rms_norm(x, ones({5})); }, "rms_norm", "weight has shape (5,)", "(6,)");
  expect_error([&] { layer_norm(x, {}, ones({6}, f64)); }, "layer_norm", "bias");
  expect_error([&] { group_norm(x, 4); }, "group_norm", "groups is 4", "6 channels");
  expect_error([&] { group_norm(x, 0); }, "group_norm", "groups is 0");
  expect_error([] { group_norm(ones({3}), 1); }, "group_norm", "(b, c, ...)");
  expect_error([&] { rms_norm(x, {}, -1); }, "rms_norm", "eps is -1");
}
