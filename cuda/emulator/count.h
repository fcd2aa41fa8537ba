#pragma once
// Counts what a warp asks of memory. The k-th access of each lane at one instruction belongs to the
// k-th request of the warp there: lanes run one after another here, and together on a device.
#include <array>
#include <cstdint>
#include <vector>

#include "checks/shadow.h"
#include "emulator.h"

namespace quipu::emulator {

/// The requests of one warp that lanes may still join.
class WarpRequests {
 public:
  struct Request {
    std::uintptr_t code = 0;
    std::uint32_t lanes = 0;
    std::uint8_t bytes = 0;
    Access access = Access::read;
    bool shared = false;
    std::array<std::uintptr_t, 32> address;
  };
  void add(int lane, std::uintptr_t code, std::uintptr_t address, std::size_t bytes, Access access,
           bool shared);
  bool crowded(int lane) const {
    return requests_.size() > 20000 && next_[static_cast<std::size_t>(lane)] == requests_.size();
  }
  const std::vector<Request>& all() const { return requests_; }
  void clear();

 private:
  std::vector<Request> requests_;
  std::array<std::uint32_t, 32> next_{};  // by lane: where its next access is looked for
};

/// Sums of one launch. Those of lines are kept together for all.
class Counting {
 public:
  void begin_launch();
  void begin_block();
  /// The lanes of a warp have met: their requests are complete.
  void close(WarpRequests& requests);
  Counters launch;

 private:
  Traffic sectors(const WarpRequests::Request& request);
  void touch(std::size_t offset, Access access);

  std::uint32_t launch_number_ = 0;
  std::uint32_t block_sectors_ = 0;  // that the running block has asked for
};

/// Adds a launch to the sums of the program.
void add_launch(LaunchRecord record);
enum class HostCall {
  allocation,
  free,
  wait,
  stream_wait,
  upload,
  download,
  peer_copy,
  launch,
  graph
};
void count_call(HostCall call);
/// One that is no kernel.
void add_transfer(const char* name, std::uint64_t read_bytes, std::uint64_t written_bytes);

}  // namespace quipu::emulator
