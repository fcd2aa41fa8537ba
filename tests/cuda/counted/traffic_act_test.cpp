// Counted traffic of activations, on the emulated device: what section by section of memory they
// move beside what they must.
#include <quipu/quipu.h>

#include "ops/fused/fused_checks.h"

#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

const Device cuda("cuda");

struct Moved {
  Traffic forward, backward, adding;
  double unit;  // bytes of x
};

/// Forward, backward into a fresh gradient, and backward into one that is there.
Moved moved_by(const Shape& shape, DType dtype, Act kind, std::optional<int> dim) {
  const Tensor x = input_of(shape, dtype, cuda), d_o = input_of(shape, dtype, cuda, 7);
  const Tensor d_x = zeros(shape, dtype, cuda);
  Tensor o;
  Moved moved;
  moved.unit = static_cast<double>(x.nbytes());
  moved.forward = traffic_of([&] { o = act(x, kind, dim); });
  const Tensor saved = kind == Act::softmax ? o : x;
  moved.backward = traffic_of([&] { act_backward(saved, d_o, Grad::write_to(d_x), kind, dim); });
  moved.adding = traffic_of([&] { act_backward(saved, d_o, Grad::add_to(d_x), kind, dim); });
  return moved;
}

/// In units of x: forward, backward, backward that adds.
void check_moved(const Moved& m, double forward, double backward, double adding) {
  check_bytes(m.forward, forward * m.unit, 0.02);
  check_bytes(m.backward, backward * m.unit, 0.02);
  check_bytes(m.adding, adding * m.unit, 0.02);
  for (const Traffic* t : {&m.forward, &m.backward, &m.adding}) CHECK(faults_of(*t) == "");
}

}  // namespace

TEST_CASE("traffic: pointwise activations read once and write once") {
  for (const DType dtype : {bf16, f32}) {
    for (const Act kind : {Act::relu, Act::sigmoid, Act::silu}) {
      CAPTURE(name_of(kind));
      check_moved(moved_by({2, 3, 40, 128}, dtype, kind, {}), 2, 3, 4);
    }
  }
}

TEST_CASE("traffic: softmax of rows that fit reads once and writes once") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const auto& [shape, dim] :
         {std::pair(Shape{2, 3, 40, 128}, -1), std::pair(Shape{70, 8}, -1),
          std::pair(Shape{9, 1000}, 1), std::pair(Shape{3, 8192}, 1)}) {
      CAPTURE(to_string(shape));
      check_moved(moved_by(shape, dtype, Act::softmax, dim), 2, 3, 4);
    }
  }
}

TEST_CASE("traffic: softmax down strips that fit reads once and writes once") {
  for (const DType dtype : {f32, bf16}) {
    for (const auto& [shape, dim] :
         {std::pair(Shape{2, 2, 256, 128}, -2), std::pair(Shape{3, 40, 6, 16}, 1),
          std::pair(Shape{2048, 16}, 0), std::pair(Shape{7, 64, 64}, 0)}) {
      CAPTURE(to_string(shape));
      check_moved(moved_by(shape, dtype, Act::softmax, dim), 2, 3, 4);
    }
  }
  const Moved long_one = moved_by({1, 4096, 32}, bf16, Act::softmax, 1);
  check_bytes(long_one.forward, 2 * long_one.unit, 0.02);
}

TEST_CASE("traffic: softmax of longer lines reads twice, and parts are small") {
  for (const auto& [shape, dim] :
       {std::pair(Shape{2, 6144, 32}, 1), std::pair(Shape{1, 131072}, 1)}) {
    CAPTURE(to_string(shape));
    const Moved m = moved_by(shape, bf16, Act::softmax, dim);
    for (const auto& [t, least] :
         {std::pair(&m.forward, 2.0), std::pair(&m.backward, 3.0), std::pair(&m.adding, 4.0)}) {
      const double again = least == 2.0 ? 1 : 2;  // what the second pass reads again
      CHECK(t->sector_bytes() >= (least + again) * m.unit);
      CHECK(t->sector_bytes() <= (least + again) * m.unit * 1.1);
      CHECK(faults_of(*t) == "");
    }
  }
}

TEST_CASE("traffic: control: what wastes sectors is named") {
  const Tensor x = input_of({256, 256}, bf16, cuda);
  const Traffic t = traffic_of([&] { act(x.t(), Act::silu).contiguous(); });
  const Traffic strided = traffic_of([&] { act(x.slice(1, 0, {}, 2), Act::silu); });
  CHECK(faults_of(strided).find("device load of 2 bytes a lane, efficiency 50 %") !=
        std::string::npos);
  CHECK(t.counters.launches > 0);
}
