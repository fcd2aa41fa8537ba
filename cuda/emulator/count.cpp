#include "count.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "checks/memory.h"
#include "checks/symbols.h"
#include "runtime/stream.h"

namespace quipu::emulator {
namespace {

constexpr int lanes_of_warp = 32;
constexpr std::size_t look_ahead = 24;  // requests that a lane may have skipped

/// Calls visit(address) for each lane of the request that is in `mask`.
template <class Visit>
void each_lane(const WarpRequests::Request& request, std::uint32_t mask, Visit visit) {
  for (std::uint32_t left = request.lanes & mask; left != 0; left &= left - 1) {
    visit(request.address[static_cast<std::size_t>(std::countr_zero(left))]);
  }
}

/// Passes over the 32 banks of 4 bytes: the most different words that one bank has to give.
std::uint64_t bank_passes(const WarpRequests::Request& request, std::uint32_t mask) {
  std::array<std::uintptr_t, lanes_of_warp * 4> words;
  std::size_t count = 0;
  each_lane(request, mask, [&](std::uintptr_t address) {
    for (std::size_t k = 0; k < (request.bytes + 3u) / 4u; ++k) words[count++] = address / 4 + k;
  });
  std::sort(words.begin(), words.begin() + count);
  const auto end = std::unique(words.begin(), words.begin() + count);
  std::array<std::uint8_t, lanes_of_warp> per_bank{};
  std::uint8_t most = 0;
  for (auto w = words.begin(); w != end; ++w) most = std::max(most, ++per_bank[*w % lanes_of_warp]);
  return most;
}

/// Wide accesses go by halves or quarters of a warp: 128 bytes at a time.
Traffic passes(const WarpRequests::Request& request) {
  Traffic traffic;
  const int parts = request.bytes >= 16 ? 4 : request.bytes >= 8 ? 2 : 1;
  const int width = lanes_of_warp / parts;
  for (int part = 0; part < parts; ++part) {
    const std::uint32_t mask = (~0u >> (lanes_of_warp - width)) << (part * width);
    if ((request.lanes & mask) == 0) continue;
    traffic.units += bank_passes(request, mask);
    ++traffic.ideal;
  }
  return traffic;
}

struct Line {
  Traffic traffic;
  Access access = Access::read;
  bool shared = false;
  unsigned lane_bytes = 0;
};

/// Of all launches since they were cleared.
struct Sums {
  Counters counters;
  std::vector<LaunchRecord> launches;
  std::unordered_map<std::uintptr_t, Line> lines;  // by code, and whether shared
  HostCalls calls;
};

Sums& sums() {
  static Sums* all = new Sums;
  return *all;
}

const char* name_of(Access access) {
  switch (access) {
    case Access::read: return "load";
    case Access::atomic: return "atomic";
    default: return "store";
  }
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  requests += other.requests;
  lanes += other.lanes;
  bytes += other.bytes;
  units += other.units;
  ideal += other.ideal;
  return *this;
}

Revisits& Revisits::operator+=(const Revisits& other) {
  sectors += other.sectors;
  distance += other.distance;
  return *this;
}

Counters& Counters::operator+=(const Counters& other) {
  load += other.load;
  store += other.store;
  atomic += other.atomic;
  shared_load += other.shared_load;
  shared_store += other.shared_store;
  unique_read_bytes += other.unique_read_bytes;
  unique_written_bytes += other.unique_written_bytes;
  in_block += other.in_block;
  in_block_of_shared += other.in_block_of_shared;
  across_blocks += other.across_blocks;
  mma_flops += other.mma_flops;
  launches += other.launches;
  blocks += other.blocks;
  barriers += other.barriers;
  collectives += other.collectives;
  switches += other.switches;
  accesses += other.accesses;
  return *this;
}

void WarpRequests::add(int lane, std::uintptr_t code, std::uintptr_t address, std::size_t bytes,
                       Access access, bool shared) {
  const auto at = static_cast<std::size_t>(lane);
  const std::uint32_t bit = 1u << lane;
  const std::size_t end = std::min(requests_.size(), next_[at] + look_ahead);
  for (std::size_t i = next_[at]; i < end; ++i) {
    Request& request = requests_[i];
    if (request.code != code || request.shared != shared || (request.lanes & bit) != 0) continue;
    request.lanes |= bit;
    request.address[at] = address;
    next_[at] = static_cast<std::uint32_t>(i) + 1;
    return;
  }
  Request& request = requests_.emplace_back();
  request.code = code;
  request.lanes = bit;
  request.bytes = static_cast<std::uint8_t>(std::min<std::size_t>(bytes, 16));
  request.access = access;
  request.shared = shared;
  request.address[at] = address;
  next_[at] = static_cast<std::uint32_t>(requests_.size());
}

void WarpRequests::clear() {
  requests_.clear();
  next_.fill(0);
}

void Counting::begin_launch() {
  launch = {};
  static std::uint32_t launches = 0;
  launch_number_ = ++launches & 0x1fffffffu;
}

void Counting::begin_block() {
  ++launch.blocks;
  block_sectors_ = 0;
}

/// One sector of a request.
void Counting::touch(std::size_t offset, Access access) {
  DeviceMemory& memory = device_memory();
  ++block_sectors_;
  const auto block = static_cast<std::uint32_t>(launch.blocks);
  const DeviceMemory::Touch before = memory.touch(offset, launch_number_, {block, block_sectors_},
                                                  access != Access::write, access != Access::read);
  if (access != Access::write && !before.read) launch.unique_read_bytes += 32;
  if (access != Access::read && !before.written) launch.unique_written_bytes += 32;
  if (access == Access::write || !(before.read || before.written)) return;
  const bool same = before.last.block == block;
  Revisits& again = !same           ? launch.across_blocks
                    : before.shared ? launch.in_block_of_shared
                                    : launch.in_block;
  ++again.sectors;
  again.distance += same ? block_sectors_ - before.last.clock : block - before.last.block;
}

Traffic Counting::sectors(const WarpRequests::Request& request) {
  std::array<std::uintptr_t, lanes_of_warp> sector;
  std::size_t count = 0;
  each_lane(request, ~0u, [&](std::uintptr_t address) {
    const std::uintptr_t s = address / 32;
    if (count == 0 || sector[count - 1] != s) sector[count++] = s;
  });
  if (!std::is_sorted(sector.begin(), sector.begin() + count)) {
    std::sort(sector.begin(), sector.begin() + count);
  }
  count = static_cast<std::size_t>(std::unique(sector.begin(), sector.begin() + count) -
                                   sector.begin());
  const DeviceMemory& memory = device_memory();
  for (std::size_t i = 0; i < count; ++i) touch(memory.offset_of(sector[i] * 32), request.access);
  Traffic traffic;
  traffic.units = count;
  const auto lanes = static_cast<std::uint64_t>(std::popcount(request.lanes));
  traffic.ideal = std::min<std::uint64_t>((lanes * request.bytes + 31) / 32, count);
  return traffic;
}

void Counting::close(WarpRequests& requests) {
  for (const WarpRequests::Request& request : requests.all()) {
    Traffic traffic = request.shared ? passes(request) : sectors(request);
    traffic.requests = 1;
    traffic.lanes = static_cast<std::uint64_t>(std::popcount(request.lanes));
    traffic.bytes = traffic.lanes * request.bytes;
    const bool read = request.access == Access::read;
    (request.shared                     ? (read ? launch.shared_load : launch.shared_store)
     : request.access == Access::atomic ? launch.atomic
     : read                             ? launch.load
                                        : launch.store) += traffic;
    Line& line = sums().lines[request.code * 2 + request.shared];
    line.access = request.access;
    line.shared = request.shared;
    line.lane_bytes = request.bytes;
    line.traffic += traffic;
  }
  requests.clear();
}

void add_launch(LaunchRecord record) {
  sums().counters += record.counters;
  constexpr std::size_t most_records = 100000;
  if (sums().launches.size() < most_records) sums().launches.push_back(std::move(record));
}

void add_transfer(const char* name, std::uint64_t read_bytes, std::uint64_t written_bytes) {
  if (!settings().count) return;
  LaunchRecord record;
  record.kernel = name;
  record.counters.launches = 1;
  record.counters.unique_read_bytes = read_bytes;
  record.counters.unique_written_bytes = written_bytes;
  add_launch(std::move(record));
}

void count_call(HostCall call) {
  const std::lock_guard guard(device_lock());
  HostCalls& calls = sums().calls;
  switch (call) {
    case HostCall::allocation: ++calls.allocations; break;
    case HostCall::free: ++calls.frees; break;
    case HostCall::wait: ++calls.waits; break;
    case HostCall::stream_wait: ++calls.stream_waits; break;
    case HostCall::upload: ++calls.uploads; break;
    case HostCall::download: ++calls.downloads; break;
    case HostCall::peer_copy: ++calls.peer_copies; break;
    case HostCall::launch: ++calls.launches; break;
    case HostCall::graph: ++calls.graphs; break;
  }
}

HostCalls host_calls() {
  const std::lock_guard guard(device_lock());
  return sums().calls;
}

Counters counters() {
  finish_all_streams();
  return sums().counters;
}

std::vector<LaunchRecord> launches() {
  finish_all_streams();
  return sums().launches;
}

void clear_counters() {
  finish_all_streams();
  sums() = {};
}

std::vector<LineTraffic> lines() {
  finish_all_streams();
  std::vector<std::uintptr_t> codes;
  for (const auto& [key, line] : sums().lines) codes.push_back(key / 2);
  find_source_lines(codes);
  std::map<std::tuple<std::string, unsigned, bool, std::string, unsigned>, Traffic> by_line;
  for (const auto& [key, line] : sums().lines) {
    const SourceLine at = source_line(key / 2);
    by_line[{at.file, at.line, line.shared, name_of(line.access), line.lane_bytes}] += line.traffic;
  }
  std::vector<LineTraffic> result;
  for (const auto& [key, traffic] : by_line) {
    const auto& [file, line, shared, kind, lane_bytes] = key;
    result.push_back({file, line, shared, kind, lane_bytes, traffic});
  }
  return result;
}

std::string profile() {
  std::string text;
  for (const LineTraffic& line : lines()) {
    const std::size_t slash = line.file.rfind('/');
    const std::string place = line.file.substr(slash == std::string::npos ? 0 : slash + 1) + ":" +
                              std::to_string(line.line);
    char row[300];
    std::snprintf(
        row, sizeof row,
        "%-28s %-6s %-6s %2u bytes a lane  requests %9llu  %s %10llu  least %10llu"
        "  efficiency %3.0f %%\n",
        place.c_str(), line.shared ? "shared" : "device", line.kind.c_str(), line.lane_bytes,
        static_cast<unsigned long long>(line.traffic.requests), line.shared ? "passes " : "sectors",
        static_cast<unsigned long long>(line.traffic.units),
        static_cast<unsigned long long>(line.traffic.ideal), 100 * line.traffic.efficiency());
    text += row;
  }
  return text;
}

}  // namespace quipu::emulator
