// Counted traffic of softmax attention on the emulated device: forward touches q, k, v, o and the
// log-sum-exp once; backward touches o once, what it finds weights from three times (for the means,
// the gradients of keys and values, and those of queries, as far as each needs it), gradients once.
#include "ops/fused/attention_support.h"

#include "traffic.h"

using namespace quipu;
using namespace quipu::testing;
using namespace quipu::testing::softmax_attention;

namespace {

const Device cuda("cuda");

struct Moved {
  Traffic forward, backward, adding;
};

/// Forward, backward into fresh gradients, and backward into those that are there.
Moved moved_by(const Size& s, DType dtype, const AttentionOptions& options = {}) {
  const Three in = wanting(inputs_of(s, dtype, cuda));
  const Tensor d_o = random_tensor(output_of(s), dtype, cuda);
  Moved moved;
  for (Traffic* backward : {&moved.backward, &moved.adding}) {
    Tape tape;
    Tensor o;
    moved.forward = traffic_of([&] { o = fused(in, options); });
    *backward = traffic_of([&] { tape.backward(o, {d_o, false}); });
  }
  return moved;
}

/// For sizes with n = m and d = e, heads not grouped. `pairs` of tiles of 64 x 64 per head.
void check_moved(const Size& s, DType dtype, const Moved& moved, double pairs, bool products) {
  const auto heads = static_cast<double>(s.b * s.key_heads), n = static_cast<double>(s.n),
             d = static_cast<double>(s.d);
  const double unit = heads * n * d * static_cast<double>(size_of(dtype)),
               statistic = heads * n * 4;
  check_bytes(moved.forward, 4 * unit + statistic, 0.01);
  // By ordinary arithmetic d_v, which needs neither v nor means, is a pass of its own.
  const double passes = products ? 2 + 6 + 5 : 2 + 4 + 5 + 5, statistics = products ? 5 : 6;
  check_bytes(moved.backward, passes * unit + statistics * statistic, 0.01);
  check_bytes(moved.adding, (passes + 3) * unit + statistics * statistic, 0.01);
  for (const Traffic* t : {&moved.forward, &moved.backward, &moved.adding}) {
    CHECK(faults_of(*t) == "");
  }
  if (!products) return;
  const double flops = 2 * heads * pairs * 64 * 64 * d;
  // A product with halves counts as two.
  CHECK(static_cast<double>(moved.forward.counters.mma_flops) == (1 + 2) * flops);
  CHECK(static_cast<double>(moved.backward.counters.mma_flops) == (6 + 4) * flops);
}

}  // namespace

TEST_CASE("traffic: attention by tensor cores") {
  const Size s{1, 2, 1, 128, 128, 64, 64}, wide{1, 1, 1, 128, 128, 128, 128};
  check_moved(s, bf16, moved_by(s, bf16), 4, true);
  check_moved(s, bf16, moved_by(s, bf16, {.causal = true}), 3, true);
  check_moved(wide, bf16, moved_by(wide, bf16), 4, true);
}

TEST_CASE("traffic: attention by ordinary arithmetic") {
  const Size s{1, 1, 1, 128, 128, 64, 64};
  check_moved(s, f32, moved_by(s, f32), 4, false);
}
