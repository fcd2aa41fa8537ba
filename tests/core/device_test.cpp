#include "quipu/core/device.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "quipu/core/devices.h"
#include "quipu/core/dispatch/cpu_levels.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/tensor.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

TEST_CASE("device: names are read and written back") {
  for (const char* name : {"cpu", "meta:cpu", "meta:cuda", "cuda:0", "cuda:7", "meta:cuda:3"}) {
    CHECK(to_string(Device(name)) == name);
  }
  CHECK(to_string(Device("cuda")) == "cuda:0");
  CHECK(Device("cuda") == Device("cuda:0"));
  CHECK(Device("cuda:127").index() == 127);
  CHECK(Device() == cpu);
  CHECK(Device(std::string("cpu")) == cpu);
}

TEST_CASE("device: meta imitates a kind and is not that device") {
  const Device meta("meta:cuda:2");
  CHECK(meta.is_meta());
  CHECK(meta.kind() == DeviceKind::cuda);
  CHECK(meta.index() == 2);
  CHECK_FALSE(meta.is_cuda());
  CHECK_FALSE(Device("meta:cpu").is_cpu());
  CHECK_FALSE(Device("meta:cpu") == cpu);
  CHECK(cpu.is_cpu());
  CHECK(Device("cuda:1").is_cuda());
}

TEST_CASE("device: other names are errors that list what is possible") {
  for (const char* name :
       {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "cuda:128",
        "cuda:99999999999", "meta", "meta:", "meta:gpu", "cuda 1", " cpu"}) {
    CAPTURE(name);
    expect_error([&] { return Device(name); }, "unknown device", name, "meta:cuda", "cuda:N");
  }
  expect_error([] { return Device(DeviceKind::cuda, 128); }, "device index 128", "[0, 128)");
  expect_error([] { return Device(DeviceKind::cuda, -1); }, "device index -1");
}

TEST_CASE("device: without a CUDA back end, cuda says what to do and meta:cuda works") {
  if (fill_kernel.provided(Variant::cuda)) return;
  expect_error([] { return zeros({2}, f32, "cuda"); }, "zeros: ", "cuda:0", "no CUDA back end",
               "QUIPU_CUDA", "meta:cuda");
  expect_error([] { return ones({2}).to(Device("cuda:1")); }, "to: ", "cuda:1", "QUIPU_CUDA");
  const Tensor x = ones({2, 3}, bf16, "meta:cuda");
  CHECK(x.nbytes() == 12);
  CHECK(to_string(x) == "(no values) bf16(2, 3) on meta:cuda");
}

TEST_CASE(
    "cpu_level: the best of the build's that the processor has, or the one that is asked for") {
  REQUIRE(!cpu_levels().empty());
  CHECK(processor_has(cpu_level()));
  const char* const wanted = std::getenv("QUIPU_CPU");
  const char* best = nullptr;
  for (const CpuLevel& level : cpu_levels()) {
    if (processor_has(level.name)) best = level.name;
  }
  CHECK(std::string_view(cpu_level()) == (wanted != nullptr && *wanted != 0 ? wanted : best));
}

#if defined(__x86_64__)
TEST_CASE("cpu_level: what the processor has is what the system says of it") {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) continue;
  REQUIRE(file);
  const auto has = [&](std::string_view names) {
    std::istringstream words{std::string(names)};
    bool all = true;
    for (std::string word; words >> word;) all &= (line + " ").find(" " + word + " ") < line.size();
    return all;
  };
  const bool v2 = has("pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm");
  const bool v3 = v2 && has("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave");
  const bool v4 = v3 && has("avx512f avx512bw avx512cd avx512dq avx512vl");
  CHECK(processor_has("v2") == v2);
  CHECK(processor_has("v3") == v3);
  CHECK(processor_has("v4") == v4);
  CHECK(processor_has("v4_bf16") == (v4 && has("avx512_bf16")));
}
#endif
