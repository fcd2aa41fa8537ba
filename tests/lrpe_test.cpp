// Position encodings: against their compositions, in every option, in every type.
#include <quipu/quipu.h>

#include <cmath>

#include "fused_checks.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

enum class Op { rotate, cosine, cosine_md };

/// One way to call one of the operators, on x of shape (b, n, h, d), (b, n, d) or, in several
/// dimensions, (b, h, l + prod(grid), d).
struct Case {
  Op op;
  Shape shape;
  Shape theta;
  Act act = Act::none;
  std::optional<int> dim = {};
  std::int64_t offset = 0;  // or l
  Shape grid = {};
  bool keep = false;

  LrpeOptions options() const { return {act, dim, offset, keep}; }
  LrpeMdOptions md_options() const { return {offset, act, dim, keep}; }
  std::int64_t angles() const { return shape.back() / (op == Op::rotate ? 2 : 1); }

  std::string text() const {
    const char* names[] = {"rotate ", "cosine ", "cosine_md "};
    return names[static_cast<int>(op)] + to_string(shape) + " theta " + to_string(theta) + " " +
           name_of(act) + (dim ? std::to_string(*dim) : "") + " offset " + std::to_string(offset) +
           " grid " + to_string(grid) + (keep ? " keep" : "");
  }

  Tensor make_theta(DType x, Device device) const {
    Generator generator(5);
    return randn(theta, f64, device, generator).to(x == f64 ? f64 : f32);
  }
  UnaryFunction fused(DType dtype, Device device) const {
    return [c = *this, t = make_theta(dtype, device)](const Tensor& x) {
      if (c.op == Op::rotate) return lrpe_rotate(x, t, c.options());
      if (c.op == Op::cosine) return lrpe_cosine(x, t, c.options());
      return lrpe_cosine_md(x, t, c.grid, c.md_options());
    };
  }
  UnaryFunction composed(DType dtype, Device device) const {
    return [c = *this, t = make_theta(dtype, device)](const Tensor& x) {
      if (c.op == Op::rotate) return lrpe_rotate_composed(x, t, c.options());
      if (c.op == Op::cosine) return lrpe_cosine_composed(x, t, c.options());
      return lrpe_cosine_md_composed(x, t, c.grid, c.md_options());
    };
  }
};

struct Choice {
  Act act;
  int dim;  // 0: none
};
constexpr Choice choices[] = {{Act::none, 0}, {Act::relu, 0},     {Act::sigmoid, 0},
                              {Act::silu, 0}, {Act::softmax, -1}, {Act::softmax, 1}};

/// With every activation; `sequence` is the dim of the sequence.
void add_acts(std::vector<Case>& cases, Case c, int sequence) {
  for (const Choice& choice : choices) {
    c.act = choice.act;
    c.dim = {};
    if (choice.dim != 0) c.dim = choice.dim == 1 ? sequence : -1;
    cases.push_back(c);
  }
}

