// What is timed on a device is its work alone: between the two events of a timed region the host
// waits for nothing and asks for no memory. Only the emulated device can count that.
#include "quipu/core/report/device_timing.h"
#include "quipu/cuda/emulator/emulator.h"
#include "quipu/quipu.h"
#include "support/support.h"
#include "tables.h"

namespace {

using namespace quipu;
using namespace quipu::bench;

const Device cuda("cuda");

void check_no_host_call(const emulator::HostCalls& calls) {
  CHECK(calls.waits == 0);
  CHECK(calls.allocations == 0);
  CHECK(calls.frees == 0);
}

TEST_CASE("timed: regions of the published tables hold no host call") {
  std::size_t regions = 0;
  for (const PublishedTable& table : read_published(published_directory())) {
    if (table.kind != Kind::speed) continue;
    for (const Variant& variant : variants_of(table)) {
      CAPTURE(table.name);
      CAPTURE(variant.column);
      with_run(variant, table.pass, cuda, {16, 1, 2}, Values::normal, [&](const Call& call) {
        call();
        call();
        TimedRegion region(cuda);
        region.run([&] {
          emulator::clear_counters();
          Tensor o = call();
          check_no_host_call(emulator::host_calls());
          return o;
        });
        CHECK(region.milliseconds() >= 0);
        ++regions;
      });
    }
  }
  CHECK(regions > 40);
}

TEST_CASE("timed: the time of an operator holds no host call") {
  const Tensor w = ones({16, 16}, f32, cuda).set_requires_grad();
  const DeviceTimes times;
  const auto step = [&] {
    Tape tape;
    tape.backward(mean(tanh(matmul(w, w))));
    w.zero_grad();
  };
  step();
  emulator::clear_counters();
  step();
  check_no_host_call(emulator::host_calls());
}

TEST_CASE("timed: a read inside a region is counted") {
  const Tensor x = ones({16}, f32, cuda);
  emulator::clear_counters();
  TimedRegion(cuda).run([&] {
    x[0].item();
    return x;
  });
  CHECK(emulator::host_calls().waits > 0);
}

}  // namespace
