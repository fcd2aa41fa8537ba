// The model behind predicted times, on counts made by hand; and on the emulated device, that what
// is counted and how it grows is what the operators are known to move.
#include "predict.h"

#include <algorithm>
#include <cmath>

#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::bench;

/// Round figures: 1 TB/s of memory at 92 %, 1 MB of L2.
const Card card{"card", "Card", 80, 1e12, 1e6, 5e12, 100, 1e9, 150000, 100e12};
constexpr double launch_ms = 0.003;

LaunchCounts launch(double read, double written) {
  LaunchCounts counts;
  counts.kernel = "kernel";
  counts.threads = 256;
  counts.blocks = 1000;
  counts[Count::read_bytes] = read;
  counts[Count::written_bytes] = written;
  counts[Count::sectors] = (read + written) / 32;
  return counts;
}

/// Code without loops.
MachineCode straight(double instructions) {
  MachineCode code;
  code.once.instructions = instructions;
  return code;
}

/// Without the cost of the launch.
double busy_ms(const LaunchCounts& counts, const MachineCode* code = nullptr) {
  return time_of(counts, card, code).ms - launch_ms;
}

std::string bound(const LaunchCounts& counts, const MachineCode* code = nullptr) {
  return time_of(counts, card, code).bound;
}

doctest::Approx close(double value) {
  return doctest::Approx(value).epsilon(1e-9);
}

const std::vector<PublishedTable>& published() {
  static const std::vector<PublishedTable> tables = read_published(published_directory());
  return tables;
}

const PublishedTable& table_named(const std::string& name) {
  const auto it = std::find_if(published().begin(), published().end(),
                               [&](const PublishedTable& t) { return t.name == name; });
  REQUIRE(it != published().end());
  return *it;
}

TEST_CASE("predict: the slowest part of a launch is its time") {
  LaunchCounts counts = launch(600e6, 320e6);
  CHECK(busy_ms(counts) == close(1));  // 0.92 GB at 0.92 TB/s
  CHECK(bound(counts) == "memory");
  counts[Count::sectors] = 0.5e9;
  CHECK(busy_ms(counts) == close(3.2));
  CHECK(bound(counts) == "L2");
  counts[Count::passes] = 4e8;  // on 100 multiprocessors at 1 GHz
  CHECK(busy_ms(counts) == close(4));
  CHECK(bound(counts) == "shared memory");
  counts[Count::mma_flops] = 5e11;
  CHECK(busy_ms(counts) == close(5));
  CHECK(bound(counts) == "tensor cores");
  const MachineCode code = straight(300000);  // of 8000 warps, four a clock and multiprocessor
  CHECK(busy_ms(counts, &code) == close(6));
  CHECK(bound(counts, &code) == "instructions");
}

TEST_CASE("predict: few blocks keep few multiprocessors busy") {
  LaunchCounts counts = launch(92e6, 0);
  counts.blocks = 10;  // 64 bytes a clock each: 0.64 TB/s
  CHECK(busy_ms(counts) == close(92e6 / 0.64e9));
  CHECK(bound(counts) == "few blocks");
  counts[Count::passes] = 1e7;
  CHECK(busy_ms(counts) == close(1));
  counts[Count::mma_flops] = 2e10;
  CHECK(busy_ms(counts) == close(2));
  const MachineCode code = straight(1200000);  // of 80 warps
  CHECK(busy_ms(counts, &code) == close(2.4));
  counts.blocks = 0;  // not known: all multiprocessors are busy
  CHECK(busy_ms(counts) == close(0.2));
}

TEST_CASE("predict: launches add up, each with its cost; no launch costs nothing") {
  CHECK(total_ms(time_of(CallCounts{}, card)) == 0);
  const LaunchCounts small = launch(32, 32);
  CHECK(std::string(time_of(small, card, nullptr).bound) == "launch");
  const CallCounts two{launch(92e6, 0), launch(0, 184e6)};
  CHECK(total_ms(time_of(two, card)) == close(0.1 + 0.2 + 2 * launch_ms));
}

