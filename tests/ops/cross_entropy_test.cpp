// Cross entropy against its composition: values, gradients, memory, and the ends of the range.
#include "quipu/ops/loss/cross_entropy.h"

#include <limits>

#include "loss_checks.h"
#include "quipu/ops/pointwise/arithmetic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct LossCase {
  Shape shape;  // of the logits
  CrossEntropyOptions options;
  bool some_ignored = false;

  Tensor logits(DType dtype, Device device) const { return normals(shape, dtype, device) * 2; }
  Tensor targets(Device device) const {
    Shape rows = shape;
    const std::int64_t classes = rows.back();
    rows.erase(rows.size() - 1);
    std::vector<std::int64_t> values;
    for (std::int64_t r = 0; r < numel(rows); ++r) {
      const bool ignored = some_ignored && r % 3 == 1;
      values.push_back(ignored ? *options.ignore_index : (r * 7 + 3) % classes);
    }
    return from(values, rows, i64, device);
  }
  Inputs inputs(DType dtype, Device device) const {
    return {logits(dtype, device), targets(device)};
  }
  Function fused() const {
    return [o = options](const Inputs& in) { return cross_entropy(in[0], in[1], o); };
  }
  Function composed() const {
    return [o = options](const Inputs& in) { return cross_entropy_composed(in[0], in[1], o); };
  }
  std::string name() const {
    return to_string(shape) + " smoothing " + std::to_string(options.label_smoothing) +
           " reduction " + std::to_string(static_cast<int>(options.reduction)) +
           (some_ignored ? " some ignored" : "");
  }
};

std::vector<LossCase> cases_of(const std::vector<Shape>& shapes) {
  std::vector<LossCase> cases;
  for (const Shape& shape : shapes) {
    cases.push_back({shape, {}});
    cases.push_back({shape, {.label_smoothing = 0.1, .reduction = LossReduction::sum}});
    cases.push_back({shape, {.ignore_index = 2, .reduction = LossReduction::none}, true});
    cases.push_back({shape, {.ignore_index = -1, .label_smoothing = 0.3}, true});
  }
  return cases;
}

