// Every operator of the table: gradients against differences, meta against the device, reduced
// types against f64.
#include <cmath>

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "support/operator_cases.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

/// Large cases are small ones again, for threads to share: on an emulated device each runs once.
bool runs_once(const OperatorCase& c, Device device) {
  return c.group == "large" && is_emulated(device);
}

/// Calls f(case, layout) for all of a group; of all groups when none is named.
template <class F>
void for_each_case(const std::string& group, Device device, F&& f) {
  int found = 0;
  for (const OperatorCase& c : operator_cases()) {
    if (!group.empty() && c.group != group) continue;
    for (const Layout layout : all_layouts) {
      if (!c.has(layout)) continue;
      f(c, layout);
      ++found;
      if (runs_once(c, device)) break;
    }
  }
  CHECK(found > 0);
}

std::string full_name(const OperatorCase& c, Layout layout) {
  return c.name() + " " + quipu::testing::name_of(layout);
}

/// Every subset of inputs that need gradients, the empty one excepted.
void check_group(const char* group, Device device) {
  for_each_case(group, device, [&](const OperatorCase& c, Layout layout) {
    const unsigned all = (1u << c.inputs.size()) - 1;
    for (unsigned subset = runs_once(c, device) ? all : 1; subset <= all; ++subset) {
      const std::string name = full_name(c, layout) + " " + subset_text(subset);
      CAPTURE(name);
      const std::vector<Tensor> inputs = c.make_inputs(layout, f64, device);
      for (unsigned k = 0; k < inputs.size(); ++k) {
        if (subset >> k & 1u) inputs[k].set_requires_grad();
      }
      const GradcheckResult result = gradcheck(c.function(layout), inputs);
      CHECK_MESSAGE(result.ok, result.report);
    }
  });
}

/// All that a run of a case leaves to compare.
struct Outcome {
  Tensor output;
  std::vector<Tensor> gradients;
  std::size_t forward_peak = 0, whole_peak = 0;
};

/// Forward and backward with gradients for all inputs, under a made-up upstream gradient.
Outcome run_case(const OperatorCase& c, Layout layout, const std::vector<Tensor>& inputs) {
  const Device device = inputs[0].device();
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.detach().set_requires_grad());
  Outcome outcome;
  const PeakMemory peak(device);
  {
    Tape tape;
    outcome.output = c.function(layout)(leaves);
    outcome.forward_peak = peak.bytes_above();
    const Tensor& o = outcome.output;
    Tensor upstream = linspace(0.25, 1, o.numel(), bf16, device).to(o.dtype()).reshape(o.shape());
    tape.backward(o, {upstream, false});
  }
  outcome.whole_peak = peak.bytes_above();
  for (const Tensor& x : leaves) {
    outcome.gradients.push_back(x.grad().defined() ? x.grad() : zeros_like(x.detach()));
  }
  outcome.output = outcome.output.detach();
  return outcome;
}

void check_same_form(const Tensor& a, const Tensor& b) {
  CHECK(a.shape() == b.shape());
  CHECK(a.strides() == b.strides());
  CHECK(a.dtype() == b.dtype());
}

/// Within the rounding of `repeats` entries that are then summed, and of a sum of `terms` in f32;
/// of the largest entry, or of 1, which is the size of what was added up where that cancels.
void check_close(const Tensor& got, const Tensor& exact, std::int64_t repeats, std::int64_t terms) {
  REQUIRE(got.shape() == exact.shape());
  double largest = 1;
  for (const double v : exact.to_vector()) largest = std::max(largest, std::abs(v));
  const double roundings = 4 * std::sqrt(static_cast<double>(repeats));
  const double allowed = largest * (roundings * epsilon_of(got.dtype()) +
                                    4 * static_cast<double>(terms) * epsilon_of(f32));
  const Difference d = compare(got.to(f64), exact, {.relative = 0, .absolute = allowed});
  CHECK_MESSAGE(d.ok, d.text);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "gradients: pointwise operators") {
  check_group("pointwise", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: operators with kinks, away from them") {
  check_group("kinks", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: reductions and running sums") {
  check_group("reduce", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: matmul") {
  check_group("matmul", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: cat, stack and split") {
  check_group("join", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: indexing and dropout") {
  check_group("index", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: views and copies") {
  check_group("views", device);
}
TEST_CASE_FIXTURE(EachDevice, "gradients: sizes that threads share") {
  check_group("large", device);
}

TEST_CASE_FIXTURE(EachDevice, "gradients: a cast rounds the gradient once, each way") {
  const Tensor x = linspace(-1, 1, 67, f64, device);
  x.set_requires_grad();
  for (const DType dtype : {f32, bf16, f16}) {
    CAPTURE(quipu::name_of(dtype));
    Tape tape;
    const Tensor upstream = linspace(0.3, 0.7, 67, dtype, device);
    const Tensor gradient = tape.gradients(x.to(dtype), {x}, {upstream, false})[0];
    CHECK(same_bits(gradient, upstream.to(f64)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "gradients: meta gives the same shapes, strides and peaks") {
  const Device meta(device.kind(), device.index(), true);
  for (const DType dtype : {f32, bf16}) {
    for_each_case("", device, [&](const OperatorCase& c, Layout layout) {
      const std::string name = full_name(c, layout) + " " + to_string(dtype);
      CAPTURE(name);
      const Outcome real = run_case(c, layout, c.make_inputs(layout, dtype, device));
      const Outcome dry = run_case(c, layout, c.make_inputs(layout, dtype, meta));
      check_same_form(real.output, dry.output);
      for (std::size_t k = 0; k < real.gradients.size(); ++k) {
        check_same_form(real.gradients[k], dry.gradients[k]);
      }
      CHECK(real.forward_peak == dry.forward_peak);
      CHECK(real.whole_peak == dry.whole_peak);
    });
  }
}

TEST_CASE_FIXTURE(EachDevice, "gradients: reduced types agree with f64") {
  for (const DType dtype : {f32, bf16, f16}) {
    for_each_case("", device, [&](const OperatorCase& c, Layout layout) {
      const std::string name = full_name(c, layout) + " " + to_string(dtype);
      CAPTURE(name);
      const std::vector<Tensor> rounded = c.make_inputs(layout, dtype, device);
      std::vector<Tensor> exact;
      for (const Tensor& x : rounded) exact.push_back(x.to(f64));
      const Outcome got = run_case(c, layout, rounded), wanted = run_case(c, layout, exact);
      CHECK(got.output.dtype() == dtype);
      check_close(got.output, wanted.output, 1, c.terms);
      for (std::size_t k = 0; k < rounded.size(); ++k) {
        CHECK(got.gradients[k].dtype() == dtype);
        // How often the layout `expanded` repeats each entry.
        const std::int64_t repeats =
            rounded[k].numel() > 0 ? numel(c.inputs[k].shape) / rounded[k].numel() : 1;
        check_close(got.gradients[k], wanted.gradients[k], repeats, c.terms);
      }
    });
  }
}