TEST_CASE("predict: a second read goes to memory when more than L2 lies between") {
  LaunchCounts counts = launch(92e6, 0);  // 800 blocks of 256 threads are resident on this card
  counts[Count::again_in_block] = 92e6 / 32;
  counts[Count::gap_in_block] = 39;  // x 32 bytes x 800 blocks: less than 1 MB
  CHECK(busy_ms(counts) == close(0.1));
  counts[Count::gap_in_block] = 40;
  CHECK(busy_ms(counts) == close(0.2));
  SUBCASE("shared memory lets fewer blocks run at once") {
    counts.shared_bytes = 70000;  // 2 a multiprocessor: 200 in all
    CHECK(busy_ms(counts) == close(0.1));
    counts[Count::gap_in_block] = 160;
    CHECK(busy_ms(counts) == close(0.2));
  }
  SUBCASE("a launch that touches less than L2 keeps all of it") {
    LaunchCounts little = launch(0.9e6, 0);
    little[Count::again_in_block] = 1e6;
    little[Count::gap_in_block] = 1e6;
    CHECK(time_of(little, card, nullptr).memory_bytes == 0.9e6);
  }
  SUBCASE("what L1 keeps is nothing to L2") {
    LaunchCounts often = launch(0.92e6, 0);
    often[Count::sectors] = 0.5e9;
    often[Count::again_in_block] = 0.45e9;
    often[Count::gap_in_block] = 585;  // x 32 bytes x 8 blocks: 149760
    CHECK(busy_ms(often) == close(0.32));
    often[Count::gap_in_block] = 586;
    CHECK(busy_ms(often) == close(3.2));
    often.shared_bytes = 10000;  // leaves 70000
    often[Count::gap_in_block] = 280;
    CHECK(busy_ms(often) == close(3.2));
  }
  SUBCASE("what several blocks read again, L2 has") {
    std::swap(counts[Count::again_in_block], counts[Count::again_shared]);
    counts[Count::gap_shared] = 1e9;
    CHECK(busy_ms(counts) == close(0.1));
  }
  SUBCASE("between blocks") {
    counts[Count::again_in_block] = 0;
    counts[Count::again_across] = 46e6 / 32;
    counts[Count::gap_across] = 10;  // blocks of 92 KB
    CHECK(busy_ms(counts) == close(0.1));
    counts[Count::gap_across] = 11;
    CHECK(busy_ms(counts) == close(0.15));
  }
}

/// Two launches. The first is cut into parts of at most 512 tokens, at most four, and leaves 4
/// bytes for each of its blocks, which the second reads.
CallCounts cut(double tokens, double units) {
  CallCounts counts{launch(0, 0), launch(0, 0)};
  counts[0].blocks = units * std::min(4.0, std::ceil(tokens / 512));
  counts[1].blocks = units;
  return counts;
}
Sample sample(double tokens, double units) {
  CallCounts counts = cut(tokens, units);
  counts[0][Count::read_bytes] = 1000 + 7 * tokens * units + 2 * units + 3 * tokens;
  counts[0][Count::written_bytes] = counts[1][Count::read_bytes] = 4 * counts[0].blocks;
  counts[0][Count::sectors] = counts[0][Count::read_bytes] / 32;
  counts[0][Count::mma_flops] = 3 * tokens;
  counts[0][Count::gap_in_block] = tokens / 8;
  return {tokens, units, counts};
}

void check_growth(const Growth& growth, double tokens, double units) {
  REQUIRE(growth.knows(tokens, units, cut(tokens, units)));
  const CallCounts grown = growth.at(tokens, units, cut(tokens, units)),
                   counted = sample(tokens, units).counts;
  for (std::size_t launch = 0; launch < 2; ++launch) {
    CHECK(grown[launch].blocks == counted[launch].blocks);
    for (std::size_t k = 0; k < counted[0].values.size(); ++k) {
      CAPTURE(k);
      CHECK(grown[launch].values[k] == doctest::Approx(counted[launch].values[k]).epsilon(1e-6));
    }
  }
}

