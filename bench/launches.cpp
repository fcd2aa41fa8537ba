// quipu-launches: runs every column of ours of the speed tables once, at the smallest n and a batch
// of one, on the CUDA device. On the emulated device it prints what each launch counted, as a
// table; on a real one it prints nothing and is there to be profiled, so that the two can be held
// side by side: both launch the same kernels in the same order.
#include <fmt/format.h>

#include <cstdio>

#include "quipu/core/devices.h"
#include "quipu/core/error.h"
#include "tables/tables.h"

#ifdef QUIPU_EMULATE
#include "quipu/cuda/emulator/emulator.h"
#endif

namespace {

using namespace quipu;
using namespace quipu::bench;

void print_launches() {
#ifdef QUIPU_EMULATE
  fmt::print("kernel,load_sectors,store_sectors,shared_passes\n");
  for (const emulator::LaunchRecord& launch : emulator::launches()) {
    if (launch.grid[0] == 0) continue;  // a fill, a copy or a library call
    const emulator::Counters& c = launch.counters;
    fmt::print("\"{}\",{},{},{}\n", launch.kernel, c.load.units, c.store.units,
               c.shared_load.units + c.shared_store.units);
  }
#endif
}

void run() {
  const Device cuda("cuda");
  for (const PublishedTable& table : read_published(published_directory())) {
    if (table.kind != Kind::speed) continue;
    for (const Variant& variant : variants_of(table)) {
      with_run(variant, table.pass, cuda, {table.rows[0].n, 1}, Values::zero,
               [](const Call& call) { call(); });
    }
  }
  synchronize(cuda);
  print_launches();
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "quipu-launches: {}\n", error.what());
    return 1;
  }
}
