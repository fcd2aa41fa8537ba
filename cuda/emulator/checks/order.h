#pragma once
// What happens before what, beyond barriers: blocks of one launch that meet at an atomic, and
// work on streams.
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../language.h"
#include "shadow.h"

namespace quipu::emulator {

/// What each stream is known to have finished: position by stream number.
using StreamClock = std::vector<std::uint32_t>;
void join(StreamClock& clock, const StreamClock& other);

/// One kernel, copy, fill or library call on a stream, in the order of enqueueing.
struct Work {
  std::uint32_t stream = 0, position = 0;  // positions begin at 1
  StreamClock after;                       // what it waits for
};

/// The order between blocks of the launch that runs. A block that fences and then does an atomic
/// publishes what came before; a block that does an atomic on the same word later knows of it.
class Order {
 public:
  void begin_launch();
  void begin_block(std::uint64_t epoch, uint3 index);

  /// `fenced` is the stamp of the thread at its last __threadfence.
  void publish(const void* address, Stamp fenced);
  void learn(const void* address, Stamp now);
  /// Whether an access of an earlier block comes before the asking thread.
  bool knows(Stamp earlier, Stamp now) const;

  /// The block that ran at an epoch of this launch.
  uint3 block_at(std::uint64_t epoch) const;

 private:
  struct Knowledge {
    Stamp until = 0;  // all that came before this thread at this time
    Stamp since = 0;  // who learnt it, and when
  };
  std::size_t number_at(std::uint64_t epoch) const;
  bool knows_block(std::size_t number, Stamp earlier, Stamp now) const;

  struct Block {
    std::uint64_t start;
    uint3 index;
  };
  std::vector<Block> blocks_;     // in the order in which they ran
  std::vector<Knowledge> known_;  // of the block that runs, by number of the other
  std::unordered_map<const void*, std::vector<Stamp>> published_;
};

/// The order between works on streams, by vector clocks: it holds for every schedule, not only for
/// the one that ran.
class StreamOrder {
 public:
  /// The work runs now and owns the epochs from `start` on. Gives the first epoch that is not
  /// ordered before it, or `start` if all are.
  std::uint64_t begin(const Work& work, std::uint64_t start);
  /// Whether what happened at the epoch comes before the work that runs.
  bool ordered(std::uint64_t epoch) const;
  /// The host has waited for everything: all that was comes before all that will be.
  void forget() { done_.clear(); }
  /// The stream of the work at an epoch.
  std::uint32_t stream_at(std::uint64_t epoch) const;

 private:
  struct Done {
    std::uint64_t start;
    std::uint32_t stream, position;
  };
  const Done* at(std::uint64_t epoch) const;
  std::vector<Done> done_;
  Work running_;
  std::vector<std::vector<std::uint64_t>> starts_;  // by stream, by position - 1; 0: not yet
};
StreamOrder& stream_order();

}  // namespace quipu::emulator
