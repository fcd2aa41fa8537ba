// What tpa_decode holds, keeps and takes.
#include <quipu/quipu.h>

#include "quipu/ops/tpa_decode/kernels.h"
#include "tpa_support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::tpa;

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: meta takes the same memory") {
  const auto peak_of = [](const Size& s, DType dtype, Device where, bool train) {
    const Six in = inputs_of(s, dtype, where);
    if (train) wanting(in);
    const PeakMemory peak(where);
    Tape tape;
    const Tensor o = fused(in, {.lengths = zeros({s.b}, i64, where)});
    CHECK(o.shape() == Shape{s.b, 1, s.h, s.e});
    if (train) tape.backward(o, {zeros(o.shape(), dtype, where)});
    return peak.bytes_above();
  };
  for (const Size& s : {Size{2, 30, 3, 2, 4, 5}, Size{2, 600, 3, 2, 4, 5, 2, 3}}) {
    for (const DType dtype : {f64, f32, bf16}) {
      for (const bool train : {false, true}) {
        CHECK(peak_of(s, dtype, device, train) ==
              peak_of(s, dtype, Device(device.kind(), 0, true), train));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: takes memory for the output, and for blocks if any") {
  const auto taken = [&](const Size& s) {
    const Six in = inputs_of(s, bf16, device);
    const PeakMemory peak(device);
    fused(in);
    return peak.bytes_above();
  };
  const auto whole = [](std::int64_t bytes) {
    return static_cast<std::size_t>((bytes + 511) / 512 * 512);
  };
  CHECK(taken({8, 256, 32, 16, 128, 128}) == whole(2 * 8 * 32 * 128));
  const Shape blocks = tpa_forward_workspace(device.kind(), {1, 1000, 3, 2, 5, 7}, true);
  REQUIRE(blocks.size() == 4);
  CHECK(blocks[1] > 1);
  CHECK(taken({1, 1000, 3, 2, 5, 7}) == whole(2 * 3 * 7) + whole(4 * numel(blocks)));
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: in one go gives the same, without memory for blocks") {
  const Size s{1, 1000, 3, 2, 5, 7};
  const Six in = inputs_of(s, f64, device);
  const Tensor d_o = randn({s.b, 1, s.h, s.e}, f64, device);
  const TpaOptions one_go{.split = false};
  const Six wanted = everything(fused, in, d_o), got = everything(fused, in, d_o, one_go);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(allclose(got[i], wanted[i], {1e-11, 1e-11}));
  }
  const PeakMemory peak(device);
  fused(in, one_go);
  CHECK(peak.bytes_above() == 512);
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: keeps what it declares") {
  const Size s{2, 5, 3, 2, 4, 6};
  for (const DType dtype : {f64, f32, bf16}) {
    for (const bool has_lengths : {false, true}) {
      for (unsigned subset = 0; subset < 64; ++subset) {
        CAPTURE(subset);
        const Six in = inputs_of(s, dtype, device);
        for (unsigned i = 0; i < 6; ++i) in[i].set_requires_grad((subset >> i & 1) != 0);
        TpaOptions options;
        if (has_lengths) options.lengths = full({s.b}, 4, i64, device);
        Tape tape;
        const Tensor o = fused(in, options);
        const bool scores = (subset & 0b011011) != 0;
        std::size_t wanted = 0;
        if (subset != 0) {
          for (const std::size_t i : {0u, 1u, 3u, 4u}) wanted += in[i].nbytes();
          if (scores || (subset & 0b100000) != 0) wanted += in[2].nbytes();
          if (scores || (subset & 0b000100) != 0) wanted += in[5].nbytes();
          if (scores) wanted += static_cast<std::size_t>(o.numel()) * size_of(compute_type(dtype));
          wanted += 2 * static_cast<std::size_t>(s.b * s.h) * size_of(compute_type(dtype));
          if (has_lengths) wanted += static_cast<std::size_t>(s.b) * sizeof(std::int64_t);
        }
        CHECK(tape.saved_bytes() == wanted);
        CHECK(tape.size() == (subset != 0 ? 1 : 0));
      }
    }
  }
}
