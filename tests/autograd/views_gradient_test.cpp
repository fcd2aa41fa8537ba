// Gradients through views and copies, against index arithmetic.
#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"
#include "support/view_model.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

using Values = std::vector<double>;

/// How the end of a chain of views meets its upstream gradient, and where the chain begins.
struct Variation {
  bool operator_behind;  // another operator writes into the gradient of the last view
  bool operator_before;  // the views are of a recorded tensor, not of a leaf
  bool hooks;            // on every view
  bool twice;            // the gradient is added to one that is there
};

std::string to_string(const Variation& v) {
  return detail::concat("operator behind: ", v.operator_behind, ", before: ", v.operator_before,
                        ", hooks: ", v.hooks, ", twice: ", v.twice);
}

/// A chain of random views: the steps, and of each tensor on the way what the last view is of it.
struct Chain {
  std::string text;
  std::vector<ViewStep> steps;
  std::vector<Shape> shapes;         // of the start and after each step
  std::vector<ViewModel> last_seen;  // the last view as a view of tensor i

  Chain(const Shape& start, int length, RandomSteps& random)
      : text(quipu::to_string(start)), shapes{start} {
    // Steps depend on shapes alone, so meta is enough to find them.
    Tensor x = empty(start, f64, "meta:cpu");
    last_seen.emplace_back(start);
    for (int i = 0; i < length; ++i) {
      steps.push_back(random.next(x.shape()));
      x = steps.back().on_tensor(x);
      text += "." + steps.back().text;
      shapes.push_back(x.shape());
      for (ViewModel& model : last_seen) model = steps.back().on_model(model);
      last_seen.emplace_back(x.shape());
    }
  }
};

void check_chain(const Chain& chain, const Variation& variation, const Values& upstream,
                 Device device) {
  CAPTURE(chain.text);
  CAPTURE(to_string(variation));
  const Tensor leaf = zeros(chain.shapes[0], f64, device).set_requires_grad();
  const int rounds = variation.twice ? 2 : 1;
  for (int round = 0; round < rounds; ++round) {
    Tape tape;
    std::vector<std::vector<Values>> seen(chain.shapes.size());
    Tensor x = variation.operator_before ? leaf * 3.0 : leaf;
    for (std::size_t i = 0; i < chain.steps.size(); ++i) {
      const Tensor next = chain.steps[i].on_tensor(x);
      if (variation.hooks && !next.same_as(x)) {  // contiguous() may return its input
        next.add_hook([&seen, i](const Tensor& gradient) {
          seen[i + 1].push_back(gradient.to_vector());
          return Tensor();
        });
      }
      x = next;
    }
    const Tensor u = from(upstream, x.shape(), f64, device);
    if (variation.operator_behind) {
      tape.backward(x * u, {ones(x.shape(), f64, device), false});
    } else {
      tape.backward(x, {u, false});
      REQUIRE(u.to_vector() == upstream);  // borrowed
    }
    for (std::size_t i = 1; i < seen.size(); ++i) {
      if (seen[i].empty()) continue;
      REQUIRE(seen[i].size() == 1);  // a hook runs once
      REQUIRE(seen[i][0] == chain.last_seen[i].gradient(upstream, numel(chain.shapes[i])));
    }
  }
  Values wanted = chain.last_seen[0].gradient(upstream, leaf.numel());
  for (double& g : wanted) g *= rounds * (variation.operator_before ? 3 : 1);
  REQUIRE(leaf.grad().shape() == leaf.shape());
  REQUIRE(leaf.grad().to_vector() == wanted);
}

