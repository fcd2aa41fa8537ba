// Cross entropy without logits in memory, against the composition that makes them.
#include "quipu/ops/loss/linear_cross_entropy.h"

#include <numeric>

#include "loss_checks.h"
#include "quipu/ops/loss/linear_cross_entropy_kernels.h"
#include "quipu/ops/matmul/kernels.h"
#include "quipu/ops/matmul/matmul.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

struct LinearCase {
  Shape shape;  // of x
  std::int64_t classes;
  CrossEntropyOptions options = {};
  bool with_bias = false, some_ignored = false;

  /// x, weight, targets and perhaps the bias.
  Inputs inputs(DType dtype, Device device) const {
    Shape rows = shape;
    rows.erase(rows.size() - 1);
    std::vector<std::int64_t> values;
    for (std::int64_t r = 0; r < numel(rows); ++r) {
      const bool ignored = some_ignored && r % 3 == 1;
      values.push_back(ignored ? *options.ignore_index : (r * 7 + 3) % classes);
    }
    Inputs in{normals(shape, dtype, device, 1), normals({classes, shape.back()}, dtype, device, 2),
              from(values, rows, i64, device)};
    if (with_bias) in.push_back(normals({classes}, dtype, device, 3));
    return in;
  }
  Function fused() const {
    return [o = options](const Inputs& in) {
      return linear_cross_entropy(in[0], in[1], in[2], o, in.size() > 3 ? in[3] : Tensor());
    };
  }
  Function composed() const {
    return [o = options](const Inputs& in) {
      const Tensor bias = in.size() > 3 ? in[3] : Tensor();
      return linear_cross_entropy_composed(in[0], in[1], in[2], o, bias);
    };
  }
  std::string name() const {
    return to_string(shape) + " " + std::to_string(classes) + " classes smoothing " +
           std::to_string(options.label_smoothing) + " reduction " +
           std::to_string(static_cast<int>(options.reduction)) + (with_bias ? " bias" : "");
  }
};

std::vector<LinearCase> cases_of(const std::vector<std::pair<Shape, std::int64_t>>& sizes) {
  std::vector<LinearCase> cases;
  for (const auto& [shape, classes] : sizes) {
    cases.push_back({shape, classes});
    cases.push_back(
        {shape, classes, {.label_smoothing = 0.1, .reduction = LossReduction::sum}, true});
    cases.push_back(
        {shape, classes, {.ignore_index = 0, .reduction = LossReduction::none}, true, true});
    cases.push_back({shape, classes, {.ignore_index = -1, .label_smoothing = 0.3}, false, true});
  }
  return cases;
}