TEST_CASE("predict: growth with tokens, units and blocks") {
  const Growth whole({sample(64, 12), sample(128, 12)});  // one part each
  check_growth(whole, 500, 12);
  CHECK(whole.deviation_from(sample(192, 12)) < 1e-9);
  CHECK_FALSE(whole.knows(2048, 12, cut(2048, 12)));  // four times the blocks, never seen
  const Growth by_units({sample(64, 1), sample(128, 1), sample(64, 2), sample(128, 2)});
  check_growth(by_units, 400, 144);
  const Growth in_parts({sample(1024, 1), sample(1088, 1), sample(1280, 1), sample(1024, 2),
                         sample(1088, 2), sample(1280, 2)});  // two parts, three, three
  check_growth(in_parts, 32768, 144);
  CHECK(in_parts.deviation_from(sample(1216, 2)) < 1e-9);
  const Growth even({sample(512, 1), sample(1024, 1), sample(512, 2), sample(1024, 2)});
  CHECK_FALSE(even.knows(32768, 144, cut(32768, 144)));  // blocks grow with tokens here, not there
}

TEST_CASE("predict: gaps that grow with a part, and gaps whose sum grows with the work") {
  // A block asks for 100 sectors of its own and 10 for each of its tokens, and then again for 50.
  const auto worked = [](double tokens, double units) {
    Sample s = sample(tokens, units);
    s.counts[0][Count::again_in_block] = 50 * s.counts[0].blocks;
    s.counts[0][Count::gap_in_block] = 100 + 10 * tokens * units / s.counts[0].blocks;
    return s;
  };
  const auto gap = [](const Growth& growth, double tokens, double units) {
    return growth.at(tokens, units, cut(tokens, units))[0][Count::gap_in_block];
  };
  Growth sums({worked(1024, 1), worked(1088, 1), worked(1280, 1), worked(1024, 2), worked(1088, 2),
               worked(1280, 2)});
  sums.choose_gaps(worked(1216, 2));
  CHECK(gap(sums, 32768, 144) == doctest::Approx(100 + 10 * 32768 / 4));
  // A block reads its tokens, all of them, and then again.
  const auto strip = [](double tokens) {
    Sample s = sample(tokens, 1);
    s.counts[0].blocks = 1;
    s.counts[0][Count::again_in_block] = s.counts[0][Count::gap_in_block] = 4 * tokens;
    return s;
  };
  Growth means({strip(1024), strip(1088), strip(1280)});
  means.choose_gaps(strip(1216));
  CHECK(gap(means, 32768, 1) == doctest::Approx(4 * 32768));
}

TEST_CASE("predict: growth with the square of the tokens") {
  const auto squared = [](double tokens) {
    Sample s = sample(tokens, 1);
    s.counts[0][Count::mma_flops] = 5 + 3 * tokens + 2 * tokens * tokens;
    return s;
  };
  const Growth growth({squared(64), squared(128), squared(192)}, Growth::Work::squares);
  CHECK(growth.at(4096, 1, cut(4096, 1))[0][Count::mma_flops] ==
        doctest::Approx(5 + 3 * 4096.0 + 2 * 4096.0 * 4096.0).epsilon(1e-6));
  const Growth linear({squared(64), squared(128), squared(192)});
  CHECK(linear.deviation_from(squared(256)) > 0.01);
}

TEST_CASE("predict: growth that is not as assumed, and other kernels, are noticed") {
  const Growth growth({sample(64, 12), sample(128, 12)});
  Sample third = sample(192, 12);
  third.counts[0][Count::written_bytes] *= 1.25;
  CHECK(growth.deviation_from(third) == doctest::Approx(0.2).epsilon(0.01));
  third = sample(192, 12);
  third.counts[1][Count::passes] = 1;  // there were none
  CHECK(growth.deviation_from(third) == 1);
  third = sample(192, 12);
  third.counts[1].kernel = "another";
  CHECK(std::isinf(growth.deviation_from(third)));
  CHECK_FALSE(growth.knows(192, 12, third.counts));
  expect_error([&] { Growth({sample(64, 12), third}); }, "growth", "different kernels");
  expect_error([&] { Growth({sample(64, 12)}); }, "growth", "two samples or more");
}

