// Counted traffic of softmax attention on the emulated device: forward touches q, k, v, o and the
// log-sum-exp once; backward touches o once, d_o twice (for the means, too), everything else once,
// and by tensor cores f32 sums of the gradient of q; by ordinary arithmetic it reads what it finds
// weights from once for each gradient.
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

/// For sizes with n = m and d = e, 64 or 128, heads not grouped.
void check_moved(const Size& s, DType dtype, const Moved& moved, bool causal = false) {
  const bool products = detail::is_reduced(dtype);
  const auto heads = static_cast<double>(s.b * s.key_heads), n = static_cast<double>(s.n),
             d = static_cast<double>(s.d);
  const double unit = heads * n * d * static_cast<double>(size_of(dtype)),
               statistic = heads * n * 4;
  check_bytes(moved.forward, 4 * unit + statistic, 0.01);
  // By ordinary arithmetic d_v, which needs neither v nor means, is a pass of its own.
  const double passes = products ? 2 + 7 : 2 + 4 + 5 + 5, statistics = products ? 4 : 6;
  // Where several blocks of 64 keys add to a gradient of q, the first writes and the last reads.
  const double shared = products ? 2 * heads * (causal ? n - 64 : n) * d * 4 : 0;
  const double sizes = dtype == f16 ? 2 * statistic : 0;
  const double all = passes * unit + statistics * statistic + shared + sizes;
  check_bytes(moved.backward, all, 0.01);
  check_bytes(moved.adding, all + 3 * unit, 0.01);
  for (const Traffic* t : {&moved.forward, &moved.backward, &moved.adding}) {
    CHECK(faults_of(*t) == "");
  }
}

/// Pairs of a query and a key that tiles of (rows of a warp, keys of a tile) visit, for n = m.
double visited(std::int64_t n, std::int64_t rows, std::int64_t keys, bool causal) {
  double pairs = 0;
  for (std::int64_t first = 0; first < n; first += rows) {
    const std::int64_t seen = causal ? std::min(first + rows, n) : n;
    pairs += static_cast<double>(rows * ((seen + keys - 1) / keys * keys));
  }
  return pairs;
}
/// Two products in forward and five in backward, of the pairs that the mask leaves and those that
/// share a fragment's tile with them, or for the gradient of q a block's.
void check_products(const Size& s, const Moved& moved, bool causal) {
  const double pair = 2.0 * static_cast<double>(s.b * s.key_heads * s.d);
  const double forward = visited(s.n, 32, s.d > 64 ? 32 : 64, causal),
               backward = 4 * visited(s.n, 16, 32, causal) + visited(s.n, 32, 64, causal);
  CHECK(static_cast<double>(moved.forward.counters.mma_flops) == 2 * pair * forward);
  CHECK(static_cast<double>(moved.backward.counters.mma_flops) == pair * backward);
}

}  // namespace

TEST_CASE("traffic: attention by tensor cores") {
  const Size s{1, 2, 1, 128, 128, 64, 64}, wide{1, 1, 1, 128, 128, 128, 128};
  for (const DType dtype : {bf16, f16}) {
    CAPTURE(dtype);
    for (const bool causal : {false, true}) {
      CAPTURE(causal);
      const Moved moved = moved_by(s, dtype, {.causal = causal});
      check_moved(s, dtype, moved, causal);
      check_products(s, moved, causal);
    }
  }
  const Moved moved = moved_by(wide, bf16, {.causal = true});
  check_moved(wide, bf16, moved, true);
  check_products(wide, moved, true);
}

TEST_CASE("traffic: attention of few queries splits the keys, and reads them once") {
  const Size s{1, 2, 4, 1, 1024, 64, 64};
  const Three in = inputs_of(s, bf16, cuda);
  const Traffic t = traffic_of([&] { fused(in, {.causal = true}); });
  REQUIRE(t.launches.size() == 2);  // and the merge
  CHECK(t.launches[0].grid[0] == 2 * 4);
  const auto keys = static_cast<double>(in[1].nbytes() + in[2].nbytes());
  CHECK(static_cast<double>(t.launches[0].counters.unique_read_bytes) <= 1.02 * keys);
  CHECK(t.sector_bytes() <= 1.2 * keys);
  CHECK(faults_of(t) == "");
}

TEST_CASE("traffic: attention by ordinary arithmetic") {
  const Size s{1, 1, 1, 128, 128, 64, 64};
  check_moved(s, f32, moved_by(s, f32));
}
