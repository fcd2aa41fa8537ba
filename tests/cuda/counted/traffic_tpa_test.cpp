// Counted traffic of tpa_decode, on the emulated device.
#include <quipu/quipu.h>

#include "ops/fused/tpa_support.h"

#include "quipu/ops/tpa_decode/kernels.h"
#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::tpa;

namespace {

const Device cuda("cuda");

double bytes_of(const Six& x) {
  double sum = 0;
  for (const Tensor& t : x) sum += static_cast<double>(t.nbytes());
  return sum;
}

}  // namespace

TEST_CASE("traffic: tpa_decode in one block reads its inputs once and writes its output") {
  for (const DType dtype : {bf16, f16, f32}) {
    CAPTURE(dtype);
    for (const Size& s : {Size{1, 512, 32, 16, 128, 128}, Size{1, 256, 16, 7, 64, 48, 2, 2}}) {
      CAPTURE(text(s));
      const Six in = inputs_of(s, dtype, cuda);
      Tensor o;
      const Traffic t = traffic_of([&] { o = fused(in, {.split = false}); });
      check_bytes(t, bytes_of(in) + static_cast<double>(o.nbytes()), 0.02);
      // Nothing comes from a cache, either, where rows are as wide as a block's.
      if (dtype != f32 && s.d == 128) CHECK(t.sector_bytes() <= 1.02 * t.bytes());
      CHECK(t.launches.size() == 1);
      CHECK(faults_of(t) == "");
      // Scores take two products of bf16 each, so do outputs: 2 flops an element and product.
      const double products = static_cast<double>(s.m * s.h) *
                              static_cast<double>(s.key_rank * s.d + s.value_rank * s.e);
      if (dtype != f32) CHECK(static_cast<double>(t.counters.mma_flops) >= 4 * products);
    }
  }
}

TEST_CASE("traffic: tpa_decode in several blocks moves their parts beside") {
  for (const DType dtype : {bf16, f32}) {
    CAPTURE(dtype);
    const Size s{2, 530, 32, 16, 128, 128};
    const Six in = inputs_of(s, dtype, cuda);
    Tensor o;
    const Traffic t = traffic_of([&] { o = fused(in); });
    const Shape parts =
        tpa_forward_workspace(DeviceKind::cuda, {s.b, s.m, s.h, s.r, s.d, s.e}, true);
    CHECK(parts[1] == 3);
    // Written by one launch and read by the other.
    const double moved = 2 * 4 * static_cast<double>(numel(parts));
    check_bytes(t, bytes_of(in) + static_cast<double>(o.nbytes()) + moved, 0.02);
    CHECK(t.launches.size() == 2);
    CHECK(faults_of(t) == "");
  }
}

TEST_CASE("traffic: backward of tpa_decode reads each input once and writes each gradient once") {
  for (const DType dtype : {bf16, f32}) {
    CAPTURE(dtype);
    const Size s{1, 128, 32, 16, 128, 128};
    const Six in = inputs_of(s, dtype, cuda);
    const TpaOutput out = tpa_decode_with_lse(in[0], in[1], in[2], in[3], in[4], in[5]);
    const Tensor d_o = random_tensor(out.o.shape(), dtype, cuda);
    Six d;
    for (const Tensor& x : in) d.push_back(zeros(x.shape(), dtype, cuda));
    for (const bool add : {false, true}) {
      const auto grad = [&](std::size_t i) {
        return add ? Grad::add_to(d[i]) : Grad::write_to(d[i]);
      };
      const Traffic t = traffic_of([&] {
        tpa_decode_backward(in[0], in[1], in[2], in[3], in[4], in[5], out, d_o,
                            {grad(0), grad(1), grad(2), grad(3), grad(4), grad(5)});
      });
      const Shape parts =
          tpa_backward_workspace(DeviceKind::cuda, {s.b, s.m, s.h, s.r, s.d, s.e}, true);
      const double moved = 2 * 4 * static_cast<double>(numel(parts));
      const double kept = bytes_of({d_o, out.unrounded, out.lse});
      check_bytes(t, (add ? 3 : 2) * bytes_of(in) + kept + moved, 0.02);
      CHECK(faults_of(t) == "");
    }
  }
}
