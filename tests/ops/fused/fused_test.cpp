// What holds for every fused operator: gradients, agreement with its composition, memory, bits.
#include <quipu/quipu.h>

#include <iostream>
#include <set>

#include "fused_cases.h"
#include "fused_checks.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

using Tensors = std::vector<Tensor>;
using Function = FusedCase::Function;

/// Output first, then the gradients of all inputs.
Tensors run(const Function& f, const Tensors& in) {
  Tensors leaves;
  for (const Tensor& x : in) leaves.push_back(x.detach().set_requires_grad());
  Tape tape;
  const Tensor o = f(leaves);
  const Tensor upstream = input_of(o.shape(), f32, o.device(), 7).to(bf16).to(o.dtype());
  Tensors results = tape.gradients(o, leaves, {upstream, false});
  results.insert(results.begin(), o.detach());
  return results;
}

/// Calls f(case) for all of an operator's.
template <class F>
void for_each_case(const FusedOperator& op, F f) {
  for (int k = 0; k < small_inputs; ++k) {
    const FusedCase c = op.small(k);
    CAPTURE(k);
    CAPTURE(c.name);
    f(c);
  }
}

/// The peak above the inputs of a training step whose gradients are there already.
std::size_t peak_of(const FusedCase& c, const Function& f, DType dtype, Device device) {
  const Tensors in = c.make_inputs(dtype, device);
  for (const Tensor& x : in) x.set_requires_grad();
  const auto step = [&] {
    Tape tape;
    const Tensor o = f(in);
    tape.backward(o, {zeros_like(o.detach()), false});
  };
  step();
  const PeakMemory peak(device);
  step();
  return peak.bytes_above();
}

std::size_t saved_with(const FusedCase& c, DType dtype, Device device, unsigned subset) {
  const Tensors in = c.make_inputs(dtype, device);
  for (unsigned i = 0; i < in.size(); ++i) in[i].set_requires_grad((subset >> i & 1) != 0);
  Tape tape;
  const Tensor o = c.fused(in);
  return tape.saved_bytes();
}

const FusedOperator& operator_named(const std::string& name) {
  for (const FusedOperator& op : fused_operators()) {
    if (op.name == name) return op;
  }
  FAIL("there is no operator ", name);
  return fused_operators()[0];
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "fused: gradients of every operator on thirty shapes") {
  for (const FusedOperator& op : fused_operators()) {
    std::set<std::string> shapes;
    for_each_case(op, [&](const FusedCase& c) {
      const Tensors in = c.make_inputs(f64, device);
      std::string text;
      for (const Tensor& x : in) {
        x.set_requires_grad();
        text += to_string(x.shape());
      }
      shapes.insert(text);
      const GradcheckResult result = gradcheck(c.fused, in);
      CHECK_MESSAGE(result.ok, result.report);
    });
    CHECK_MESSAGE(shapes.size() == small_inputs, op.name);
  }
}

