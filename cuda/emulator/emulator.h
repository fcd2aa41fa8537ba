#pragma once
// The emulator as a test or a program sees it: what it was told, what it found, what it counted.
// Kernels need nothing of this; they include cuda/launch.h.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quipu::emulator {

/// What a card reports of itself; card.cpp has the table.
struct Card {
  const char* key;  // what QUIPU_EMULATOR_CARD says
  const char* name;
  int major, minor;  // compute capability
  int multiprocessors, threads_per_multiprocessor;
  std::size_t shared_per_block;  // static and dynamic, at most, for a kernel that asks for it
  std::size_t shared_per_multiprocessor, shared_reserved_per_block;
  std::size_t l2_bytes;
};
/// Null where no card has that key.
const Card* find_card(std::string_view key);
/// Those that QUIPU_EMULATOR_CARD names, with commas between them, an A100 if it names none; an
/// unknown name ends the program with a list of those that are known.
std::vector<const Card*> cards_from_environment();

/// Read when a launch begins; change them between launches only. Each is also an environment
/// variable, read once: QUIPU_EMULATOR_SEED=7 and so on.
struct Settings {
  /// Order of blocks, warps, lanes and streams, and when asynchronous copies happen. 0: ascending
  /// order, and every launch runs where it is called.
  std::uint64_t seed = 1;
  /// Checks races, bounds, uninitialised reads and alignment.
  bool check = true;
  /// Counts sectors, bank conflicts and unique bytes.
  bool count = true;
  /// Off: launches, copies and fills are recorded and nothing runs. Tells how work is split at
  /// sizes that no host could compute; device memory costs nothing then and holds nothing.
  bool run = true;
  /// Above 0: threads are also preempted at one in `preempt` memory accesses.
  unsigned preempt = 0;
  /// Above 0: a host thread sleeps for a moment after one in `yield` calls that queue work, so that
  /// other host threads come between.
  unsigned yield = 0;
  /// OS threads that share the blocks of a launch. Checking and counting need one.
  unsigned threads = 1;
  /// Reports go to stderr as they arise, and a program that ends with reports nobody cleared fails.
  bool print = true;
  /// What cudaMemGetInfo tells, and where cudaMalloc fails; of each device.
  std::size_t device_bytes = std::size_t{8} << 30;
  /// What each device says it is, and how much shared memory a launch may ask for; the last is that
  /// of all further devices, too.
  std::vector<const Card*> cards = cards_from_environment();
  /// How many devices there are, one of each card unless told. Read once, at the first use of one.
  int devices = static_cast<int>(cards.size());
  /// A kernel that is given up spoils the process, as an illegal address does on a card: nothing
  /// runs any more, and all calls return cudaErrorIllegalAddress.
  bool sticky = false;
};
Settings& settings();
const Card& card_of(int device);

/// One mistake of a kernel or of its caller. A place is reported once, whatever the number of
/// threads that pass there.
struct Report {
  std::string kind;  // "race", "out of bounds", ...
  std::string file;  // empty where no debug information tells
  unsigned line = 0;
  std::string kernel;  // empty for mistakes of the host
  std::string text;    // block, thread, what, with whom
  /// "file:line: error: [kind] text (kernel)"
  std::string message() const;
};
/// What was found since the last clear_reports(). Waits for everything that was launched.
std::vector<Report> reports();
void clear_reports();
/// All messages, one a line.
std::string report_text();

/// Accesses of warps: the lanes that meet at one instruction make one request.
struct Traffic {
  std::uint64_t requests = 0, lanes = 0, bytes = 0;
  std::uint64_t units =
      0;  // 32-byte sectors of device memory; passes over the banks of shared memory
  std::uint64_t ideal = 0;  // the fewest units that these bytes could take
  double efficiency() const { return units == 0 ? 1.0 : double(ideal) / double(units); }
  Traffic& operator+=(const Traffic& other);
};
/// Reads of a sector that the launch has touched before: whether a cache still has it depends on
/// what came between. Blocks are taken in the order in which they ran; seed 0 is that of a device.
struct Revisits {
  std::uint64_t sectors = 0;
  /// Summed over them: sectors that the block asked for since, or blocks that began since.
  std::uint64_t distance = 0;
  double mean_distance() const { return sectors == 0 ? 0 : double(distance) / double(sectors); }
  Revisits& operator+=(const Revisits& other);
};
struct Counters {
  Traffic load, store, atomic;        // device memory
  Traffic shared_load, shared_store;  // shared memory, atomics there included
  /// Sectors touched at least once in a launch, summed over launches: the traffic that no cache
  /// could avoid. cuBLAS calls count with operands and result once.
  std::uint64_t unique_read_bytes = 0, unique_written_bytes = 0;
  Revisits in_block;            // by the block that touched it last, of what no other one touched
  Revisits in_block_of_shared;  // likewise, of what other blocks touched, too
  Revisits across_blocks;       // after another block
  std::uint64_t mma_flops = 0;
  std::uint64_t launches = 0, blocks = 0, barriers = 0, collectives = 0, switches = 0, accesses = 0;
  Counters& operator+=(const Counters& other);
};
/// Sum since the last clear_counters(). Waits for everything that was launched.
Counters counters();
void clear_counters();

/// One launch: what ran, how it was cut, what it counted. Fills, copies on the device and cuBLAS
/// calls are launches too.
struct LaunchRecord {
  std::string kernel;
  unsigned grid[3] = {}, block[3] = {};
  std::size_t shared_bytes = 0;  // of a block, static and dynamic
  Counters counters;
};
/// Launches since the last clear_counters(), in the order in which they ran.
std::vector<LaunchRecord> launches();

/// What the host asked for: what makes it wait, what no captured graph may contain, launches.
struct HostCalls {
  std::uint64_t allocations = 0;  // cudaMalloc, cudaMallocHost, cudaHostAlloc
  std::uint64_t frees = 0;        // cudaFree, cudaFreeHost
  std::uint64_t waits = 0;  // for a stream, an event, the device, a copy from or to pageable memory
  std::uint64_t stream_waits = 0;  // cudaStreamWaitEvent: a stream waits, the host does not
  std::uint64_t uploads = 0, downloads = 0;  // copies from and to the host
  std::uint64_t peer_copies = 0;             // cudaMemcpyPeerAsync
  std::uint64_t launches = 0;                // of kernels, each by itself
  std::uint64_t graphs = 0;                  // cudaGraphLaunch
};
/// Since the last clear_counters().
HostCalls host_calls();

/// The traffic of one source line.
struct LineTraffic {
  std::string file;
  unsigned line = 0;
  bool shared = false;
  std::string kind;         // "load", "store", "atomic"
  unsigned lane_bytes = 0;  // of one lane
  Traffic traffic;
};
std::vector<LineTraffic> lines();
/// The same as a table.
std::string profile();

/// Tells that `bytes` at `block`, inside a cudaMalloc allocation, are a block of their own: an
/// access that leaves it is out of bounds, and its contents count as never written. For allocators
/// that carve one allocation into many blocks. Block and bytes are multiples of 512; what lies
/// beyond `requested` is out of bounds. Takes effect in the order of the stream (a cudaStream_t).
struct Stream;
void declare_block(void* block, std::size_t bytes, std::size_t requested, Stream* stream);
/// The block is free: an access by what comes later on the stream is use after free.
void retire_block(void* block, Stream* stream);

}  // namespace quipu::emulator
