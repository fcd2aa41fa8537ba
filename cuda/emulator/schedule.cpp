// Fibers and their order. Lanes of a warp run one after another up to the next collective, which is
// what brings a missing __syncwarp to light; warps and lanes take turns as the seed says.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "emulator.h"
#include "multiprocessor.h"

extern __thread uint3 quipu_thread_index __asm__("quipu_thread_index");  // block.cpp

namespace quipu::emulator {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

char* map_pages(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("emulator: mmap");
    std::abort();
  }
  return static_cast<char*>(at);
}

}  // namespace

constinit thread_local Multiprocessor* running = nullptr;
constinit thread_local Multiprocessor* watching = nullptr;

std::uint64_t& global_epoch() {
  static std::uint64_t epoch = 0;
  return epoch;
}

Multiprocessor& this_multiprocessor() {
  struct Owner {
    // What is queued when the program ends runs in the main thread after its thread_local objects
    // are gone.
    ~Owner() {
      if (getpid() == gettid()) static_cast<void>(mine.release());
    }
    std::unique_ptr<Multiprocessor> mine = std::make_unique<Multiprocessor>();
  };
  thread_local Owner owner;
  thread_local Multiprocessor* const mine = owner.mine.get();
  return *mine;
}

Multiprocessor::Multiprocessor()
    : stacks_(map_pages(most_threads * stack_bytes)),
      fibers_(most_threads),
      dynamic_(map_pages((dynamic_limit / page + 2) * page)),
      dynamic_shadow_(dynamic_limit + page, true),
      static_(thread_local_image()),
      static_shadow_(std::make_unique<Shadow>(static_.end - static_.begin, true)) {
  static const SharedArrays* all = new SharedArrays(static_.end - static_.begin);
  arrays_ = all;
  for (std::size_t i = 0; i < most_threads; ++i)
    mprotect(stacks_ + i * stack_bytes, page, PROT_NONE);
  renew_fibers();
}

Multiprocessor::~Multiprocessor() {
  munmap(stacks_, most_threads * stack_bytes);
  munmap(dynamic_, (dynamic_limit / page + 2) * page);
}

std::uint64_t Multiprocessor::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  return random_state_ ^= random_state_ << 17;
}

/// All fibers begin anew; what they were doing is forgotten, without unwinding.
void Multiprocessor::renew_fibers() {
  idle_fibers_.clear();
  constexpr std::size_t stagger = 208;  // tops at the same offset fight for one set of the cache
  for (int i = most_threads - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    const std::size_t down = (at % 64) * stagger / 16 * 16;
    char* top = stacks_ + (at + 1) * stack_bytes - down;
    fibers_[at] = make_fcontext(top, stack_bytes - page - down, fiber_entry);
    idle_fibers_.push_back(i);
  }
}

void Multiprocessor::take_fiber(Lane& lane) {
  if (lane.fiber >= 0) return;
  lane.fiber = idle_fibers_.back();
  idle_fibers_.pop_back();
}

/// Continues at `to`; comes back when somebody jumps to what `save` then holds.
void Multiprocessor::jump(Context& save, Context to) {
  const transfer_t from = jump_fcontext(to, &save);
  *static_cast<Context*>(from.data) = from.fctx;
}

void Multiprocessor::fiber_entry(transfer_t from) {
  *static_cast<Context*>(from.data) = from.fctx;
  running->fiber_main();
}

/// Runs one thread after another: a thread that has not begun takes over the stack of one that has
/// ended, so a kernel without collectives never switches.
void Multiprocessor::fiber_main() {
  for (;;) {
    const int fiber = lane().fiber;
    Context& mine = fibers_[static_cast<std::size_t>(fiber)];
    launch_->call->run();
    end_thread();
    if (!pick()) {
      if (alive_ > 0) {
        report_deadlock();
        abandoned_ = true;
      }
      idle_fibers_.push_back(fiber);
      jump(mine, main_);
      continue;
    }
    if (lane().fiber < 0) {
      lane().fiber = fiber;
      enter();
      continue;
    }
    idle_fibers_.push_back(fiber);
    enter();
    ++counting.launch.switches;
    jump(mine, fibers_[static_cast<std::size_t>(lane().fiber)]);
  }
}

void Multiprocessor::abandon() {
  abandoned_ = true;
  Context lost;
  jump(lost, main_);
  std::abort();  // nobody comes back here
}

void Multiprocessor::make_ready(int warp, std::uint32_t lanes) {
  warps_[static_cast<std::size_t>(warp)].ready |= lanes;
  if (lanes != 0) ready_warps_ |= 1u << warp;
}

/// Chooses who runs next: the warp that runs, as long as it can, then any.
bool Multiprocessor::pick() {
  if (warp().ready == 0) {
    if (ready_warps_ == 0) return false;
    unsigned start = 0;
    if (shuffled_) {
      const std::uint64_t r = random();
      start = r & 31;
      rotation_ = r >> 5 & 31;
      downwards_ = (r >> 10 & 1) != 0;
    }
    const int s = static_cast<int>(start);
    warp_ = (std::countr_zero(std::rotr(ready_warps_, s)) + s) & 31;
  }
  const int rotation = static_cast<int>(rotation_);
  const std::uint32_t lanes = std::rotr(warp().ready, rotation);
  const int chosen = downwards_ ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes);
  lane_ = (chosen + rotation) & 31;
  warp().ready &= ~bit();
  if (warp().ready == 0) ready_warps_ &= ~(1u << warp_);
  return true;
}

void Multiprocessor::enter() {
  quipu_thread_index = lane().index;
  asker_.now = make_stamp(epoch_, warp().clock, static_cast<std::uint64_t>(warp_),
                          static_cast<std::uint64_t>(lane_));
}

/// Leaves the running lane, which waits somewhere or is ready, and runs another.
void Multiprocessor::yield() {
  const int old_warp = warp_, old_lane = lane_;
  Context& mine = fibers_[static_cast<std::size_t>(lane().fiber)];
  if (!pick()) {
    report_deadlock();
    abandon();
  }
  if (warp_ != old_warp || lane_ != old_lane) {
    take_fiber(lane());
    enter();
    ++counting.launch.switches;
    jump(mine, fibers_[static_cast<std::size_t>(lane().fiber)]);
  } else {
    enter();
  }
}

/// The running lane lets another one run: the first that is ready from a warp and a lane on.
void Multiprocessor::step_back(int first_warp, int first_lane) {
  make_ready(warp_, bit());
  const int old_warp = warp_, old_lane = lane_;
  Context& mine = fibers_[static_cast<std::size_t>(lane().fiber)];
  warp_ = (std::countr_zero(std::rotr(ready_warps_, first_warp)) + first_warp) & 31;
  rotation_ = static_cast<unsigned>(first_lane);
  downwards_ = false;
  pick();
  if (warp_ == old_warp && lane_ == old_lane) return enter();
  take_fiber(lane());
  enter();
  ++counting.launch.switches;
  jump(mine, fibers_[static_cast<std::size_t>(lane().fiber)]);
}

}  // namespace quipu::emulator