TEST_CASE_FIXTURE(EachDevice, "fused: every subset of inputs that want gradients") {
  for (const FusedOperator& op : fused_operators()) {
    for (const int k : {9, 20}) {
      const FusedCase c = op.small(k);
      CAPTURE(c.name);
      for (unsigned subset = 1; subset < 1u << c.inputs.size(); ++subset) {
        CAPTURE(subset);
        const Tensors in = c.make_inputs(f64, device);
        for (unsigned i = 0; i < in.size(); ++i) in[i].set_requires_grad((subset >> i & 1) != 0);
        const GradcheckResult result = gradcheck(c.fused, in);
        CHECK_MESSAGE(result.ok, result.report);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "fused: equal to the composition in f64") {
  for (const FusedOperator& op : fused_operators()) {
    const auto compare_both = [&](const FusedCase& c) {
      const Tensors in = c.make_inputs(f64, device);
      const Tensors got = run(c.fused, in), wanted = run(c.composed, in);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        const double allowed = 1e-12 * std::max(1.0, largest_of(wanted[i]));
        const Difference d = compare(got[i], wanted[i], {.relative = 0, .absolute = allowed});
        CHECK_MESSAGE(d.ok, d.text);
      }
    };
    for_each_case(op, compare_both);
    CAPTURE(op.name);
    compare_both(op.large_on(device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "fused: no further from f64 than the composition") {
  for (const FusedOperator& op : fused_operators()) {
    CAPTURE(op.name);
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(dtype);
      const FusedCase& large = op.large_on(device);
      const Tensors in = large.make_inputs(dtype, device);
      Tensors wide;
      for (const Tensor& x : in) wide.push_back(x.to(f64));
      // Angles before they were rounded.
      if (large.theta < in.size()) wide[large.theta] = large.make_inputs(f64, device)[large.theta];
      const Tensors exact = run(large.composed, wide);
      const Tensors got = run(large.fused, in), composed = run(large.composed, in);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        const auto distance = [&](const Tensor& x) { return largest_of(x.to(f64) - exact[i]); };
        // Half an epsilon is the rounding of the result, which neither can do without. In f32 sums
        // in another order, and a log-sum-exp instead of a quotient, may differ by a few more; and
        // the gradient of theta has the rounding of angles of up to 70 in every term.
        const double angle = i == large.theta + 1 ? 70 : 0;
        const double rounding = (dtype == f32 ? 8 + angle : 0.51) * epsilon_of(dtype);
        CHECK(distance(got[i]) <= std::max(distance(composed[i]), rounding * largest_of(exact[i])));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "fused: less memory than the composition") {
  std::ostringstream table;
  table << "peak of a training step above inputs and gradients, KiB on " << to_string(device)
        << "\noperator          dtype     fused  composed\n";
  for (const FusedOperator& op : fused_operators()) {
    CAPTURE(op.name);
    for (const DType dtype : {f32, bf16}) {
      const FusedCase& large = op.large_on(device);
      const std::size_t fused = peak_of(large, large.fused, dtype, device);
      const std::size_t composed = peak_of(large, large.composed, dtype, device);
      CHECK(fused < composed);
      CHECK(fused == peak_of(large, large.fused, dtype, meta_of(device)));
      char line[96];
      std::snprintf(line, sizeof(line), "%-17s %-5s %9zu %9zu\n", op.name.c_str(), name_of(dtype),
                    fused / 1024, composed / 1024);
      table << line;
    }
  }
  std::cout << table.str() << std::flush;
}

TEST_CASE_FIXTURE(EachDevice, "fused: the same bits on any threads and blocks, run after run") {
  const int before = set_num_threads(1);
  for (const FusedOperator& op : fused_operators()) {
    CAPTURE(op.name);
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(dtype);
      const FusedCase& large = op.large_on(device);
      const Tensors in = large.make_inputs(dtype, device);
      release_cached();
      set_num_threads(1);
      const Tensors wanted = run(large.fused, in);
      for (const int threads : sized<std::vector<int>>({1, 2, 2}, {2})) {
        set_num_threads(threads);
        if (threads == 2) release_cached();  // cold blocks, then warm ones
        for (int again = 0; again < 2; ++again) {
          const Tensors got = run(large.fused, in);
          for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], wanted[i]));
        }
      }
    }
  }
  set_num_threads(before);
}

TEST_CASE_FIXTURE(EachDevice, "fused: gelu keeps x, swiglu what the wanted gradients need") {
  for (const DType dtype : {f64, f32, bf16}) {
    const FusedCase& gelu_one = operator_named("gelu").large;
    const std::size_t one = static_cast<std::size_t>(numel(gelu_one.inputs[0])) * size_of(dtype);
    CHECK(saved_with(gelu_one, dtype, device, 0) == 0);
    CHECK(saved_with(gelu_one, dtype, device, 1) == one);
    const FusedCase& swiglu_one = operator_named("swiglu").large;
    CHECK(saved_with(swiglu_one, dtype, device, 0) == 0);
    CHECK(saved_with(swiglu_one, dtype, device, 1) == 2 * one);  // of the gate: both
    CHECK(saved_with(swiglu_one, dtype, device, 2) == one);      // of x: the gate
    CHECK(saved_with(swiglu_one, dtype, device, 3) == 2 * one);
  }
}

TEST_CASE("fused: a pairwise table has all pairs, and few rows") {
  for (const std::vector<int>& levels :
       {std::vector<int>{2, 2, 2, 2, 2, 2, 2}, {6, 6, 6, 6, 4, 3}, {3, 1, 2}, {5, 4}}) {
    const auto rows = pairwise(levels);
    std::set<std::vector<int>> pairs;
    std::size_t wanted = 0;
    for (int i = 0; i < static_cast<int>(levels.size()); ++i) {
      for (int j = 0; j < i; ++j) {
        const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(j);
        wanted += static_cast<std::size_t>(levels[a] * levels[b]);
        for (const std::vector<int>& row : rows) {
          CHECK(row[a] < levels[a]);
          pairs.insert({i, j, row[a], row[b]});
        }
      }
    }
    CHECK(pairs.size() == wanted);
    CHECK(rows.size() <= 80);
  }
}
