// Every check of the emulator has a kernel that is broken on purpose; it is reported whatever the
// schedule, at its line. Kernels that are right are never reported.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "buffer.h"
#include "kernels.h"

namespace quipu::testing {
namespace {

constexpr std::uint64_t seeds = 20;

bool reported(const std::string& kind) {
  const auto all = emulator::reports();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& report) { return report.kind == kind; });
}

/// The lines of faults.cu with an arrow, by kernel.
std::map<std::string, std::set<unsigned>> arrows() {
  std::map<std::string, std::set<unsigned>> result;
  std::ifstream source(QUIPU_EMULATOR_TESTS "/faults.cu");
  std::string line, kernel;
  for (unsigned number = 1; std::getline(source, line); ++number) {
    const std::string start = "__global__ void ";
    if (line.rfind(start, 0) == 0) {
      kernel = line.substr(start.size(), line.find('(') - start.size());
    }
    if (line.find("// <-") != std::string::npos) result[kernel].insert(number);
  }
  return result;
}

bool reported_at(const std::string& kind, const std::set<unsigned>& lines) {
  const auto all = emulator::reports();
  return std::any_of(all.begin(), all.end(), [&](const emulator::Report& report) {
    return report.kind == kind && report.file.find("faults.cu") != std::string::npos &&
           lines.count(report.line) == 1;
  });
}

/// Runs `run` under every seed, with and without preemption.
template <class Run>
void under_each_seed(Run run) {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    emulator::settings().seed = seed;
    emulator::settings().preempt = seed % 4 == 3 ? 10 : 0;
    emulator::clear_reports();
    cudaGetLastError();
    CAPTURE(seed);
    run();
  }
}

TEST_CASE("emulator: every planted fault is reported at its line under every seed") {
  const Buffer<int> buffer(std::vector<int>(1024));
  const auto lines = arrows();
  for (const Fault& fault : faults()) {
    CAPTURE(fault.name);
    REQUIRE(lines.count(fault.name) == 1);
    under_each_seed([&] {
      cudaMemset(buffer.data(), 0, 4096);
      fault.run(buffer.data(), nullptr);
      const std::string text = emulator::report_text();
      CAPTURE(text);
      CHECK(reported_at(fault.kind, lines.at(fault.name)));
      CHECK(text.find("block (") != std::string::npos);
    });
  }
}

TEST_CASE("emulator: what only looks like a mistake is not reported") {
  const Buffer<int> buffer(std::vector<int>(1024));
  for (const Fault& kernel : look_alikes()) {
    CAPTURE(kernel.name);
    under_each_seed([&] {
      cudaMemset(buffer.data(), 0, 4096);
      kernel.run(buffer.data(), nullptr);
      CHECK(emulator::report_text() == "");
    });
  }
}

TEST_CASE("emulator: a kernel that was given up leaves the next one alone") {
  const Watched watched;
  const Buffer<int> buffer(std::vector<int>(1024));
  for (const Fault& fault : faults()) {
    fault.run(buffer.data(), nullptr);
    cudaDeviceSynchronize();
    emulator::clear_reports();
    cudaGetLastError();
    cudaMemset(buffer.data(), 0, 4096);
    look_alikes()[0].run(buffer.data(), nullptr);
    CAPTURE(fault.name);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(emulator::report_text() == "");
  }
}

TEST_CASE("emulator: mistakes in tiles are found, and only there") {
  const int n = 96, batch = 2;
  const auto values = random_floats(std::size_t(batch) * n * 64, 1);
  const Buffer<float> k(values), v(values), out(std::size_t(batch) * 64 * 64);
  struct Case {
    Tiles variant;
    const char* kind;
  };
  for (const auto& [variant, kind] :
       {Case{Tiles::no_barrier_after_fill, "race"}, Case{Tiles::no_barrier_before_fill, "race"},
        Case{Tiles::row_left_out, "uninitialised read"},
        Case{Tiles::no_bound_check, "out of bounds"},
        Case{Tiles::early_return, "barrier divergence"}, Case{Tiles::correct, ""}}) {
    CAPTURE(int(variant));
    under_each_seed([&] {
      // 92 rows are no multiple of a tile.
      const int length = variant == Tiles::no_bound_check ? 92 : n;
      const Buffer<float> short_k(random_floats(std::size_t(length) * 64, 2));
      const bool bounds = variant == Tiles::no_bound_check;
      multiply_tiles(bounds ? short_k.data() : k.data(), v.data(), out.data(), length,
                     bounds ? 1 : batch, variant, nullptr);
      CHECK(reported(kind) == (variant != Tiles::correct));
      if (variant == Tiles::correct) CHECK(emulator::report_text() == "");
    });
  }
  for (const auto& [variant, kind] : std::initializer_list<std::pair<Stages, const char*>>{
           {Stages::no_wait, "unfinished copy"},
           {Stages::no_barrier_before_fill, "race"},
           {Stages::never_awaited, "unfinished copy"},
           {Stages::correct, ""}}) {
    CAPTURE(int(variant));
    under_each_seed([&] {
      multiply_stages(k.data(), v.data(), out.data(), n, batch, variant, nullptr);
      CHECK(reported(kind) == (variant != Stages::correct));
      if (variant == Stages::correct) CHECK(emulator::report_text() == "");
    });
  }
}