std::vector<LossCase> small_cases() {
  return cases_of({{3}, {1}, {1, 1}, {5, 4}, {2, 3, 7}, {4, 33}, {0, 3}, {67, 3}, {2, 1, 2, 5}});
}
/// Rows of several pieces, and rows enough for several tasks.
std::vector<LossCase> large_cases() {
  return cases_of({{3, 5003}, {700, 37}});
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: gradients") {
  for (const LossCase& c : small_cases()) {
    CAPTURE(c.name());
    expect_gradients(c.fused(), c.inputs(f64, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: agrees with its composition") {
  std::vector<LossCase> cases = small_cases();
  for (const LossCase& c : large_cases()) cases.push_back(c);
  for (const LossCase& c : cases) {
    CAPTURE(c.name());
    check_composition(c.fused(), c.composed(), c.inputs(f64, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: the comparison catches what is a little off") {
  const LossCase c{{5, 4}, {.label_smoothing = 0.1}}, off{{5, 4}, {.label_smoothing = 0.1 + 1e-6}};
  const auto right = outcome(c.composed(), c.inputs(f64, device));
  const auto wrong = outcome(off.composed(), off.inputs(f64, device));
  for (std::size_t k = 0; k < right.size(); ++k) CHECK(distance(wrong[k], right[k]) > 1e-8);
  CHECK(!(distance(full({2}, std::nan(""), f64, device), ones({2}, f64, device)) <= 1e9));
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: the loss is f32 at least, and i32 targets do") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const Tensor logits = normals({4, 5}, dtype, device), targets = zeros({4}, i64, device);
    const Tensor loss = cross_entropy(logits, targets);
    CHECK(loss.dtype() == compute_type(dtype));
    CHECK(loss.shape() == Shape{});
    CHECK(same_bits(loss, cross_entropy(logits, targets.to(i32))));
  }
  // A gradient that f16 could not hold reaches the logits, because it is multiplied first.
  const Tensor logits = zeros({1000, 2}, f16, device).set_requires_grad();
  Tape tape;
  tape.backward(cross_entropy(logits, zeros({1000}, i64, device)) * 1e6);
  CHECK(allclose(logits.grad().slice(1, 1), full({1000, 1}, 500, f16, device)));
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: any strides") {
  for (const LossCase& c : small_cases()) {
    CAPTURE(c.name());
    check_layouts(c.fused(), c.inputs(f64, device));
  }
  // A slice of the sequence, as language models take it, needs no copy.
  const Tensor logits = normals({3, 6, 50}, f32, device), targets = zeros({3, 5}, i64, device);
  const Tensor dense = cross_entropy(logits.slice(1, 0, 5).contiguous(), targets);
  const PeakMemory peak(device);
  CHECK(same_bits(cross_entropy(logits.slice(1, 0, 5), targets), dense));
  CHECK(peak.bytes_above() <= 3 * 512);
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: gradients of strided leaves and upstreams") {
  const Tensor targets = from({std::int64_t{1}, std::int64_t{0}, std::int64_t{2}}, i64, device);
  const auto f = [&](const Inputs& in) {
    const Tensor losses = cross_entropy(in[0].slice(1, 1, 7, 2).expand({3, 3}), targets,
                                        {.reduction = LossReduction::none});
    return losses.unsqueeze(0).expand({4, 3});
  };
  expect_gradients(f, {normals({3, 7}, f64, device)});
  const auto transposed = [&](const Inputs& in) { return cross_entropy(in[0].t(), targets); };
  expect_gradients(transposed, {normals({5, 3}, f64, device)});
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: the mean of nothing is 0") {
  const Tensor logits = normals({3, 4}, f32, device).set_requires_grad();
  Tape tape;
  const Tensor loss = cross_entropy(logits, full({3}, -100, i64, device));
  CHECK(loss.item() == 0);
  tape.backward(loss);
  CHECK(same_bits(logits.grad(), zeros({3, 4}, f32, device)));
  CHECK(cross_entropy(zeros({0, 4}, f32, device), zeros({0}, i64, device)).item() == 0);
  CHECK(cross_entropy(zeros({2, 0}, f32, device), full({2}, -100, i64, device)).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: rows that are ignored may hold anything") {
  const Tensor logits =
      from({1.0, 2.0, 3.0, std::nan(""), infinity, -infinity}, {2, 3}, f64, device)
          .set_requires_grad();
  Tape tape;
  const Tensor targets = from({std::int64_t{1}, std::int64_t{-100}}, i64, device);
  const Tensor loss = cross_entropy(logits, targets);
  CHECK(loss.item() == doctest::Approx(1.4076059644443804));
  tape.backward(loss);
  CHECK(same_bits(logits.grad()[1], zeros({3}, f64, device)));
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: classes that cannot be, and logits at the ends") {
  const CrossEntropyOptions each{.reduction = LossReduction::none};
  for (const std::int64_t classes : {3, 5003}) {
    for (const DType dtype : {f64, f32}) {
      const Tensor logits = full({4, classes}, -infinity, dtype, device);
      logits.slice(0, 0, 2).slice(1, classes - 1).fill_(5);
      logits.slice(0, 2, 3).fill_(dtype == f64 ? 1e300 : 1e38);
      logits.set_requires_grad();
      const std::int64_t last = classes - 1;
      const Tensor targets = from({last, std::int64_t{0}, last, std::int64_t{1}}, i64, device);
      Tape tape;
      const Tensor losses = cross_entropy(logits, targets, each);
      const std::vector<double> got = losses.to_vector();
      CHECK(got[0] == 0);
      CHECK(got[1] == infinity);
      CHECK(got[2] == doctest::Approx(std::log(static_cast<double>(classes))));
      CHECK(std::isnan(got[3]));
      tape.backward(losses, {ones({4}, dtype, device), false});
      const Tensor d = logits.grad();
      CHECK(same_bits(d[0], zeros({classes}, dtype, device)));
      CHECK(d[1][0].item() == -1);
      CHECK(d[1][last].item() == 1);
      CHECK(d[1][1].item() == 0);
    }
  }
  // NaN shows.
  const Tensor bad = from({1.0, std::nan(""), 0.0}, {1, 3}, f64, device);
  CHECK(std::isnan(cross_entropy(bad, zeros({1}, i64, device)).item()));
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: smoothing all of the weight ignores the target") {
  const Tensor logits = normals({4, 5}, f64, device);
  const CrossEntropyOptions all_spread{.label_smoothing = 1};
  CHECK(allclose(cross_entropy(logits, zeros({4}, i64, device), all_spread),
                 cross_entropy(logits, ones({4}, i64, device), all_spread)));
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: backward without a tape adds to what is there") {
  for (const LossCase& c : small_cases()) {
    CAPTURE(c.name());
    const Inputs in = c.inputs(f64, device);
    const auto wanted = outcome(c.fused(), in);
    const Tensor up = normals(wanted[0].shape(), f32, device, 7).to(bf16).to(f64);
    const Tensor d = ones(c.shape, f64, device), fresh = full(c.shape, 77, f64, device);
    cross_entropy_backward(in[0], in[1], up, Grad::add_to(d), c.options);
    cross_entropy_backward(in[0], in[1], up, Grad::write_to(fresh), c.options);
    CHECK(allclose(d.add_(-1), wanted[1], {1e-12, 1e-12}));
    CHECK(same_bits(fresh, wanted[1]));
  }
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: keeps logits, targets and two numbers a row") {
  for (const LossCase& c : small_cases()) {
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(c.name());
      const Inputs in = c.inputs(dtype, device);
      const auto rows = static_cast<std::size_t>(in[1].numel());
      CHECK(saved_bytes(c.fused(), in) ==
            in[0].nbytes() + in[1].nbytes() + 2 * rows * size_of(compute_type(dtype)));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "cross_entropy: the same bits for any number of threads") {
  for (const LossCase& c : large_cases()) {
    CAPTURE(c.name());
    check_threads(c.fused(), c.inputs(bf16, device));
    check_threads(c.fused(), c.inputs(f32, device));
  }
}

TEST_CASE_FIXTURE(EachDevice,
                  "cross_entropy: meta knows the peak, which is below the composition's") {
  for (const LossCase& c : large_cases()) {
    CAPTURE(c.name());
    const Inputs in = c.inputs(bf16, device);
    check_peak_on_meta(c.fused(), in);
    CHECK(training_peak(c.fused(), in, device) < training_peak(c.composed(), in, device));
  }
}

TEST_CASE("cross_entropy: says what does not fit") {
  const Tensor logits = ones({2, 3, 4}), targets = zeros({2, 3}, i64);
  const auto with = [&](std::int64_t value) {
    const Tensor t = zeros({2, 3}, i64);
    t[1][2].fill_(value);
    return t;
  };
  const auto expect = [&](const Tensor& z, const Tensor& t, const auto&... parts) {
    expect_error([&] { cross_entropy(z, t); }, "cross_entropy", parts...);
  };
  expect(ones({3}, i64), scalar_tensor(0, i64), "logits is i64");
  expect(logits, targets.to(f32), "targets is f32");
  expect(logits, zeros({2, 2}, i64), "targets has shape (2, 2)", "(2, 3)");
  expect(ones({}), scalar_tensor(0, i64), "at least one dimension");
  expect(logits, with(4), "targets at (1, 2) is 4", "4 classes", "-100 is ignored");
  expect(logits, with(-1), "targets at (1, 2) is -1");
  expect_error([&] { cross_entropy(logits, with(-100), {.ignore_index = {}}); },
               "targets at (1, 2) is -100");
  expect_error([&] { cross_entropy(logits, targets, {.label_smoothing = 1.5}); },
               "label_smoothing is 1.5");
  expect_error([&] { cross_entropy(logits, targets, {.label_smoothing = std::nan("")}); },
               "label_smoothing");
  expect_error([&] { cross_entropy(logits.to(Device("meta:cpu")), targets); }, "cross_entropy",
               "meta");
  const Tensor d = zeros({2, 3, 4});
  expect_error([&] { cross_entropy_backward(logits, targets, ones({2}), Grad::write_to(d)); },
               "cross_entropy_backward", "d_o has shape (2,)");
  expect_error([&] { cross_entropy_backward(logits, targets, ones({}), Grad::write_to(d[0])); },
               "cross_entropy_backward", "d_logits has shape (3, 4)");
}
