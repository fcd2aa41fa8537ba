// Position encodings: what they keep and hold, on meta too, and what they refuse.
#include "lrpe_support.h"
#include "quipu/ops/lrpe/kernels.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::positions;

TEST_CASE_FIXTURE(EachDevice, "lrpe: keeps theta or angles, and x if there is an activation") {
  for (const Case& c : all_cases()) {
    CAPTURE(c.text());
    for (const DType dtype : {f64, bf16}) {
      const Tensor x = input_of(c.shape, dtype, device);
      const bool headless = c.shape.size() == 3, md = c.op == Op::cosine_md;
      const std::int64_t rows =
          md ? c.shape[1] * c.shape[2] : c.shape[1] * (headless ? 1 : c.shape[2]);
      const std::int64_t table = rows * c.angles() * (dtype == f64 ? 8 : 4);
      const std::size_t kept =
          c.keep ? static_cast<std::size_t>(table) : c.make_theta(dtype, device).nbytes();
      CHECK(saved_bytes(c.fused(dtype, device), x) == kept + (c.act == Act::none ? 0 : x.nbytes()));
    }
  }
}

namespace {

/// Bytes that backward takes in f32 to know the columns of softmax over the sequence.
std::size_t noted_of_columns(const Case& c, DeviceKind kind) {
  RowTransform transform;
  transform.act = c.act;
  transform.over_sequence = c.dim == 1 || c.dim == -2;
  const bool rotates = c.op == Op::rotate;  // (b, t, h, d)
  const Shape shape{c.shape[0], c.shape[rotates ? 2 : 1], c.shape[rotates ? 1 : 2], c.shape[3]};
  return 4 * static_cast<std::size_t>(lrpe_workspace(kind, transform, shape, true));
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "lrpe: holds what it must, and no more") {
  std::vector<Case> cases;
  add_acts(cases, {Op::rotate, {4, 64, 6, 64}, {6, 32}}, 1);
  add_acts(cases, {Op::cosine_md, {4, 6, 64, 64}, {6, 32}, {}, {}, 0, {8, 8}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    for (const DType dtype : {f32, bf16}) {
      const std::size_t one = static_cast<std::size_t>(numel(c.shape)) * size_of(dtype);
      const std::size_t wide = c.op == Op::rotate ? one : 2 * one;
      // Output, upstream and gradient, and what a back end notes of columns.
      const auto held = [&](DeviceKind kind) { return one + 2 * wide + noted_of_columns(c, kind); };
      CHECK(training_peak(c.fused(dtype, device), c.shape, dtype, device) == held(device.kind()));
      CHECK(training_peak(c.composed(dtype, device), c.shape, dtype, device) > held(device.kind()));
      CHECK(training_peak(c.fused(dtype, meta_cpu), c.shape, dtype, meta_cpu) ==
            held(DeviceKind::cpu));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: no table without a tape") {
  const Tensor x = ones({2, 16, 4, 32}, f32, device), theta = ones({4, 16}, f32, device);
  x.set_requires_grad();
  const PeakMemory peak(device);
  lrpe_rotate(x, theta, {.keep_angles = true});
  CHECK(peak.bytes_above() == x.nbytes());
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: meta has the same shapes and peaks") {
  const Device meta(device.kind(), 0, true);
  for (const Case& c : all_cases()) {
    CAPTURE(c.text());
    const Outcome dry = run(c.fused(bf16, meta), empty(c.shape, bf16, meta));
    CHECK(dry.o.shape() == c.fused(bf16, device)(input_of(c.shape, bf16, device)).shape());
    CHECK(dry.d_x.shape() == c.shape);
    CHECK(training_peak(c.fused(bf16, meta), c.shape, bf16, meta) ==
          training_peak(c.fused(bf16, device), c.shape, bf16, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: sizes 0") {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{0, 3, 2, 4}, Shape{2, 0, 2, 4}, Shape{2, 3, 0, 4}}) {
    add_acts(cases, {Op::rotate, shape, {shape[2], 2}}, 1);
    add_acts(cases, {Op::cosine, shape, {shape[2], 4}, {}, {}, 0, {}, true}, 1);
  }
  add_acts(cases, {Op::rotate, {2, 3, 2, 0}, {2, 0}}, 1);
  add_acts(cases, {Op::cosine_md, {2, 3, 0, 4}, {3, 2}, {}, {}, 0, {0, 5}}, -2);
  add_acts(cases, {Op::cosine_md, {2, 3, 2, 4}, {3, 2}, {}, {}, 2, {5, 0}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    const Outcome result = run(c.fused(f32, device), input_of(c.shape, f32, device));
    CHECK(result.d_x.shape() == c.shape);
  }
}

TEST_CASE("lrpe: says what does not fit") {
  const Tensor x = ones({2, 3, 4, 6}), theta = ones({4, 3});
  expect_error(
      [&] {
        lrpe_rotate(x, ones({4, 4}));
      },
      "lrpe_rotate", "theta has shape (4, 4)", "no more than 3 angles");
  expect_error([&] { lrpe_cosine(x, ones({4, 7})); }, "lrpe_cosine", "(4, 7)");
  expect_error([&] { lrpe_rotate(x, ones({3, 3})); }, "theta has shape (3, 3)", "4 heads");
  expect_error([&] { lrpe_rotate(x, ones({3})); }, "theta has shape (3,)", "two dimensions");
  expect_error([&] { lrpe_rotate(ones({2, 3, 5}), ones({1, 1})); }, "x has 5 features", "even");
  expect_error([&] { lrpe_rotate(ones({2, 3}), theta); }, "x has shape (2, 3)", "(b, n, h, d)");
  expect_error([&] { lrpe_rotate(arange(24).reshape({1, 1, 4, 6}), theta); }, "x is i64");
  expect_error([&] { lrpe_rotate(x.to(f64), theta); }, "theta is f32", "must be f64");
  expect_error([&] { lrpe_rotate(x, theta.to(f64)); }, "theta is f64", "must be f32");
  expect_error([&] { lrpe_rotate(x.to(bf16), theta.to(f16)); }, "theta is f16", "bf16 or f32");
  expect_error([&] { lrpe_rotate(x, empty({4, 3}, f32, meta_cpu)); }, "lrpe_rotate", "meta");
  expect_error([&] { lrpe_rotate(x, theta, {.act = Act::softmax}); }, "softmax needs a dim");
  expect_error([&] { lrpe_rotate(x, theta, {.act = Act::softmax, .dim = 2}); }, "dim 2");
  expect_error([&] { lrpe_rotate(x, theta, {.act = Act::softmax, .dim = 0}); }, "dim 0");
  expect_error([&] { lrpe_rotate(x, theta, {.act = Act::relu, .dim = 1}); },
               "relu was given dim 1");
  expect_error([&] { lrpe_rotate(ones({1, 1, 8194}), ones({1, 1})); }, "8194 features", "8192");
  expect_error(
      [&] {
        lrpe_rotate_backward(x, theta, ones({2, 3, 4, 5}), Grad::write_to(x));
      },
      "lrpe_rotate_backward", "d_o has shape (2, 3, 4, 5)");

  const Tensor y = ones({2, 3, 10, 7}), angles = ones({3, 4});
  expect_error(
      [&] {
        lrpe_cosine_md(y, ones({3, 3}), {2, 5});
      },
      "lrpe_cosine_md", "at least 4 columns");
  expect_error([&] { lrpe_cosine_md(y, angles, {2, 4}); }, "x has 10 tokens", "(2, 4)");
  expect_error([&] { lrpe_cosine_md(y, angles, {2, 5}, {.l = 1}); }, "x has 10 tokens", "1 + 10");
  expect_error([&] { lrpe_cosine_md(y, angles, {2, 6}, {.l = -2}); }, "l is -2");
  expect_error([&] { lrpe_cosine_md(y, angles, {}); }, "at least one axis");
  expect_error([&] { lrpe_cosine_md(y, angles, {-2, -5}); }, "lrpe_cosine_md", "-2");
  expect_error([&] { lrpe_cosine_md(ones({3, 10, 7}), angles, {2, 5}); }, "(3, 10, 7)");
  expect_error(
      [&] {
        lrpe_cosine_md(y, angles, {2, 5}, {.act = Act::softmax, .dim = 1});
      },
      "dim 1");
}