/// Each shape with each activation; offsets, tables and forms of theta take turns.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto with_heads = [&](Op op, const Shape& shape) {
    const bool headless = shape.size() == 3;
    const std::int64_t h = headless ? 1 : shape[2], d = shape.back();
    const std::int64_t angles = op == Op::rotate ? d / 2 : d;
    const Shape thetas[] = {{h, angles}, {1, angles}, {h, 1}, {h, (angles + 1) / 2}};
    for (const Shape& theta : thetas) {
      const std::int64_t turn = static_cast<std::int64_t>(cases.size() / 6) % 3;
      add_acts(cases, {op, shape, theta, {}, {}, turn * 4, {}, turn == 1}, headless ? -2 : 1);
    }
  };
  for (const Op op : {Op::rotate, Op::cosine}) {
    with_heads(op, {2, 8, 2, 16});
    with_heads(op, {1, 5, 3, 34});
    with_heads(op, {3, 3, 4});
    with_heads(op, {5, 1, 1, 2});
    with_heads(op, {4, 70, 5, 6});
  }
  with_heads(Op::cosine, {2, 3, 2, 1});
  with_heads(Op::cosine, {1, 7, 3, 17});
  for (const Shape& grid : {Shape{8}, Shape{3, 3}, Shape{2, 2, 3}, Shape{2, 1, 2, 2}}) {
    for (const std::int64_t l : {0, 4}) {
      for (const std::int64_t d : {8, 17}) {
        const std::int64_t e = (d + grid.size() - 1) / grid.size();
        const Shape shape{2, 3, l + numel(grid), d};
        add_acts(cases, {Op::cosine_md, shape, {d == 8 ? 3 : 1, e}, {}, {}, l, grid, l > 0}, -2);
      }
    }
  }
  add_acts(cases, {Op::cosine_md, {1, 2, 6, 10}, {2, 7}, {}, {}, 0, {2, 3}, false}, -2);
  return cases;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "lrpe: agrees with its composition in f64, in all options") {
  for (const Case& c : all_cases()) {
    CAPTURE(c.text());
    check_composition(c.fused(f64, device), c.composed(f64, device),
                      input_of(c.shape, f64, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: gradients, in all options") {
  int checked = 0;
  for (const Case& c : all_cases()) {
    if (numel(c.shape) > 512) continue;
    CAPTURE(c.text());
    expect_gradients(c.fused(f64, device), input_of(c.shape, f64, device));
    ++checked;
  }
  CHECK(checked > 200);
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: more columns, tokens and batch entries than a task has") {
  std::vector<Case> cases;
  add_acts(cases, {Op::rotate, {7, 150, 9, 128}, {9, 64}}, 1);
  add_acts(cases, {Op::rotate, {2, 40, 2, 1100}, {1, 550}}, 1);
  add_acts(cases, {Op::cosine, {4, 90, 700}, {1, 700}}, 1);
  add_acts(cases, {Op::cosine_md, {5, 3, 133, 130}, {3, 65}, {}, {}, 3, {10, 13}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    check_composition(c.fused(f64, device), c.composed(f64, device),
                      input_of(c.shape, f64, device));
    check_threads(c.fused(f32, device), input_of(c.shape, f32, device));
    check_threads(c.fused(bf16, device), input_of(c.shape, bf16, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: the published sizes, in every type") {
  std::vector<Case> cases;
  for (const std::int64_t offset : {0, 10}) {
    add_acts(cases, {Op::rotate, {2, 128, 7, 64}, {7, 32}, {}, {}, offset}, 1);
    add_acts(cases, {Op::rotate, {2, 33, 48}, {1, 24}, {}, {}, offset}, 1);
    add_acts(cases, {Op::cosine, {2, 128, 8, 33}, {8, 33}, {}, {}, offset}, 1);
    add_acts(cases, {Op::cosine, {2, 33, 8, 48}, {8, 1}, {}, {}, offset}, 1);
  }
  add_acts(cases, {Op::cosine_md, {2, 4, 133, 64}, {4, 64}, {}, {}, 5, {128}}, -2);
  add_acts(cases, {Op::cosine_md, {2, 4, 261, 64}, {4, 16}, {}, {}, 5, {4, 4, 4, 4}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    // An angle is rounded to f32; it may be as large as this.
    const double angle = static_cast<double>(4 * (c.shape[c.op == Op::cosine_md ? 2 : 1] + c.offset));
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(name_of(dtype));
      const Tensor x = input_of(c.shape, dtype, device);
      Case exact = c;
      const Tensor theta = c.make_theta(dtype, device);
      const auto in_f64 = [&](const Tensor& y) {
        if (c.op == Op::rotate) return lrpe_rotate(y, theta.to(f64), exact.options());
        if (c.op == Op::cosine) return lrpe_cosine(y, theta.to(f64), exact.options());
        return lrpe_cosine_md(y, theta.to(f64), c.grid, exact.md_options());
      };
      const Outcome got = run(c.fused(dtype, device), x), wanted = run(in_f64, x.to(f64));
      const double slack = epsilon_of(f32) * (angle + 8);
      check_units(got.o, wanted.o, 1, slack);
      check_units(got.d_x, wanted.d_x, 1, slack);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: no further from f64 than the composition") {
  for (const Case& c : all_cases()) {
    if (c.shape[1] < 5) continue;
    CAPTURE(c.text());
    for (const DType dtype : {f32, bf16, f16}) {
      const Tensor x = input_of(c.shape, dtype, device), t = c.make_theta(dtype, device);
      const auto exactly = [&](const Tensor& y) {
        if (c.op == Op::rotate) return lrpe_rotate(y, t.to(f64), c.options());
        if (c.op == Op::cosine) return lrpe_cosine(y, t.to(f64), c.options());
        return lrpe_cosine_md(y, t.to(f64), c.grid, c.md_options());
      };
      const Tensor exact = run(exactly, x.to(f64)).o;
      const auto distance = [&](const UnaryFunction& f) {
        return largest_of(run(f, x).o.to(f64) - exact);
      };
      CHECK(distance(c.fused(dtype, device)) <=
            distance(c.composed(dtype, device)) + 64 * epsilon_of(f32) * largest_of(exact));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: angles as large as 1e5") {
  const Tensor x = input_of({1, 4, 1, 6}, f32, device);
  const Tensor theta = from({3.7, -1.25, 0.001}, {1, 3}, f32, device);
  for (const std::int64_t offset : {30000, -30000, 5000000}) {
    const std::vector<double> o = lrpe_rotate(x, theta, {.offset = offset}).to_vector();
    const std::vector<double> values = x.to_vector(), turns = theta.to_vector();
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < 3; ++i) {
        const auto position = static_cast<float>(offset + n);
        const double angle = static_cast<float>(turns[static_cast<std::size_t>(i)]) * position;
        const auto at = static_cast<std::size_t>(6 * n + i);
        const double a = values[at], b = values[at + 3];
        CHECK(std::abs(o[at] - (a * std::cos(angle) - b * std::sin(angle))) < 2e-6);
        CHECK(std::abs(o[at + 3] - (a * std::sin(angle) + b * std::cos(angle))) < 2e-6);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: any strides") {
  std::vector<Case> cases;
  add_acts(cases, {Op::rotate, {3, 9, 4, 10}, {4, 5}, {}, {}, 2}, 1);
  add_acts(cases, {Op::cosine, {3, 9, 5}, {1, 5}}, -2);
  add_acts(cases, {Op::cosine_md, {2, 3, 8, 7}, {3, 4}, {}, {}, 2, {2, 3}, true}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    for (const DType dtype : {f32, bf16}) {
      check_layouts(c.fused(dtype, device), input_of(c.shape, dtype, device));
    }
  }
  const Tensor x = input_of({2, 5, 3, 8}, f32, device);
  const Tensor theta = input_of({4, 3}, f32, device);
  CHECK(same_bits(lrpe_rotate(x, theta.t()), lrpe_rotate(x, theta.t().contiguous())));
  const Tensor same = theta.slice(0, 0, 1).expand({4, 3}).t();
  CHECK(same_bits(lrpe_rotate(x, same), lrpe_rotate(x, same.contiguous())));
}

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

TEST_CASE_FIXTURE(EachDevice, "lrpe: holds what it must, and no more") {
  std::vector<Case> cases;
  add_acts(cases, {Op::rotate, {4, 64, 6, 64}, {6, 32}}, 1);
  add_acts(cases, {Op::cosine_md, {4, 6, 64, 64}, {6, 32}, {}, {}, 0, {8, 8}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    for (const DType dtype : {f32, bf16}) {
      const std::size_t one = static_cast<std::size_t>(numel(c.shape)) * size_of(dtype);
      const std::size_t wide = c.op == Op::rotate ? one : 2 * one;
      // Output, upstream and gradient.
      CHECK(training_peak(c.fused(dtype, device), c.shape, dtype, device) == one + 2 * wide);
      CHECK(training_peak(c.composed(dtype, device), c.shape, dtype, device) > one + 2 * wide);
      CHECK(training_peak(c.fused(dtype, meta_cpu), c.shape, dtype, meta_cpu) == one + 2 * wide);
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
  for (const Case& c : all_cases()) {
    CAPTURE(c.text());
    const Outcome dry = run(c.fused(bf16, meta_cpu), empty(c.shape, bf16, meta_cpu));
    CHECK(dry.o.shape() == c.fused(bf16, device)(input_of(c.shape, bf16, device)).shape());
    CHECK(dry.d_x.shape() == c.shape);
    CHECK(training_peak(c.fused(bf16, meta_cpu), c.shape, bf16, meta_cpu) ==
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

TEST_CASE_FIXTURE(EachDevice, "lrpe: theta in the type of x, or f32") {
  const Tensor theta = from({0.5, 0.25}, {1, 2}, f32, device);
  for (const DType dtype : {bf16, f16}) {
    const Tensor x = input_of({2, 5, 1, 4}, dtype, device);
    CHECK(same_bits(lrpe_rotate(x, theta), lrpe_rotate(x, theta.to(dtype))));
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: backward without a tape writes or adds") {
  for (const Case& c : all_cases()) {
    CAPTURE(c.text());
    const Tensor x = input_of(c.shape, f32, device), theta = c.make_theta(f32, device);
    const Outcome wanted = run(c.fused(f32, device), x);
    const Tensor upstream = input_of(wanted.o.shape(), f32, device, 7).to(bf16).to(f32);
    const Tensor d_x = full(x.shape(), 100.0, f32, device);
    const auto backward = [&](const Grad& g) {
      if (c.op == Op::rotate) return lrpe_rotate_backward(x, theta, upstream, g, c.options());
      if (c.op == Op::cosine) return lrpe_cosine_backward(x, theta, upstream, g, c.options());
      lrpe_cosine_md_backward(x, theta, upstream, g, c.grid, c.md_options());
    };
    backward(Grad::write_to(d_x));
    CHECK(same_bits(d_x, wanted.d_x));
    backward(Grad::add_to(d_x));
    CHECK(allclose(d_x, wanted.d_x * 2));
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
  expect_error([&] { lrpe_cosine_md(y, ones({3, 8}), {2, 5}); }, "only 7 features");
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

TEST_CASE("lrpe: the sequence under all its names") {
  const Tensor x = input_of({2, 5, 3, 4}, f32, cpu), theta = input_of({3, 2}, f32, cpu);
  const auto by = [&](int dim) { return lrpe_rotate(x, theta, {.act = Act::softmax, .dim = dim}); };
  CHECK(same_bits(by(1), by(-3)));
  CHECK(same_bits(by(3), by(-1)));
  const Tensor flat = x.slice(2, 0, 1).squeeze(2), turn = theta.slice(0, 0, 1);
  const auto flat_by = [&](int dim) {
    return lrpe_cosine(flat, turn, {.act = Act::softmax, .dim = dim});
  };
  CHECK(same_bits(flat_by(1), flat_by(-2)));
  CHECK(same_bits(flat_by(2), flat_by(-1)));
}
