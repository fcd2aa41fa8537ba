// The cache of factors: grows in place, and holds little.
#include "tpa_support.h"

using namespace quipu;
using namespace quipu::testing::tpa;

TEST_CASE_FIXTURE(EachDevice, "tpa_cache: grows token by token") {
  const Size s{2, 9, 3, 2, 4, 5};
  for (const TpaRanks ranks : {TpaRanks{}, TpaRanks{2, 3}}) {
    Size sized = s;
    sized.key_rank = ranks.key;
    sized.value_rank = ranks.value;
    const Six in = inputs_of(sized, bf16, device);
    TpaCache cache;
    expect_error([&] { cache.view(); }, "reserve");
    const auto part = [&](std::size_t i, std::int64_t first, std::int64_t end) {
      return in[i].slice(1, first, end);
    };
    const auto append = [&](std::int64_t first, std::int64_t end) {
      cache.append(part(1, first, end), part(2, first, end), part(4, first, end),
                   part(5, first, end));
    };
    expect_error([&] { append(0, 1); }, "TpaCache::append", "reserve");
    const auto reserve = [&](std::int64_t tokens) {
      cache.reserve(s.b, tokens, s.h, s.d, s.e, bf16, device, ranks);
    };
    reserve(6);
    CHECK(cache.view().ak.size(1) == 0);
    append(0, 4);
    const std::uint64_t before = memory_stats(device).allocations;
    for (std::int64_t m = 4; m < 6; ++m) append(m, m + 1);
    CHECK(memory_stats(device).allocations == before);
    expect_error([&] { append(6, 7); }, "the cache is full: it holds 6 of 6 tokens", "reserve");
    expect_error([&] { reserve(5); }, "capacity is 5", "6 tokens are held");
    expect_error([&] { cache.reserve(s.b, 9, s.h + 1, s.d, s.e, bf16, device, ranks); }, "clear()");
    reserve(9);
    append(6, 9);
    CHECK(cache.length() == 9);
    CHECK(cache.capacity() == 9);
    const TpaCache::Factors past = cache.view();
    CHECK(same_bits(past.ak, in[1]));
    CHECK(same_bits(past.bv, in[5]));
    CHECK(same_bits(tpa_decode(in[0], past.ak, past.av, in[3], past.bk, past.bv), fused(in)));
    expect_error([&] { cache.append(in[1], in[1].to(f32), in[4], in[5]); }, "av");
    cache.clear();
    CHECK(cache.view().bv.size(1) == 0);
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_cache: holds 2h + d + e numbers a token") {
  TpaCache cache;
  const PeakMemory peak(device);
  cache.reserve(4, 128, 32, 128, 128, bf16, device);
  CHECK(peak.bytes_above() == 2 * 4 * 128 * (2 * 32 + 128 + 128));
}