std::vector<LinearCase> small_cases() {
  return cases_of({{{3}, 4},
                   {{1, 1}, 1},
                   {{5, 2}, 3},
                   {{2, 3, 4}, 5},
                   {{7, 1}, 2},
                   {{0, 3}, 4},
                   {{2, 0}, 3},
                   {{33, 3}, 17},
                   {{2, 2, 2, 3}, 2}});
}
/// Several parts: 128 rows each at this number of classes, or 4096.
std::vector<LinearCase> large_cases(Device device = cpu) {
  if (is_emulated(device)) return cases_of({{{3, 2}, 1100}, {{2, 2100, 3}, 2}});
  return cases_of({{{130, 3}, 33000}, {{2, 2100, 5}, 7}});
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: gradients") {
  for (const LinearCase& c : small_cases()) {
    CAPTURE(c.name());
    expect_gradients(c.fused(), c.inputs(f64, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: every subset of inputs that want gradients") {
  for (const LinearCase& c : {LinearCase{{3, 4}, 5, {}, true},
                              LinearCase{{2, 2, 3}, 4, {.label_smoothing = 0.2}, true}}) {
    CAPTURE(c.name());
    expect_gradients_of_subsets(c.fused(), c.inputs(f64, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: agrees with its composition") {
  std::vector<LinearCase> cases = small_cases();
  for (const LinearCase& c : large_cases(device)) cases.push_back(c);
  for (const LinearCase& c : cases) {
    CAPTURE(c.name());
    // Large logits cost digits. Their gradient is rounded before the products, as it would be if
    // it were a tensor.
    check_composition(c.fused(), c.composed(), c.inputs(f64, device), 16, 2);
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: any strides") {
  for (const LinearCase& c : small_cases()) {
    CAPTURE(c.name());
    const Inputs in = c.inputs(f64, device);
    const auto wanted = outcome(c.fused(), in);
    for (std::size_t layout = 0; layout < 2; ++layout) {
      Inputs views;
      for (const Tensor& x : in) views.push_back(strided_forms(x)[layout]);
      const auto got = outcome(c.fused(), views);
      for (std::size_t k = 0; k < got.size(); ++k) {
        CHECK(allclose(got[k], wanted[k], {1e-13, 1e-13}));
      }
    }
  }
  const Tensor targets = zeros({4}, i64, device);
  const auto parts_of_one = [&](const Inputs& in) {
    return linear_cross_entropy(in[0].slice(1, 0, 3), in[0].slice(1, 1, 4), targets, {},
                                in[0].select(1, 2));
  };
  expect_gradients(parts_of_one, {normals({4, 5}, f64, device)});
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: backward without a tape adds") {
  for (const LinearCase& c : small_cases()) {
    if (!c.with_bias) continue;
    CAPTURE(c.name());
    const Inputs in = c.inputs(f64, device);
    const auto wanted = outcome(c.fused(), in);
    const Tensor up = normals(wanted[0].shape(), f32, device, 7).to(bf16).to(f64);
    const Tensor d_x = ones(in[0].shape(), f64, device), d_w = ones(in[1].shape(), f64, device),
                 d_b = ones(in[3].shape(), f64, device);
    linear_cross_entropy_backward(in[0], in[1], in[2], up, Grad::add_to(d_x), Grad::add_to(d_w),
                                  Grad::add_to(d_b), c.options, in[3]);
    CHECK(allclose(d_x.add_(-1), wanted[1], {1e-12, 1e-12}));
    CHECK(allclose(d_w.add_(-1), wanted[2], {1e-12, 1e-12}));
    CHECK(allclose(d_b.add_(-1), wanted[3], {1e-12, 1e-12}));
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: keeps its inputs and two numbers a row") {
  for (const LinearCase& c : small_cases()) {
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(c.name());
      const Inputs in = c.inputs(dtype, device);
      std::size_t bytes =
          2 * static_cast<std::size_t>(in[2].numel()) * size_of(compute_type(dtype));
      for (const Tensor& x : in) bytes += x.nbytes();
      CHECK(saved_bytes(c.fused(), in) == bytes);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: the same bits for any number of threads") {
  for (const LinearCase& c : large_cases(device)) {
    CAPTURE(c.name());
    check_threads(c.fused(), c.inputs(bf16, device));
    check_threads(c.fused(), c.inputs(f32, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: meta knows the peak") {
  for (const LinearCase& c : large_cases(device)) {
    CAPTURE(c.name());
    check_peak_on_meta(c.fused(), c.inputs(bf16, device));
    check_peak_on_meta(c.fused(), c.inputs(f32, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear_cross_entropy: the peak holds few logits") {
  // 4096 rows of 10000 classes: 156 MiB of logits, of which 16 MiB at a time.
  const Device meta = meta_of(device);
  const LinearCase c{{4096, 64}, 10000};
  const Inputs in{empty({4096, 64}, f32, meta), empty({10000, 64}, f32, meta),
                  empty({4096}, i64, meta)};
  const std::size_t gradients = in[0].nbytes() + in[1].nbytes();
  const std::size_t rows = static_cast<std::size_t>(rows_of_logits(4096, 10000));
  const std::size_t peak = training_peak(c.fused(), in, meta);
  CHECK(rows * 10000 * 4 <= 16 << 20);
  const auto library =
      static_cast<std::size_t>(matmul_workspace(device.kind(), rows_of_logits(4096, 10000), 10000));
  // The gradient of a part's rows is a sum over the classes.
  const auto parts = static_cast<std::size_t>(
      matmul_parts(device.kind(), 1, rows_of_logits(4096, 10000), 64, 10000));
  const std::size_t sums = parts > 1 ? parts * (rows + 1) * 64 * 4 : 0;
  CHECK(peak <= library + sums + gradients + rows * 10000 * 4 + 2 * 4096 * 4 + 4096);
  CHECK(training_peak(c.composed(), in, meta) > 8 * peak);
}

TEST_CASE("linear_cross_entropy: parts are even") {
  CHECK(rows_of_logits(0, 5) == 1);
  CHECK(rows_of_logits(4096, 5) == 4096);
  CHECK(rows_of_logits(4097, 5) == 2049);
  CHECK(rows_of_logits(300, 1 << 20) == 100);
}

TEST_CASE("linear_cross_entropy: says what does not fit") {
  const Tensor x = ones({2, 3, 4}), w = ones({5, 4}), targets = zeros({2, 3}, i64);
  const auto expect = [](const Tensor& a, const Tensor& b, const Tensor& t, const Tensor& bias,
                         const auto&... parts) {
    expect_error([&] { linear_cross_entropy(a, b, t, {}, bias); }, "linear_cross_entropy",
                 parts...);
  };
  expect(x, ones({5, 3}), targets, {}, "weight has shape (5, 3)", "(classes, 4)");
  expect(x, ones({4}), targets, {}, "weight has shape (4,)");
  expect(x, w.to(f64), targets, {}, "weight is f64");
  expect(x, w, zeros({2}, i64), {}, "targets has shape (2,)", "(2, 3)");
  expect(x, w, targets, ones({4}), "bias has shape (4,)", "5 classes");
  expect(x, w, targets, ones({5}, f64), "bias is f64");
  const Tensor wrong = zeros({2, 3}, i64);
  wrong[1][1].fill_(5);
  expect(x, w, wrong, {}, "targets at (1, 1) is 5", "5 classes");
  expect_error([&] { linear_cross_entropy(x, w, targets, {.label_smoothing = -1}); },
               "label_smoothing is -1");
  const Tensor d = zeros({3, 4});
  expect_error(
      [&] { linear_cross_entropy_backward(x, w, targets, ones({}), Grad::write_to(d), {}); },
      "linear_cross_entropy_backward", "d_x has shape (3, 4)");
  expect_error([&] { linear_cross_entropy_backward(x, w, targets, ones({2}), {}, {}); },
               "d_o has shape (2,)");
}
