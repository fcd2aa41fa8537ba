// Counted traffic of gated linear attention by tensor cores, on the emulated device: inputs are
// read once, results and gradients written once; beside them only kv and d_kv move.
#include "ops/fused/flao_support.h"

#include "on_card.h"
#include "quipu/cuda/workspace.h"
#include "quipu/ops/flao/kernels.h"
#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::gated;

namespace {

const Device cuda("cuda");

struct Moved {
  Traffic forward, backward, adding;
};

/// Forward, backward into fresh gradients, and backward into those that are there; kv is kept.
Moved moved_by(const Sizes& s, DType dtype, FlaoOptions options) {
  options.keep = FlaoKeep::kv;
  std::vector<Tensor> in = inputs_of(s, dtype, cuda);
  const Tensor upstream = upstream_of(s, dtype, cuda);
  Moved moved;
  for (Traffic* backward : {&moved.backward, &moved.adding}) {
    Tape tape;
    Tensor o;
    moved.forward = traffic_of([&] { o = flao(in[0], in[1], in[2], in[3], options); });
    *backward = traffic_of([&] { tape.backward(o, {upstream, false}); });
  }
  return moved;
}

/// In units of q: forward, backward, backward that adds; and how many products by tensor cores each
/// of them makes, where those with halves count as two or three.
struct Expected {
  double forward, backward, adding;
  double forward_products, backward_products;
};

void check_moved(const Sizes& s, const Moved& moved, const Expected& wanted) {
  const auto units = static_cast<double>(s.b * s.h), d = static_cast<double>(s.d);
  const double unit = units * static_cast<double>(s.n) * d * 2, kv = units * d * d * 4;
  // kv, or its parts and their sum, is written and read.
  const auto parts = static_cast<double>(on_cuda::flao_parts(s.n, s.b * s.h));
  const double sums = kv * (parts > 1 ? 2 * parts + 2 : 2);
  check_bytes(moved.forward, wanted.forward * unit + sums, 0.01);
  check_bytes(moved.backward, wanted.backward * unit + sums + kv, 0.01);
  check_bytes(moved.adding, wanted.adding * unit + sums + kv, 0.01);
  const double flops = 2 * units * static_cast<double>(s.n) * d * d;
  const auto products = [&](const Traffic& t) {
    return static_cast<double>(t.counters.mma_flops) / flops;
  };
  CHECK(products(moved.forward) == wanted.forward_products);
  CHECK(products(moved.backward) == wanted.backward_products);
  CHECK(products(moved.adding) == wanted.backward_products);
  // While an A800 moves a byte its tensor cores do 153 operations; a product takes as many for each
  // byte of a unit as there are features.
  CHECK(wanted.forward_products * d / wanted.forward < 153);
  CHECK(wanted.backward_products * d / wanted.adding < 153);
  for (const Traffic* t : {&moved.forward, &moved.backward, &moved.adding}) {
    CHECK(faults_of(*t) == "");
  }
}

}  // namespace

TEST_CASE("traffic: flao by tensor cores reads and writes everything once") {
  const OnCard on("a100");  // backward takes more shared memory than smaller cards have
  const Sizes one_part{1, 2, 512, 512, 128, 128}, two_parts{1, 1, 1024, 1024, 64, 64};
  check_moved(one_part, moved_by(one_part, bf16, {}), {5, 9, 13, 3, 11});
  check_moved(two_parts, moved_by(two_parts, bf16, {}), {5, 9, 13, 3, 11});
  check_moved(two_parts, moved_by(two_parts, f16, {}), {5, 9, 13, 4, 15});
}

TEST_CASE("traffic: activations and rotations cost flao no traffic") {
  const OnCard on("a100");
  const Sizes s{1, 1, 512, 512, 128, 128};
  const FlaoOptions options{.q_act = Act::silu,
                            .k_act = Act::softmax,
                            .k_dim = -1,
                            .g_act = Act::silu,
                            .lrpe = FlaoLrpe::rotate,
                            .theta = theta_of({1, 64}, bf16, cuda)};
  check_moved(s, moved_by(s, bf16, options), {5, 9, 13, 2 + 3, 3 + 3 + 3 + 2 + 3});
}