TEST_CASE("emulator: the last block may read what others published, and only that") {
  const auto values = random_floats(5000, 3);
  const Buffer<float> in(values), out(1);
  for (const LastBlock variant : {LastBlock::correct, LastBlock::no_fence, LastBlock::no_barrier}) {
    CAPTURE(int(variant));
    under_each_seed([&] {
      const Buffer<float> parts(24);
      const Buffer<unsigned> counter(std::vector<unsigned>(1));
      sum_last_block(in.data(), parts.data(), counter.data(), out.data(), 5000, variant, nullptr);
      if (variant != LastBlock::correct) {
        CHECK(reported("race"));
        return;
      }
      CHECK(emulator::report_text() == "");
      double sum = 0;
      for (const float value : values) sum += value;
      CHECK(out.values()[0] == doctest::Approx(sum).epsilon(1e-4));
      CHECK(counter.values()[0] == 0);
    });
  }
}

TEST_CASE("emulator: blocks may wait for lower tickets, and for nobody else") {
  for (const Turns variant :
       {Turns::correct, Turns::no_fence, Turns::no_barrier, Turns::no_tickets}) {
    CAPTURE(int(variant));
    under_each_seed([&] {
      const Buffer<unsigned> out(64), turn(std::vector<unsigned>(1)),
          tickets(std::vector<unsigned>(1));
      add_in_turn(out.data(), turn.data(), tickets.data(), variant, nullptr);
      if (variant != Turns::correct) {
        CHECK(reported(variant == Turns::no_tickets ? "deadlock" : "race"));
        return;
      }
      CHECK(emulator::report_text() == "");
      unsigned expected = 0;
      for (unsigned i = 0; i < 12; ++i) expected = 3 * expected + i;
      for (const unsigned value : out.values()) CHECK(value == expected);
    });
  }
}

TEST_CASE("emulator: pointers that lead nowhere") {
  const Buffer<int> to(32);
  std::vector<int> host(32);
  under_each_seed([&] {
    read_pointer(host.data(), to.data(), nullptr);
    CHECK(reported("host memory"));
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  });
  under_each_seed([&] {
    int* freed = nullptr;
    cudaMalloc(&freed, 128);
    cudaFree(freed);
    read_pointer(freed, to.data(), nullptr);
    CHECK(reported("use after free"));
  });
  under_each_seed([&] {
    const Buffer<int> never_written(32);
    read_pointer(never_written.data(), to.data(), nullptr);
    CHECK(reported("uninitialised read"));
  });
}

TEST_CASE("emulator: the host's own mistakes") {
  const Watched watched;
  const Buffer<int> buffer(32);
  std::vector<int> host(64);
  cudaMemcpy(buffer.data(), host.data(), 256, cudaMemcpyHostToDevice);
  CHECK(reported("out of bounds"));
  CHECK(cudaMemcpy(host.data(), host.data(), 4, cudaMemcpyHostToDevice) != cudaSuccess);
  CHECK(reported("invalid copy"));
  int* twice = nullptr;
  cudaMalloc(&twice, 4);
  cudaFree(twice);
  CHECK(cudaFree(twice) != cudaSuccess);
  CHECK(reported("invalid free"));
  launch(
      +[](int*) {}, dim3(1), dim3(2048), 0, nullptr, nullptr);
  CHECK(reported("invalid launch"));
}

TEST_CASE("emulator: a report reads like a compiler's") {
  const Watched watched;
  const Buffer<int> buffer(std::vector<int>(1024));
  const Fault& race = faults()[0];
  race.run(buffer.data(), nullptr);
  const auto all = emulator::reports();
  REQUIRE(all.size() >= 1);
  const std::string message = all[0].message();
  CAPTURE(message);
  CHECK(message.find("faults.cu:" + std::to_string(all[0].line) + ": error: [") !=
        std::string::npos);
  CHECK(message.find("block (0,0,0) thread (") != std::string::npos);
  CHECK(message.find("shared array 's'") != std::string::npos);
  CHECK(message.find("shared_race") != std::string::npos);
}

TEST_CASE("emulator: blocks that an allocator carves have bounds of their own") {
  const Watched watched;
  const Buffer<int> slab(1024);
  cudaMemset(slab.data(), 0, 4096);
  const Buffer<int> to(32);
  emulator::declare_block(slab.data() + 128, 512, 100, nullptr);
  read_pointer(slab.data() + 128, to.data(), nullptr);  // reads 128 bytes of 100
  CHECK(reported("out of bounds"));
  emulator::clear_reports();
  emulator::declare_block(slab.data() + 128, 512, 512, nullptr);
  read_pointer(slab.data() + 128, to.data(), nullptr);
  CHECK(reported("uninitialised read"));
  emulator::clear_reports();
  emulator::retire_block(slab.data() + 128, nullptr);
  read_pointer(slab.data() + 128, to.data(), nullptr);
  CHECK(reported("use after free"));
}

}  // namespace
}  // namespace quipu::testing
