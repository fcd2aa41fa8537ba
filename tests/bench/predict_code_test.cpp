// What machine code adds to predicted times, on counts made by hand; and that the code of every
// kernel is known.
#include <sstream>

#include "predict.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::bench;

/// Round figures: 1 TB/s of memory at 92 %, 100 multiprocessors at 1 GHz.
const Card card{"card", "Card", 80, 1e12, 1e6, 5e12, 100, 1e9, 150000, 100e12};
constexpr double launch_ms = 0.003;

LaunchCounts launch(double read) {
  LaunchCounts counts;
  counts.kernel = "kernel";
  counts.threads = 256;
  counts.blocks = 1000;
  counts[Count::read_bytes] = read;
  counts[Count::sectors] = read / 32;
  return counts;
}

/// Code without loops.
MachineCode straight(double instructions) {
  MachineCode code;
  code.once.instructions = instructions;
  return code;
}

double busy_ms(const LaunchCounts& counts, const MachineCode* code) {
  return time_of(counts, card, code).ms - launch_ms;
}

doctest::Approx close(double value) {
  return doctest::Approx(value).epsilon(1e-9);
}

TEST_CASE("predict: mma.sync on Hopper") {
  Card hopper = card;
  hopper.sm = 90;
  LaunchCounts counts = launch(32);
  counts[Count::mma_flops] = 6.2e11;
  const MachineCode code = straight(1);
  CHECK(time_of(counts, card, &code).ms == close(6.2 + launch_ms));
  CHECK(time_of(counts, hopper, &code).ms == close(10 + launch_ms));
  CHECK(time_of(counts, hopper, nullptr).ms == close(6.2 + launch_ms));  // a library's product
}

TEST_CASE("predict: barriers in the only block of a multiprocessor keep phases apart") {
  LaunchCounts counts = launch(92e6);  // 0.1 ms
  counts[Count::passes] = 4e7;         // 0.4 ms
  counts[Count::barriers] = 1000;
  MachineCode code = straight(1);
  code.registers = 128;  // two blocks of 256 threads
  CHECK(busy_ms(counts, &code) == close(0.4));
  SUBCASE("by registers") {
    code.registers = 129;
    CHECK(busy_ms(counts, &code) == close(0.5));
    CHECK(std::string(time_of(counts, card, &code).bound) == "fetching, then computing");
  }
  SUBCASE("by shared memory: 164 KiB, and 1 KiB of each block is the system's") {
    counts.shared_bytes = 81 << 10;
    CHECK(busy_ms(counts, &code) == close(0.4));
    counts.shared_bytes += 1;
    CHECK(busy_ms(counts, &code) == close(0.5));
  }
  SUBCASE("by the number of blocks") {
    counts.blocks = 100;
    CHECK(busy_ms(counts, &code) == close(0.5));
  }
  SUBCASE("unless rows are fetched ahead, or there are no barriers") {
    counts.blocks = 100;
    code.fetches_ahead = true;
    CHECK(busy_ms(counts, &code) == close(0.4));
    code.fetches_ahead = false;
    counts[Count::barriers] = 0;
    CHECK(busy_ms(counts, &code) == close(0.4));
  }
}

TEST_CASE("predict: blocks on a multiprocessor") {
  // 60 KiB of 164, 100, 100, 228, 100; 65536 registers; 2048 or 1536 threads.
  const int architectures[] = {80, 86, 89, 90, 120};
  const double by_shared[] = {2, 1, 1, 3, 1}, by_threads[] = {8, 6, 6, 8, 6},
               by_slots[] = {32, 16, 24, 32, 24};
  for (std::size_t i = 0; i < 5; ++i) {
    CAPTURE(architectures[i]);
    CHECK(blocks_fitting(architectures[i], 128, 32, 60 << 10) == by_shared[i]);
    CHECK(blocks_fitting(architectures[i], 256, 32, 0) == by_threads[i]);
    CHECK(blocks_fitting(architectures[i], 32, 32, 0) == by_slots[i]);
    CHECK(blocks_fitting(architectures[i], 128, 255, 0) == 2);
  }
  expect_error([] { blocks_fitting(75, 128, 32, 0); }, "sm_75", "not known");
}

TEST_CASE("predict: instructions of a launch") {
  LaunchCounts counts = launch(0);  // 8000 warps
  MachineCode code = straight(100);
  code.once.bytes = 32;
  code.loops[0] = {50, 10, 16, 64};  // instructions, mma, bytes of a lane, in shared memory
  code.loops[1] = {30, 0, 32, 16};
  code.loops[2] = {20, 0, 0, 80};
  const auto add = [&](Count kind, double bytes, double warps) {
    counts[kind] += 32 * bytes * warps;
  };
  add(Count::lane_bytes, 32, 8000);
  CHECK(issue_slots(counts, code) == close(8e5));
  counts[Count::mma_flops] = 4096 * 10e4;  // the first loop 1e4 times
  add(Count::lane_bytes, 16, 1e4);
  add(Count::shared_lane_bytes, 64, 1e4);
  CHECK(issue_slots(counts, code) == close(8e5 + 5e5));
  add(Count::lane_bytes, 32, 1e4);  // the second loop 1e4 times
  add(Count::shared_lane_bytes, 16, 1e4);
  CHECK(issue_slots(counts, code) == close(8e5 + 5e5 + 3e5));
  add(Count::shared_lane_bytes, 8, 1e4);  // less than a tenth: not the third loop
  CHECK(issue_slots(counts, code) == close(8e5 + 5e5 + 3e5));
  add(Count::shared_lane_bytes, 72, 1e4);  // the third loop 1e4 times
  CHECK(issue_slots(counts, code) == close(8e5 + 5e5 + 3e5 + 2e5));
  LaunchCounts half = launch(0);  // half of the warps have nothing to access
  half[Count::lane_bytes] = 32 * 32 * 4000;
  CHECK(issue_slots(half, code) == close(4e5));
}

TEST_CASE("predict: the machine code of every kernel that is predicted is known") {
  for (const std::string& kernel : predicted_kernels()) {
    INFO(kernel << ": scripts/machine_code --update");
    CHECK(code_of(kernel, 80) != nullptr);
    CHECK(code_of(kernel, 90) != nullptr);
  }
  CHECK(code_of("quipu::no_such_kernel", 80) == nullptr);
}

TEST_CASE("predict: forward attention issues less than its products take, 8 clocks for each mma") {
  for (const std::string width : {"64", "128"}) {
    const MachineCode* code =
        code_of("quipu::detail::on_cuda::(anonymous namespace)::attend_fragments<__nv_bfloat16, " +
                    width + ">",
                80);
    REQUIRE(code != nullptr);
    CAPTURE(width);
    CHECK(code->loops[0].instructions < 8 * code->loops[0].mma);
  }
}

TEST_CASE("predict: attention beside FlashAttention-2") {
  if (!can_predict()) {
    expect_error([&] { predict_attention(card); }, "emulated device");
    return;
  }
  const std::string text = predict_attention(card_named("h100"));
  INFO(text);
  CHECK(text.find("predicted for H100 SXM") != std::string::npos);
  CHECK(text.find("attention-bwd-d128-causal (n = 640 is met to 0.0") != std::string::npos);
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  for (int n = 0; std::getline(lines, line);) {  // nothing beats what mma.sync can
    std::istringstream words(line);
    double tflops = 0;
    if (words >> n >> tflops) CHECK((tflops > 0 && tflops < 0.62 * 989));
  }
}

}  // namespace
