// Counted traffic of position encodings, on the emulated device: what they move beside what they
// must.
#include "ops/fused/lrpe_support.h"

#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::positions;

namespace {

const Device cuda("cuda");

struct Moved {
  Traffic forward, backward, adding;
  double unit;   // bytes of x
  double theta;  // bytes of it
};

Moved moved_by(const Case& c, DType dtype, DType theta_type) {
  const Tensor x = input_of(c.shape, dtype, cuda);
  const Tensor theta = c.make_theta(dtype, cuda).to(theta_type);
  const auto encode = [&] {
    if (c.op == Op::rotate) return lrpe_rotate(x, theta, c.options());
    if (c.op == Op::cosine) return lrpe_cosine(x, theta, c.options());
    return lrpe_cosine_md(x, theta, c.grid, c.md_options());
  };
  const auto backward = [&](const Tensor& d_o, const Grad& g) {
    if (c.op == Op::rotate) return lrpe_rotate_backward(x, theta, d_o, g, c.options());
    if (c.op == Op::cosine) return lrpe_cosine_backward(x, theta, d_o, g, c.options());
    lrpe_cosine_md_backward(x, theta, d_o, g, c.grid, c.md_options());
  };
  Tensor o;
  Moved m{{}, {}, {}, static_cast<double>(x.nbytes()), static_cast<double>(theta.nbytes())};
  m.forward = traffic_of([&] { o = encode(); });
  const Tensor d_o = input_of(o.shape(), dtype, cuda, 7), d_x = zeros(c.shape, dtype, cuda);
  m.backward = traffic_of([&] { backward(d_o, Grad::write_to(d_x)); });
  m.adding = traffic_of([&] { backward(d_o, Grad::add_to(d_x)); });
  return m;
}

Moved moved_by(const Case& c, DType dtype) {
  return moved_by(c, dtype, dtype == f64 ? f64 : f32);
}

/// In units of x: forward, backward, backward that adds. Beside that theta and, a launch being
/// counted by itself, what one hands to the next.
void check_moved(const Moved& m, double forward, double backward, double adding,
                 double slack = 0.02) {
  check_bytes(m.forward, forward * m.unit + m.theta, slack);
  check_bytes(m.backward, backward * m.unit + m.theta, slack);
  check_bytes(m.adding, adding * m.unit + m.theta, slack);
  for (const Traffic* t : {&m.forward, &m.backward, &m.adding}) CHECK(faults_of(*t) == "");
}

/// Theta as published: every angle has its own.
Case rotation(const Shape& shape, Act act = Act::none, std::optional<int> dim = {}) {
  return {Op::rotate, shape, {shape[2], shape[3] / 2}, act, dim};
}

}  // namespace

TEST_CASE("traffic: lrpe_rotate reads once and writes once") {
  for (const DType dtype : {bf16, f32}) {
    const Shape shape{3, 32, 4, 128};
    check_moved(moved_by(rotation(shape), dtype), 2, 2, 3);
    for (const Act act : {Act::relu, Act::sigmoid, Act::silu}) {
      CAPTURE(name_of(act));
      check_moved(moved_by(rotation(shape, act), dtype), 2, 3, 4);
    }
    check_moved(moved_by(rotation(shape, Act::softmax, -1), dtype), 2, 3, 4);
  }
  check_moved(moved_by(rotation({3, 32, 4, 128}), bf16, bf16), 2, 2, 3);  // theta in bf16, too
  check_moved(moved_by(rotation({2, 9, 4, 128}), f64), 2, 2, 3, 0.05);
  check_moved(moved_by(rotation({2, 40, 3, 96}, Act::softmax, -1), f16), 2, 3, 4);
}

TEST_CASE("traffic: lrpe_cosine in several dimensions reads once and writes once") {
  for (const std::int64_t l : {0, 10}) {
    for (const Shape& grid : {Shape{40}, Shape{6, 7}, Shape{3, 3, 4}}) {
      const std::int64_t e = grid.size() == 1 ? 128 : 64;  // as published
      Case c{Op::cosine_md, {3, 2, l + numel(grid), 128}, {2, e}, {}, {}, l, grid};
      CAPTURE(c.text());
      check_moved(moved_by(c, bf16), 3, 3, 4);
      c.act = Act::silu;
      check_moved(moved_by(c, bf16), 3, 4, 5);
    }
  }
}

TEST_CASE("traffic: angles that are kept cost what they take") {
  Case c{Op::cosine_md, {3, 2, 46, 128}, {2, 64}, {}, {}, 4, {6, 7}, true};
  const Tensor x = input_of(c.shape, bf16, cuda);
  const auto unit = static_cast<double>(x.nbytes()), angles = 2 * 46 * 128 * 4.0;
  const auto f = c.fused(bf16, cuda);
  x.set_requires_grad();
  Tape tape;
  Tensor o;
  const Traffic forward = traffic_of([&] { o = f(x); });
  check_bytes(forward, 3 * unit + angles + 2 * 64 * 4, 0.02);
  CHECK(faults_of(forward) == "");
  const Tensor d_o = input_of(o.shape(), bf16, cuda, 7);
  const Traffic backward = traffic_of([&] { tape.backward(o, {d_o, false}); });
  check_bytes(backward, 3 * unit + angles, 0.02);
  CHECK(faults_of(backward) == "");
}

TEST_CASE("traffic: lrpe with softmax over the sequence") {
  // What a block reads twice it has just read; memory is asked for it once.
  check_moved(moved_by(rotation({4, 200, 2, 64}, Act::softmax, 1), bf16), 2, 3, 4, 0.03);
  // Long sequences are read in two passes.
  const Moved cut = moved_by(rotation({2, 3000, 1, 64}, Act::softmax, 1), bf16);
  check_moved(cut, 3, 5, 6, 0.05);
  CHECK(cut.forward.launches.size() == 2);
}
