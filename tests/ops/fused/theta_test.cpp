// The gradient of theta in position encodings and in gated linear attention: every option, shape
// and type, what it keeps and holds, and that nobody pays for it who does not want it.
#include <cmath>

#include "flao_support.h"
#include "lrpe_support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::positions;

namespace {

using Tensors = std::vector<Tensor>;

/// One of the operators on {x, theta}, or its composition.
DifferentiableFunction with_theta(const Case& c, bool composed = false) {
  return [=](const Tensors& in) {
    const Tensor &x = in[0], &theta = in[1];
    if (c.op == Op::rotate) {
      return (composed ? lrpe_rotate_composed : lrpe_rotate)(x, theta, c.options());
    }
    if (c.op == Op::cosine) {
      return (composed ? lrpe_cosine_composed : lrpe_cosine)(x, theta, c.options());
    }
    const auto md = composed ? lrpe_cosine_md_composed : lrpe_cosine_md;
    return md(x, theta, c.grid, c.md_options());
  };
}

/// {q, k, v, g, theta}
DifferentiableFunction with_theta(const FlaoOptions& options, bool composed = false) {
  return [=](const Tensors& in) {
    FlaoOptions own = options;
    own.theta = in[4];
    return (composed ? flao_composed : flao)(in[0], in[1], in[2], in[3], own);
  };
}

/// The gradients of all inputs, or of the last one only.
Tensors gradients_of(const DifferentiableFunction& f, const Tensors& in, bool only_last = false) {
  Tensors leaves, wanted;
  for (std::size_t i = 0; i < in.size(); ++i) {
    leaves.push_back(in[i].detach());
    if (only_last && i + 1 < in.size()) continue;
    wanted.push_back(leaves.back().set_requires_grad());
  }
  Tape tape;
  const Tensor o = f(leaves);
  const Tensor upstream = input_of(o.shape(), f32, o.device(), 7).to(bf16).to(o.dtype());
  return tape.gradients(o, wanted, {upstream, false});
}

Tensors inputs_for(const Case& c, DType dtype, Device device) {
  return {input_of(c.shape, dtype, device), c.make_theta(dtype, device)};
}

/// The variants of flao that encode positions, and their inputs with theta.
std::vector<gated::Variant> encoded_variants(DType dtype, Device device) {
  std::vector<gated::Variant> found = gated::variants(dtype, device);
  std::erase_if(found, [](const auto& v) { return v.options.lrpe == FlaoLrpe::none; });
  return found;
}
Tensors inputs_for(const FlaoOptions& options, const gated::Sizes& s, DType dtype, Device device) {
  Tensors in = gated::inputs_of(s, dtype, device);
  in.push_back(options.theta);
  return in;
}

/// Every entry of the Jacobian within 1e-7 of differences; returns the worst.
double checked(const DifferentiableFunction& f, Tensors in) {
  for (Tensor& x : in) x = x.detach().set_requires_grad();
  const GradcheckResult result = gradcheck(f, in);
  CHECK_MESSAGE(result.ok, result.report);
  CHECK_MESSAGE(result.worst_error <= 1e-7, result.report);
  return result.worst_error;
}

void check_near(const Tensor& got, const Tensor& wanted, double part) {
  const double allowed = part * std::max(1.0, largest_of(wanted));
  const Difference d = compare(got, wanted, {.relative = 0, .absolute = allowed});
  CHECK_MESSAGE(d.ok, d.text);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "theta: its gradient in position encodings, in all options") {
  int count = 0;
  double worst = 0;
  for (const Case& c : all_cases()) {
    if (numel(c.shape) > 512) continue;
    CAPTURE(c.text());
    worst = std::max(worst, checked(with_theta(c), inputs_for(c, f64, device)));
    ++count;
  }
  CHECK(count > 200);
  MESSAGE("worst error ", worst);
}

TEST_CASE_FIXTURE(EachDevice, "theta: its gradient in gated linear attention, pairs of options") {
  int count = 0;
  double worst = 0;
  for (const gated::Variant& variant : encoded_variants(f64, device)) {
    CAPTURE(variant.name);
    const Tensors in = inputs_for(variant.options, gated::variant_sizes, f64, device);
    worst = std::max(worst, checked(with_theta(variant.options), in));
    ++count;
  }
  CHECK(count > 20);
  MESSAGE("worst error ", worst);
}

TEST_CASE_FIXTURE(EachDevice, "theta: agrees with the composition, and with the cpu") {
  std::vector<Case> cases = all_cases();
  add_acts(cases, {Op::rotate, {2, 300, 1, 16}, {1, 8}, {}, {}, 3}, 1);
  add_acts(cases, {Op::cosine, {1, 200, 3, 9}, {1, 1}, {}, {}, -7, {}, true}, 1);
  add_acts(cases, {Op::cosine_md, {2, 2, 133, 8}, {1, 4}, {}, {}, 3, {10, 13}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    const Tensors in = inputs_for(c, f64, device);
    const Tensors got = gradients_of(with_theta(c), in);
    const Tensors wanted = gradients_of(with_theta(c, true), in);
    for (std::size_t i = 0; i < got.size(); ++i) check_near(got[i], wanted[i], 1e-12);
    CHECK(same_bits(gradients_of(with_theta(c), in, true)[0], got[1]));
    if (device.is_cpu()) continue;
    const Tensors there = gradients_of(with_theta(c), {in[0].to(cpu), in[1].to(cpu)}, true);
    check_near(got[1].to(cpu), there[0], 1e-12);
  }
  for (const gated::Variant& variant : encoded_variants(f64, device)) {
    CAPTURE(variant.name);
    const FlaoOptions& o = variant.options;
    const gated::Sizes long_sizes{1, 2, 300, 131, 4, 3};
    const bool on_grid = o.lrpe == FlaoLrpe::cosine_md;
    const Tensors in = inputs_for(o, on_grid ? gated::variant_sizes : long_sizes, f64, device);
    const Tensors got = gradients_of(with_theta(o), in);
    const Tensors wanted = gradients_of(with_theta(o, true), in);
    for (std::size_t i = 0; i < got.size(); ++i) check_near(got[i], wanted[i], 1e-12);
    CHECK(same_bits(gradients_of(with_theta(o), in, true)[0], got[4]));
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: f32, bf16 and f16 beside f64") {
  std::vector<Case> cases;
  add_acts(cases, {Op::rotate, {3, 90, 2, 16}, {2, 8}, {}, {}, 10}, 1);
  add_acts(cases, {Op::cosine, {2, 33, 3, 24}, {1, 5}, {}, {}, 0, {}, true}, 1);
  add_acts(cases, {Op::cosine_md, {2, 2, 35, 10}, {2, 5}, {}, {}, 5, {5, 6}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(dtype);
      for (const DType theta_type : {f32, dtype}) {
        const Tensor x = input_of(c.shape, dtype, device);
        const Tensor theta = c.make_theta(dtype, device).to(theta_type);
        const Tensor got = gradients_of(with_theta(c), {x, theta}, true)[0];
        CHECK(got.dtype() == theta_type);
        const Tensor exact = gradients_of(with_theta(c), {x.to(f64), theta.to(f64)}, true)[0];
        // A term is p (y1 d_o2 ... - y2 d_o1 ...), and its angle is rounded to f32.
        const int tokens = c.op == Op::cosine_md ? 2 : 1;
        const double position = static_cast<double>(c.shape[tokens] + c.offset);
        const double angle = position * largest_of(theta);
        const double term = position * 4 * largest_of(x) * 4;
        const double terms = static_cast<double>(numel(c.shape) / theta.size(0));
        const double bound = epsilon_of(f32) * (angle + 8) * terms * term +
                             0.51 * epsilon_of(theta_type) * largest_of(exact);
        CHECK(largest_of(got.to(f64) - exact) <= bound);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: sums of many terms at large positions lose nothing") {
  // Where the angle is 0, all products of bf16 numbers and positions are exact in f64, and so is
  // their sum: the gradient is that sum, rounded once.
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = input_of({3, 700, 2, 8}, f32, device).to(bf16).to(dtype);
    const Tensor theta = zeros({1, 8}, f32, device);
    const LrpeOptions options{.offset = 100000};
    const auto f = [&](const Tensors& in) { return lrpe_cosine(in[0], in[1], options); };
    const Tensor got = gradients_of(f, {x, theta}, true)[0];
    const Tensor exact = gradients_of(f, {x.to(f64), theta.to(f64)}, true)[0];
    CHECK(same_bits(got, exact.to(f32)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: the same bits on any number of threads") {
  const Case c{Op::rotate, {3, 700, 1, 32}, {1, 16}, Act::softmax, -1, 4};
  const gated::Sizes s{2, 2, 190, 177, 8, 8};
  for (const DType dtype : {f64, f32, bf16}) {
    const FlaoOptions options{.k_act = Act::softmax,
                              .k_dim = -2,
                              .lrpe = FlaoLrpe::cosine,
                              .theta = gated::theta_of({2, 8}, dtype, device)};
    const Tensors in = inputs_for(c, dtype, device), more = inputs_for(options, s, dtype, device);
    const int before = set_num_threads(1);
    const Tensor alone = gradients_of(with_theta(c), in, true)[0];
    const Tensor fused = gradients_of(with_theta(options), more, true)[0];
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      CHECK(same_bits(gradients_of(with_theta(c), in, true)[0], alone));
      CHECK(same_bits(gradients_of(with_theta(options), more, true)[0], fused));
    }
    set_num_threads(before);
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: any strides, of it and of its gradient") {
  const Tensor whole = input_of({7, 9}, f64, device), x = input_of({2, 5, 3, 8}, f64, device);
  const auto f = [](const Tensors& in) {
    const Tensor a = in[0].slice(0, 1, 5).slice(1, 0, 9, 4).t();  // (3, 4), of any strides
    const Tensor one = in[0].slice(0, 6, 7).slice(1, 2, 5);       // (1, 3)
    const Tensor y = lrpe_rotate(in[1], a, {.act = Act::silu}) + lrpe_rotate(in[1], one);
    return lrpe_cosine(y.transpose(1, 2).contiguous().transpose(1, 2), a.slice(1, 1, 2));
  };
  checked(f, {whole, x});
}

TEST_CASE_FIXTURE(EachDevice, "theta: a gradient of its own type, written and added to") {
  const Tensor x = input_of({2, 40, 2, 8}, bf16, device);
  const Tensor theta = input_of({2, 4}, f32, device).to(bf16);
  const Tensor wide = theta.to(f64);
  theta.set_requires_grad();
  theta.set_grad_dtype(f32);
  wide.set_requires_grad();
  for (int walk = 1; walk <= 2; ++walk) {
    Tape tape;
    tape.backward(sum(lrpe_rotate(x.to(f64), wide)));
    tape.backward(sum(lrpe_rotate(x, theta).to(f64)));
    CHECK(theta.grad().dtype() == f32);
    const double bound = 1e-4 * largest_of(wide.grad());  // f32 angles of up to 120
    CHECK(largest_of(theta.grad().to(f64) - wide.grad()) <= bound);
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: no tokens, no heads, no columns of its own") {
  for (const Shape& shape : {Shape{0, 3, 2, 4}, Shape{2, 0, 2, 4}, Shape{2, 3, 0, 4}}) {
    const Tensor d = gradients_of([](const Tensors& in) { return lrpe_rotate(in[0], in[1]); },
                                  {ones(shape, f32, device), ones({1, 2}, f32, device)}, true)[0];
    CHECK(same_bits(d, zeros({1, 2}, f32, device)));
  }
  // Of seven columns four features have four.
  const Case c{Op::cosine_md, {1, 2, 6, 4}, {1, 7}, {}, {}, 0, {6}};
  const Tensor d = gradients_of(with_theta(c), inputs_for(c, f32, device), true)[0];
  CHECK(largest_of(d.slice(1, 4)) == 0);
  for (const gated::Sizes& s : {gated::Sizes{1, 2, 0, 3, 4, 2}, gated::Sizes{1, 2, 3, 0, 4, 2},
                                gated::Sizes{1, 2, 3, 3, 4, 0}, gated::Sizes{0, 2, 3, 3, 4, 2}}) {
    CAPTURE(gated::text_of(s));
    const FlaoOptions o{.lrpe = FlaoLrpe::rotate, .theta = gated::theta_of({2, 2}, f32, device)};
    const Tensor zero = gradients_of(with_theta(o), inputs_for(o, s, f32, device), true)[0];
    CHECK(same_bits(zero, zeros({2, 2}, f32, device)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: does not become a constant in silence") {
  const Tensor x = input_of({1, 3, 1, 4}, f32, device);
  const Tensor w = ones({1, 2}, f32, device).set_requires_grad();
  Tensor theta;
  {
    Tape gone;
    theta = tanh(w);
  }
  Tape tape;
  expect_error([&] { lrpe_rotate(x, theta); }, "lrpe_rotate", "tape");
  const Tensor q = ones({1, 1, 3, 4}, f32, device);
  expect_error([&] { flao(q, q, q, q, {.lrpe = FlaoLrpe::rotate, .theta = theta}); }, "flao",
               "tape");
  CHECK(!lrpe_rotate(x, theta.detach()).requires_grad());
}