const std::vector<Shape> starts{{2, 3, 4}, {6}, {1, 6, 1}, {3, 0, 2}, {4, 1, 3, 2}, {}};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "views: gradients through random chains, with and without hooks") {
  for (unsigned seed = 0; seed < 240; ++seed) {
    RandomSteps random(seed);
    const Chain chain(starts[seed % starts.size()], 1 + static_cast<int>(seed % 5), random);
    const Values upstream = random.upstream(numel(chain.shapes.back()));
    for (unsigned bits = 0; bits < 16; ++bits) {
      check_chain(chain, {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0},
                  upstream, device);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "views: gradients of many views of one tensor add up") {
  const std::vector<Shape> shapes{{4, 6}, {5, 3, 2}, {12}};
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    RandomSteps random(seed + 1000);
    const Shape& shape = shapes[seed % shapes.size()];
    const Tensor leaf = ones(shape, f64, device).set_requires_grad();
    Values wanted(static_cast<std::size_t>(leaf.numel()), 0);
    Tape tape;
    const Tensor parent = leaf * 1.0;
    Tensor loss = zeros({}, f64, device);
    for (int branch = 0; branch < 4; ++branch) {
      const Chain chain(shape, 1 + branch % 3, random);
      const Values u = random.upstream(numel(chain.shapes.back()));
      Tensor x = branch % 2 ? parent : leaf;
      for (const ViewStep& step : chain.steps) x = step.on_tensor(x);
      loss = loss + sum(x * from(u, x.shape(), f64, device));
      const Values part = chain.last_seen[0].gradient(u, leaf.numel());
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += part[i];
    }
    tape.backward(loss);
    CHECK(leaf.grad().to_vector() == wanted);
  }
}

TEST_CASE_FIXTURE(EachDevice, "views: without a hook a view has no gradient buffer of its own") {
  const Tensor w = ones({8, 6}, f64, device).set_requires_grad();
  const Tensor factor = full({4, 6}, 2, f64, device);
  for (const bool hooked : {false, true}) {
    w.zero_grad();
    Tape tape;
    const Tensor part = w.slice(0, 2, 6);
    Tensor seen;
    if (hooked) {
      part.add_hook([&](const Tensor& gradient) {
        seen = gradient;
        return gradient * 10.0;
      });
    }
    const Tensor product = part * factor;
    const std::uint64_t before = memory_stats(device).allocations;
    const Tensor u = ones({4, 6}, f64, device);
    tape.backward(product, {u, false});
    Values wanted(48, 0);
    std::fill(wanted.begin() + 12, wanted.begin() + 36, hooked ? 20 : 2);
    CHECK(w.grad().to_vector() == wanted);
    if (hooked) {
      CHECK(&seen.storage() != &w.grad().storage());
      CHECK(seen.to_vector() == Values(24, 2));  // as it was before the hook changed it
    } else {
      CHECK(memory_stats(device).allocations == before + 2);  // u and the gradient of w
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "views: a gradient in another type flows through views and casts") {
  const Tensor w = ones({4, 3}, bf16, device).set_requires_grad();
  w.set_grad_dtype(f32);
  Tape tape;
  const Tensor y = w.t()(slice(1, 3)).to(f64).reshape({8});
  tape.backward(y, {full({8}, 1 + 0x1p-12, f64, device), false});
  CHECK(w.grad().dtype() == f32);
  CHECK(w.grad()[0].to_vector() == Values{0, 1 + 0x1p-12, 1 + 0x1p-12});
}

TEST_CASE_FIXTURE(EachDevice, "views: gradcheck of every kind of view") {
  const Tensor x = rand({3, 4, 5}, f64, device).set_requires_grad();
  const Tensor column = rand({3, 1, 5}, f64, device).set_requires_grad();
  const auto check = [](const char* name, const std::function<Tensor(const Tensor&)>& f,
                        const Tensor& input) {
    const GradcheckResult result =
        gradcheck([&](const std::vector<Tensor>& in) { return f(in[0]) * f(in[0]); }, {input});
    INFO(name << ": " << result.report);
    CHECK(result.ok);
  };
  check(
      "reshape",
      [](const Tensor& t) {
        return t.reshape({2, -1});
      },
      x);
  check(
      "reshape of strided", [](const Tensor& t) { return t.t().reshape({-1}); }, x);
  check(
      "view",
      [](const Tensor& t) {
        return t.view({12, 5});
      },
      x);
  check(
      "transpose", [](const Tensor& t) { return t.transpose(0, -1); }, x);
  check(
      "permute",
      [](const Tensor& t) {
        return t.permute({2, 0, 1});
      },
      x);
  check(
      "slice", [](const Tensor& t) { return t.slice(1, 1, 4, 2); }, x);
  check(
      "select", [](const Tensor& t) { return t.select(-1, 2); }, x);
  check(
      "unsqueeze", [](const Tensor& t) { return t.unsqueeze(1); }, x);
  check(
      "squeeze", [](const Tensor& t) { return t.squeeze(); }, column);
  check(
      "expand",
      [](const Tensor& t) {
        return t.expand({2, 3, 4, 5});
      },
      column);
  check(
      "index", [](const Tensor& t) { return t(1, rest, slice(1, {}, 2), new_axis); }, x);
  check(
      "contiguous", [](const Tensor& t) { return t.t().contiguous(); }, x);
  check(
      "clone", [](const Tensor& t) { return t.clone(); }, x);
}

TEST_CASE_FIXTURE(EachDevice,
                  "views: gradients on meta have shapes and cost what they cost on the device") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    RandomSteps random(seed + 500);
    const Chain chain(starts[seed % starts.size()], 4, random);
    CAPTURE(chain.text);
    std::vector<std::size_t> peaks;
    for (const Device where : {device, meta_of(device)}) {
      const Tensor leaf = zeros(chain.shapes[0], f64, where).set_requires_grad();
      const PeakMemory peak(where);
      Tape tape;
      Tensor x = leaf;
      for (const ViewStep& step : chain.steps) x = step.on_tensor(x);
      tape.backward(sum(x * x));
      CHECK(leaf.grad().shape() == leaf.shape());
      peaks.push_back(peak.bytes_above());
    }
    CHECK(peaks[0] == peaks[1]);
  }
}
