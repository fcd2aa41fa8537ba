// What collectives of a warp, votes of a block and atomics give.
#include <functional>

#include "buffer.h"
#include "kernels.h"

namespace quipu::testing {
namespace {

TEST_CASE("emulator: collectives of a warp") {
  const std::vector<std::function<int(int)>> wanted{
      [](int) { return 5; },
      [](int lane) { return lane / 8 * 8 + (lane + 1) % 8; },
      [](int lane) { return lane < 3 ? lane : lane - 3; },
      [](int lane) { return lane % 16 < 3 ? lane : lane - 3; },
      [](int lane) { return lane > 28 ? lane : lane + 3; },
      [](int lane) { return lane % 8 > 4 ? lane : lane + 3; },
      [](int lane) { return lane ^ 6; },
      [](int) { return 6; },
      [](int) { return 0x49249249; },
      [](int) { return 1; },
      [](int) { return 0; },
      [](int) { return 31 * 16; },
      [](int) { return -10; },
      [](int) { return -1; },
      [](int) { return 0; },
      [](int lane) { return int(0x11111111u << lane % 4); },
      [](int) { return -1; },
      [](int) { return 1; },
      [](int) { return 32; },
      [](int) { return 1; },
  };
  REQUIRE(wanted.size() == std::size_t(warp_rows));
  const Watched watched;
  const Buffer<int> out(std::size_t(warp_rows) * 32);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    emulator::settings().seed = seed;
    warp_collectives(out.data(), nullptr);
    const auto got = out.values();
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      for (std::size_t lane = 0; lane < 32; ++lane) {
        CAPTURE(row);
        CAPTURE(lane);
        CHECK(got[row * 32 + lane] == wanted[row](int(lane)));
      }
    }
    CHECK(emulator::report_text() == "");
  }
}

TEST_CASE("emulator: votes of a block") {
  const Watched watched;
  const Buffer<int> out(3);
  block_votes(out.data(), nullptr);
  CHECK(out.values() == std::vector<int>{34, 1, 0});
  CHECK(emulator::report_text() == "");
}

TEST_CASE("emulator: atomic updates") {
  const Watched watched;
  std::vector<unsigned> words(7 + 128);
  words[2] = 1000;
  const Buffer<unsigned> out(words);
  const Buffer<float> number(std::vector<float>(1));
  const Buffer<double> wide(std::vector<double>(1));
  atomic_updates(out.data(), number.data(), wide.data(), nullptr);
  const auto got = out.values();
  CHECK(got[0] == 2 * 63 * 32);
  CHECK(got[1] == 63);
  CHECK(got[2] == 0);
  CHECK(got[3] == 0xffffffffu);
  CHECK(got[4] == 128 % 7);
  CHECK(got[5] == 7);
  CHECK(got[6] == 128);
  CHECK(number.values()[0] == 64);
  CHECK(wide.values()[0] == 32);
  CHECK(emulator::report_text() == "");
}

}  // namespace
}  // namespace quipu::testing