TEST_CASE("predict: the least bytes of the largest rows") {
  const auto gigabytes = [](const std::string& name) {
    const PublishedTable& table = table_named(name);
    return doctest::Approx(least_bytes(table, table.rows.back().n) / 1e9).epsilon(2e-3);
  };
  const std::string size = "-batch12-head12-dim128-";
  CHECK(gigabytes("act-speed-fwd" + size + "act_relu-bf16") == 2.416);
  CHECK(gigabytes("act-speed-bwd" + size + "act_none-bf16") == 3.624);
  CHECK(gigabytes("lrpe_rotate-speed-bwd" + size + "act_none-bf16") == 3.624);
  CHECK(gigabytes("lrpe_rotate-speed-bwd" + size + "act_silu-bf16") == 4.832);
  CHECK(gigabytes("md_lrpe_cosine-speed-bwd" + size + "bf16-2d-l10") == 2.417);
  CHECK(gigabytes("flao-speed-bwd" + size + "dim128-bf16") == 15.703);
  CHECK(gigabytes("tpa_decode-speed-fwd-batch32-head32-dim128-rank16-bf16") == 0.672);
}

TEST_CASE("predict: cards") {
  CHECK(card_of(table_named("act-speed-fwd-batch12-head12-dim128-act_relu-bf16")).name == "h100");
  CHECK(card_of(table_named("lrpe_rotate-speed-fwd-batch12-head12-dim128-act_none-bf16")).name ==
        "h100");
  CHECK(card_of(table_named("flao-speed-fwd-batch12-head12-dim128-dim128-bf16")).name == "a800");
  expect_error([] { card_named("gtx"); }, "no card 'gtx'", "a800", "h100");
}

TEST_CASE("predict: act from counted launches") {
  const PublishedTable& table = table_named("act-speed-bwd-batch12-head12-dim128-act_silu-bf16");
  if (!can_predict()) {
    expect_error([&] { predict(table, card, 0); }, "emulated device");
    return;
  }
  const Comparison ours = predict(table, card_named("h100"), 0);
  REQUIRE(ours.rows.size() == 8);
  for (const Comparison::Row& row : ours.rows) {
    CAPTURE(table.rows[row.index].n);
    // One launch at the byte limit: x, the upstream gradient, the gradient read and written.
    CHECK(row.ours[0] == doctest::Approx(row.limit / 0.92 + launch_ms).epsilon(0.002));
    CHECK(row.ours[0] < table.best(row.index));
  }
  const std::string text = as_text(ours), csv = as_csv(ours), html = as_html({ours});
  CHECK(text.find("predicted for H100") != std::string::npos);
  CHECK(text.find("ours_predicted") != std::string::npos);
  CHECK(text.find("counted at 144 x 64, 144 x 68, 144 x 80, and 144 x 76 tokens") !=
        std::string::npos);
  CHECK(csv.find("n,ours_predicted,tr,to,toc,best_published,byte_limit\n") != std::string::npos);
  CHECK(csv.find("Left out: latency") != std::string::npos);
  CHECK(html.find("Left out: latency") != std::string::npos);
  expect_error([&] { predict(published()[0], card, 0); }, "only speed is predicted");
}

/// The prediction of the largest row, as a share of the best published figure.
double largest_share(const std::string& name) {
  PublishedTable table = table_named(name);
  table.rows = {table.rows.back()};
  const Comparison ours = predict(table, card_of(table), 0, Columns::first);
  INFO(as_text(ours));
  CHECK(ours.rows[0].ours[0] >= ours.rows[0].limit);  // nothing beats the byte limit
  return ours.rows[0].ours[0] / table.best(0);
}

TEST_CASE("predict: the largest rows are well below the best published ones") {
  if (!can_predict()) return;
  const std::string size = "-batch12-head12-dim128-", rotate = "lrpe_rotate-speed-",
                    cosine = "md_lrpe_cosine-speed-";
  CHECK(largest_share("act-speed-bwd" + size + "act_silu-bf16") <= 0.7);
  CHECK(largest_share(rotate + "fwd" + size + "act_none-bf16") <= 0.4);
  CHECK(largest_share(cosine + "bwd" + size + "bf16-1d-l0") <= 0.6);
  CHECK(largest_share("tpa_decode-speed-fwd-batch32-head32-dim128-rank16-bf16") <= 0.6);
  CHECK(largest_share("flao-speed-bwd" + size + "dim128-bf16") <= 0.6);
}

}  // namespace
