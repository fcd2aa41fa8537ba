// Counted traffic of gated linear attention the general way, on the emulated device: inputs are
// read once, results and gradients written once; beside them only kv and d_kv move.
#include "ops/fused/flao_support.h"

#include "quipu/cuda/workspace.h"
#include "quipu/ops/flao/kernels.h"
#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::gated;

namespace {

const Device cuda("cuda");

/// In bytes of q: forward, backward into fresh gradients, backward into those that are there. kv is
/// kept; d and e are the same.
void check_moved(const Sizes& s, FlaoOptions options, double width) {
  options.keep = FlaoKeep::kv;
  const std::vector<Tensor> in = inputs_of(s, f32, cuda);
  const Tensor upstream = upstream_of(s, f32, cuda);
  const auto unit = static_cast<double>(in[0].nbytes());
  const double kv = static_cast<double>(s.b * s.h * s.e * 4) * width;
  // kv, or its parts and their sum, is written and read.
  const auto parts = static_cast<double>(on_cuda::flao_parts(s.n, s.b * s.h));
  const double sums = kv * (parts > 1 ? 2 * parts + 2 : 2);
  for (const double backward : {9, 13}) {
    Tape tape;
    Tensor o;
    const Traffic there = traffic_of([&] { o = flao(in[0], in[1], in[2], in[3], options); });
    const Traffic back = traffic_of([&] { tape.backward(o, {upstream, false}); });
    check_bytes(there, 5 * unit + sums, 0.01);
    check_bytes(back, backward * unit + sums + kv, 0.01);
    CHECK(faults_of(there) == "");
    CHECK(faults_of(back) == "");
  }
}

}  // namespace

TEST_CASE("traffic: flao in f32 reads and writes everything once") {
  check_moved({1, 2, 256, 256, 128, 128}, {}, 128);
  check_moved({1, 1, 600, 600, 64, 64}, {}, 64);
}

TEST_CASE("traffic: activations and encodings cost flao in f32 no traffic") {
  const Sizes s{1, 1, 256, 256, 128, 128};
  FlaoOptions options{.q_act = Act::silu,
                      .k_act = Act::softmax,
                      .k_dim = -1,
                      .v_act = Act::sigmoid,
                      .g_act = Act::softmax,
                      .g_dim = -1,
                      .lrpe = FlaoLrpe::rotate,
                      .theta = theta_of({1, 64}, f32, cuda)};
  check_moved(s, options, 128);
  options.lrpe = FlaoLrpe::cosine;
  options.theta = theta_of({1, 128}, f32, cuda);
  check_moved(s, options, 256);
}
