// Position encodings: against their compositions, in every option, in every type.
#include <cmath>
#include <limits>

#include "lrpe_support.h"
#include "quipu/cuda/workspace.h"
#include "quipu/ops/lrpe/kernels.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::positions;

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
  if (device.is_cpu()) {
    add_acts(cases, {Op::rotate, {7, 150, 9, 128}, {9, 64}}, 1);
    add_acts(cases, {Op::rotate, {2, 40, 2, 1100}, {1, 550}}, 1);
    add_acts(cases, {Op::cosine, {4, 90, 700}, {1, 700}}, 1);
    add_acts(cases, {Op::cosine_md, {5, 3, 133, 130}, {3, 65}, {}, {}, 3, {10, 13}}, -2);
  } else {  // smaller, for emulated devices
    add_acts(cases, {Op::rotate, {5, 40, 2, 64}, {2, 32}}, 1);
    add_acts(cases, {Op::rotate, {1, 6, 1, 1100}, {1, 550}}, 1);
    add_acts(cases, {Op::cosine, {1, 9, 700}, {1, 700}}, 1);
    add_acts(cases, {Op::cosine_md, {2, 2, 18, 130}, {2, 65}, {}, {}, 3, {3, 5}}, -2);
  }
  for (const Case& c : cases) {
    CAPTURE(c.text());
    check_composition(c.fused(f64, device), c.composed(f64, device),
                      input_of(c.shape, f64, device));
    check_threads(c.fused(f32, device), input_of(c.shape, f32, device));
    check_threads(c.fused(bf16, device), input_of(c.shape, bf16, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: softmax over sequences that are cut into parts") {
  for (const Case& c :
       {Case{Op::rotate, {2, 2060, 1, 16}, {1, 8}, Act::softmax, 1, 3},
        Case{Op::cosine, {1, 2300, 2, 4}, {2, 4}, Act::softmax, 1, 0, {}, true},
        Case{Op::cosine_md, {1, 1, 2054, 5}, {1, 3}, Act::softmax, -2, 4, {41, 50}}}) {
    CAPTURE(c.text());
    const View view = input_of(c.shape, f64, meta_cpu).view();
    const std::int64_t tokens = c.shape[c.op == Op::cosine_md ? 2 : 1];
    CHECK(on_cuda::lrpe_parts(view.numel() / tokens, tokens) > 1);
    check_composition(c.fused(f64, device), c.composed(f64, device),
                      input_of(c.shape, f64, device));
    const Outcome got = run(c.fused(bf16, device), input_of(c.shape, bf16, device));
    const Outcome again = run(c.fused(bf16, device), input_of(c.shape, bf16, device));
    CHECK(same_bits(got.o, again.o));
    CHECK(same_bits(got.d_x, again.d_x));
    check_layouts(c.fused(bf16, device), input_of(c.shape, bf16, device));
  }
}

TEST_CASE("lrpe: softmax over parts of a sequence whose heads go in groups") {
  // On the CPU: several parts of the tokens, groups of heads side by side, the last one smaller.
  for (const Case& c : {Case{Op::rotate, {2, 130, 5, 400}, {5, 200}, Act::softmax, 1, 3},
                        Case{Op::rotate, {2, 200, 3, 30}, {3, 15}, Act::softmax, 1, 0, {}, true}}) {
    CAPTURE(c.text());
    check_composition(c.fused(f64, Device()), c.composed(f64, Device()),
                      input_of(c.shape, f64, Device()));
    check_threads(c.fused(f32, Device()), input_of(c.shape, f32, Device()));
    check_threads(c.fused(bf16, Device()), input_of(c.shape, bf16, Device()));
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: the published sizes, in every type") {
  std::vector<Case> cases;
  const bool all = device.is_cpu();  // fewer tokens and heads for emulated devices
  for (const std::int64_t offset : {0, 10}) {
    const std::int64_t n = all ? 128 : 21, h = all ? 8 : 3;
    add_acts(cases, {Op::rotate, {2, n, h - 1, 64}, {h - 1, 32}, {}, {}, offset}, 1);
    add_acts(cases, {Op::rotate, {2, 33, 48}, {1, 24}, {}, {}, offset}, 1);
    add_acts(cases, {Op::cosine, {2, n, h, 33}, {h, 33}, {}, {}, offset}, 1);
    add_acts(cases, {Op::cosine, {2, 33, h, 48}, {h, 1}, {}, {}, offset}, 1);
  }
  const std::int64_t h = all ? 4 : 1, n = all ? 128 : 20;
  const Shape grid = all ? Shape{4, 4, 4, 4} : Shape{2, 3, 3, 2};
  add_acts(cases, {Op::cosine_md, {2, h, 5 + n, 64}, {h, 64}, {}, {}, 5, {n}}, -2);
  add_acts(cases, {Op::cosine_md, {2, h, 5 + numel(grid), 64}, {h, 16}, {}, {}, 5, grid}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    // An angle is rounded to f32; it may be as large as this.
    const double angle =
        static_cast<double>(4 * (c.shape[c.op == Op::cosine_md ? 2 : 1] + c.offset));
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
        const int place = 6 * n + i;
        const auto at = static_cast<std::size_t>(place);
        const double a = values[at], b = values[at + 3];
        CHECK(std::abs(o[at] - (a * std::cos(angle) - b * std::sin(angle))) < 2e-6);
        CHECK(std::abs(o[at + 3] - (a * std::sin(angle) + b * std::cos(angle))) < 2e-6);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "lrpe: cos and sin of any angle within 2 units in the last place") {
  // The encoding of 1 at position 1 is cos and sin of theta itself.
  for (const DType dtype : {f32, f64}) {
    std::vector<double> angles;
    const int largest = dtype == f32 ? 127 : 1023;
    for (int exponent = -30; exponent <= largest; exponent += dtype == f32 ? 1 : 7) {
      angles.insert(angles.end(), {std::ldexp(1.0, exponent), -std::ldexp(1.7320508, exponent)});
    }
    for (const int k : {1, 2, 3, 4, 7, 355, 10000, 664000, 700001}) {
      angles.push_back(k * 1.57079632679489661923);  // where the reduction must be exact
    }
    for (const double zero : {0.0, -0.0}) angles.push_back(zero);
    const auto n = static_cast<std::int64_t>(angles.size());
    const Tensor theta = from(angles, {1, n}, dtype, device);
    const Tensor x = ones({1, 1, 1, n}, dtype, device);
    const Tensor o = lrpe_cosine(x, theta, {.offset = 1}).to(cpu);
    const std::vector<double> rounded = theta.to_vector();
    std::vector<double> wanted(static_cast<std::size_t>(2 * n));
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      wanted[i] = std::cos(rounded[i]);
      wanted[i + rounded.size()] = std::sin(rounded[i]);
    }
    check_units(o.reshape({2 * n}), from(wanted, {2 * n}, f64), 2, 0);
  }
  const double none = std::numeric_limits<double>::infinity();
  const Tensor theta = from({none, -none, none - none}, {1, 3}, f32, device);
  const Tensor o = lrpe_cosine(ones({1, 1, 1, 3}, f32, device), theta, {.offset = 1});
  for (const double v : o.to_vector()) CHECK(std::isnan(v));
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
