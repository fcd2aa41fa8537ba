#pragma once
// Counted traffic: what a function moves on the emulated device, beside what it must move. Cases
// that use it stand inside `#ifdef QUIPU_EMULATE`: only that build can count.
//
//   const Traffic t = traffic_of([&] { act(x, Act::silu); });
//   check_bytes(t, 2 * x.nbytes(), 0.02);
//   CHECK(faults_of(t) == "");
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "quipu/core/devices.h"
#include "quipu/cuda/emulator/emulator.h"

namespace quipu::testing {

/// What the launches of one function counted.
struct Traffic {
  emulator::Counters counters;
  std::vector<emulator::LineTraffic> lines;
  std::vector<emulator::LaunchRecord> launches;

  /// Memory that was touched, once for each launch that did: the traffic that no cache can avoid.
  double bytes() const {
    return static_cast<double>(counters.unique_read_bytes + counters.unique_written_bytes);
  }
  /// Memory that was asked for, however often: 32 bytes a sector.
  double sector_bytes() const {
    return 32.0 * static_cast<double>(counters.load.units + counters.store.units);
  }
};

template <class F>
Traffic traffic_of(F f) {
  const Device device("cuda");
  synchronize(device);
  emulator::clear_counters();
  f();
  synchronize(device);
  return {emulator::counters(), emulator::lines(), emulator::launches()};
}

/// The bytes touched are `least`, or at most so much more; nothing is touched less than once.
inline void check_bytes(const Traffic& t, double least, double slack) {
  CHECK_MESSAGE(t.bytes() >= least, t.bytes(), " bytes, but ", least, " is the least");
  CHECK_MESSAGE(t.bytes() <= least * (1 + slack), t.bytes(), " bytes, ",
                100 * (t.bytes() / least - 1), " % above the least ", least);
}

/// Lines that move at least so much of all that their memory moves must move it well.
inline constexpr double main_line = 0.02;

/// Source lines that waste sectors of device memory (less than 95 % of what they move is wanted) or
/// passes over the banks of shared memory (more than two ways), one a line; empty if there is none.
inline std::string faults_of(const Traffic& t) {
  double moved[2] = {0, 0};
  for (const emulator::LineTraffic& line : t.lines) {
    moved[line.shared] += static_cast<double>(line.traffic.bytes);
  }
  std::ostringstream text;
  for (const emulator::LineTraffic& line : t.lines) {
    const double share = static_cast<double>(line.traffic.bytes) / moved[line.shared];
    const double efficiency = line.traffic.efficiency();
    if (share < main_line || efficiency >= (line.shared ? 0.5 : 0.95)) continue;
    text << line.file << ":" << line.line << ": " << (line.shared ? "shared " : "device ")
         << line.kind << " of " << line.lane_bytes << " bytes a lane, efficiency "
         << 100 * efficiency << " %\n";
  }
  return text.str();
}

}  // namespace quipu::testing
