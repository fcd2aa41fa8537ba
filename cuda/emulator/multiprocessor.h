#pragma once
// Runs the blocks of a launch, one after another, on one OS thread. Each CUDA thread is a fiber; it
// runs until a barrier, a warp collective or its end, and then switches directly to another one.
#include <boost/context/detail/fcontext.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checks/order.h"
#include "checks/shadow.h"
#include "checks/symbols.h"
#include "count.h"
#include "device.h"
#include "language.h"

namespace quipu::emulator {

struct Launch {
  std::shared_ptr<const Call> call;
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  int device = 0;
  std::uint64_t blocks() const { return std::uint64_t{grid.x} * grid.y * grid.z; }
  int threads() const { return static_cast<int>(block.x * block.y * block.z); }
};

/// A cp.async that its thread has not waited for.
struct AsyncCopy {
  char* to;
  const char* from;
  std::size_t bytes, zeros;
  std::uintptr_t code;
  bool done;
  void perform();
};

struct Lane {
  int fiber = -1;  // none before its first step
  uint3 index{};
  std::uint64_t input = 0, output = 0;  // of the collective it waits in
  unsigned argument = 0, width = 0;
  Stamp fenced = 0;  // at its last __threadfence
  std::uintptr_t last_address = 0, last_code = 0;
  unsigned repeats = 0;  // of that access, with no other in between
  std::vector<AsyncCopy> copies;
  std::vector<std::size_t> copy_groups;  // number of copies at each commit
};

/// Lanes that wait in a collective.
struct Meeting {
  std::uint32_t mask = 0, arrived = 0;
  Collective what{};
  Site at;
  CollectiveFunction function = nullptr;
};

struct Warp {
  std::uint32_t exists = 0, ready = 0, ended = 0, at_barrier = 0;  // a bit a lane
  std::uint64_t clock = 0;
  std::vector<Meeting> meetings;  // one a mask
  std::array<Lane, 32> lanes;
  WarpRequests requests;
};

class Multiprocessor {
 public:
  Multiprocessor();
  Multiprocessor(const Multiprocessor&) = delete;
  Multiprocessor& operator=(const Multiprocessor&) = delete;
  ~Multiprocessor();

  /// Runs all blocks; false if one of them had to be given up.
  bool run(const Launch& launch, std::uint64_t oldest_unordered);
  /// Runs blocks [first, last) with nothing watched, for one of several OS threads.
  bool run_unwatched(const Launch& launch, std::uint64_t first, std::uint64_t last);

  // What kernels do.
  int barrier(bool predicate, Site at);
  std::uint64_t collective(Collective what, std::uint32_t mask, std::uint64_t input,
                           unsigned argument, unsigned width, Site at, CollectiveFunction function);
  void access(std::uintptr_t address, std::size_t bytes, Access access, std::uintptr_t code);
  void atomic(std::uintptr_t address, std::size_t bytes, std::uintptr_t code);
  void fence();
  void copy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                  std::uintptr_t code);
  void copy_commit();
  void copy_wait(std::size_t groups_left);
  void* dynamic_shared() const { return dynamic_; }
  std::uint32_t active_lanes() const { return warp().exists & ~warp().ended; }
  /// Gives the block up; does not come back.
  [[noreturn]] void abandon();

  /// "block (1,0,0) thread (3,0,0)"
  std::string where() const;
  const Launch* launch() const { return launch_; }
  Counting counting;

 private:
  using Context = boost::context::detail::fcontext_t;
  static constexpr int most_threads = 1024;
  static constexpr std::size_t stack_bytes = 64 << 10, dynamic_limit = 232448, page = 4096;

  Warp& warp() { return warps_[static_cast<std::size_t>(warp_)]; }
  const Warp& warp() const { return warps_[static_cast<std::size_t>(warp_)]; }
  Lane& lane() { return warp().lanes[static_cast<std::size_t>(lane_)]; }
  std::uint32_t bit() const { return 1u << lane_; }
  std::uint64_t random();

  // block.cpp
  void begin(const Launch& launch, bool watched);
  bool run_block(uint3 index);
  void end_thread();
  void report_deadlock();

  // schedule.cpp
  void renew_fibers();
  static void fiber_entry(boost::context::detail::transfer_t from);
  [[noreturn]] void fiber_main();
  void take_fiber(Lane& lane);
  void jump(Context& save, Context to);
  bool pick();
  void enter();
  void yield();
  void step_back(int first_warp, int first_lane);
  void make_ready(int warp, std::uint32_t lanes);

  // collective.cpp
  void release_barrier();
  void complete(std::size_t meeting);
  void check_mask(Collective what, std::uint32_t& mask, Site at);

  // access.cpp
  struct Place {
    Shadow* shadow;
    std::size_t offset;
    bool shared;
  };
  bool find(std::uintptr_t address, std::size_t bytes, Access access, std::uintptr_t code,
            Place& place);
  bool find_shared_array(std::uintptr_t address, std::size_t bytes, std::uintptr_t code,
                         Place& place);
  void notice_spinning(std::uintptr_t address, std::uintptr_t code);
  void count(const Place& place, std::uintptr_t address, std::size_t bytes, Access access,
             std::uintptr_t code);
  void watch(const Place& place, std::uintptr_t address, std::size_t bytes, Access access,
             std::uintptr_t code);
  void report_finding(const Finding& finding, const Place& place, std::size_t bytes,
                      std::uintptr_t code);
  [[noreturn]] void fault(const char* kind, std::uintptr_t code, const std::string& text);
  std::string name_place(const Place& place) const;
  std::string name_other(Stamp stamp) const;
  void land(AsyncCopy& copy);

  // The running launch.
  const Launch* launch_ = nullptr;
  Range arguments_;
  std::uintptr_t code_base_ = long_code(0);
  bool checking_ = false, counting_ = false, shuffled_ = false, abandoned_ = false;
  unsigned preempt_ = 0;
  std::uint64_t random_state_ = 1;

  // The running block.
  std::array<Warp, 32> warps_;
  int warp_count_ = 0, warp_ = 0, lane_ = 0;
  std::uint32_t ready_warps_ = 0;
  int threads_ = 0, alive_ = 0, arrived_ = 0, votes_ = 0, vote_result_ = 0;
  unsigned rotation_ = 0;  // the lane that goes first
  bool downwards_ = false;
  Site barrier_at_;
  std::uint64_t epoch_ = 0;
  Asker asker_;
  Order order_;

  // Fibers. Their stacks are what kernels have as registers and local memory.
  char* stacks_ = nullptr;
  std::vector<Context> fibers_;
  std::vector<int> idle_fibers_;
  Context main_ = nullptr;

  // Shared memory.
  char* dynamic_ = nullptr;
  std::size_t dynamic_bytes_ = 0;
  Shadow dynamic_shadow_;
  Range static_;
  std::unique_ptr<Shadow> static_shadow_;
  const SharedArrays* arrays_ = nullptr;
};

/// Of this OS thread; made at first use.
Multiprocessor& this_multiprocessor();
/// Not null while a kernel runs on this OS thread.
extern constinit thread_local Multiprocessor* running;
/// The same, but null where nobody watches memory accesses.
extern constinit thread_local Multiprocessor* watching;
/// Time of the last barrier or block; work that a stream runs takes the next ones.
std::uint64_t& global_epoch();

}  // namespace quipu::emulator
