// Launches, blocks and threads from their beginning to their end.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "checks/report.h"
#include "emulator.h"
#include "multiprocessor.h"

// The variables that kernels see as constants (language.h).
__thread uint3 quipu_thread_index __asm__("quipu_thread_index");
__thread uint3 quipu_block_index __asm__("quipu_block_index");
__thread uint3 quipu_block_size __asm__("quipu_block_size");
__thread uint3 quipu_grid_size __asm__("quipu_grid_size");

namespace quipu::emulator {
namespace {

uint3 unflatten(std::uint64_t index, dim3 size) {
  return {static_cast<unsigned>(index % size.x), static_cast<unsigned>(index / size.x % size.y),
          static_cast<unsigned>(index / size.x / size.y)};
}

}  // namespace

void Multiprocessor::begin(const Launch& launch, bool watched) {
  const Settings& s = settings();
  launch_ = &launch;
  const auto call = reinterpret_cast<std::uintptr_t>(launch.call.get());
  arguments_ = {call, call + launch.call->bytes};
  checking_ = watched && s.check;
  counting_ = watched && s.count;
  preempt_ = watched ? s.preempt : 0;
  shuffled_ = s.seed != 0;
  random_state_ = s.seed * 0x9e3779b97f4a7c15u | 1u;
  random();
  quipu_grid_size = {launch.grid.x, launch.grid.y, launch.grid.z};
  quipu_block_size = {launch.block.x, launch.block.y, launch.block.z};
  threads_ = launch.threads();
  warp_count_ = (threads_ + 31) / 32;
  dynamic_bytes_ = launch.shared_bytes;
  counting.begin_launch();
}

bool Multiprocessor::run(const Launch& launch, std::uint64_t oldest_unordered) {
  begin(launch, true);
  epoch_ = global_epoch();
  asker_ = {};
  asker_.order = &order_;
  asker_.launch_start = epoch_;
  asker_.oldest_unordered = oldest_unordered;
  order_.begin_launch();
  counting.launch.launches = 1;

  // Blocks in a stride that meets each once.
  const std::uint64_t blocks = launch.blocks();
  std::uint64_t first = 0, stride = 1;
  if (shuffled_ && blocks > 1) {
    first = random() % blocks;
    do stride = random() % blocks | 1u;
    while (std::gcd(stride, blocks) != 1);
  }
  bool well = true;
  for (std::uint64_t i = 0; i < blocks && well; ++i) {
    well = run_block(unflatten((first + i * stride) % blocks, launch.grid));
  }
  global_epoch() = epoch_;
  return well;
}

bool Multiprocessor::run_unwatched(const Launch& launch, std::uint64_t first, std::uint64_t last) {
  begin(launch, false);
  bool well = true;
  for (std::uint64_t i = first; i < last && well; ++i) well = run_block(unflatten(i, launch.grid));
  return well;
}

bool Multiprocessor::run_block(uint3 index) {
  quipu_block_index = index;
  asker_.block_start = ++epoch_;
  if (checking_) order_.begin_block(epoch_, index);
  counting.begin_block();
  abandoned_ = false;
  alive_ = threads_;
  arrived_ = votes_ = 0;
  ready_warps_ = 0;
  rotation_ = shuffled_ ? random() & 31 : 0;
  downwards_ = shuffled_ && (random() & 1) != 0;
  for (int w = 0; w < warp_count_; ++w) {
    Warp& warp = warps_[static_cast<std::size_t>(w)];
    const int lanes = std::min(32, threads_ - 32 * w);
    warp.exists = ~0u >> (32 - lanes);
    warp.ready = warp.ended = warp.at_barrier = 0;
    warp.clock = 0;
    warp.meetings.clear();
    for (int l = 0; l < lanes; ++l) {
      Lane& lane = warp.lanes[static_cast<std::size_t>(l)];
      lane.fiber = -1;
      lane.fenced = 0;
      lane.last_address = 0;
      const int thread = 32 * w + l;
      lane.index = unflatten(static_cast<std::uint64_t>(thread), launch_->block);
    }
    make_ready(w, warp.exists);
  }

  warp_ = shuffled_ ? static_cast<int>(random() % static_cast<std::uint64_t>(warp_count_)) : 0;
  pick();
  take_fiber(lane());
  running = this;
  watching = checking_ || counting_ ? this : nullptr;
  enter();
  jump(main_, fibers_[static_cast<std::size_t>(lane().fiber)]);
  running = watching = nullptr;
  if (!abandoned_) return true;

  renew_fibers();
  for (Warp& warp : warps_) {
    warp.requests.clear();
    for (Lane& lane : warp.lanes) {
      lane.copies.clear();
      lane.copy_groups.clear();
    }
  }
  dynamic_shadow_.set(0, dynamic_limit, 0);
  static_shadow_->set(0, static_.end - static_.begin, 0);
  return false;
}

/// The running thread has returned from the kernel.
void Multiprocessor::end_thread() {
  for (AsyncCopy& copy : lane().copies) {
    if (first_at("unfinished copy", copy.code)) {
      report("unfinished copy", copy.code,
             "the thread ends without waiting for its asynchronous copy");
    }
    land(copy);
  }
  lane().copies.clear();
  lane().copy_groups.clear();
  warp().ended |= bit();
  --alive_;
  for (std::size_t i = 0; i < warp().meetings.size(); ++i) {
    Meeting& meeting = warp().meetings[i];
    if ((meeting.mask & bit()) == 0) continue;
    report("warp divergence", meeting.at,
           "lane " + std::to_string(lane_) + " is named in the mask but has left the kernel");
    meeting.mask &= ~bit();
    if (meeting.mask == meeting.arrived) {
      complete(i);
      break;
    }
  }
  if (arrived_ > 0 && arrived_ == alive_) {
    report("barrier divergence", barrier_at_,
           std::to_string(threads_ - alive_) + " of " + std::to_string(threads_) +
               " threads have left the kernel while the others wait here");
    release_barrier();
  }
  if (warp().ended == warp().exists && counting_) counting.close(warp().requests);
}

void Multiprocessor::report_deadlock() {
  std::string text = "threads wait for each other:";
  Site at;
  int listed = 0;
  const auto list = [&](int warp, std::uint32_t lanes, Site site, const std::string& more) {
    at = site;
    if (++listed > 6) return;
    char row[80];
    std::snprintf(row, sizeof row, " warp %d lanes %08x%s at line %u;", warp, lanes, more.c_str(),
                  static_cast<unsigned>(site.line()));
    text += row;
  };
  for (int w = 0; w < warp_count_; ++w) {
    const Warp& warp = warps_[static_cast<std::size_t>(w)];
    if (warp.at_barrier != 0) list(w, warp.at_barrier, barrier_at_, " in a barrier");
    for (const Meeting& m : warp.meetings) {
      char mask[40];
      std::snprintf(mask, sizeof mask, " of mask %08x", m.mask);
      list(w, m.arrived, m.at, mask);
    }
  }
  text.back() = '.';
  report("deadlock", at, text);
}

std::string Multiprocessor::where() const {
  const uint3 b = quipu_block_index, t = quipu_thread_index;
  char text[120];
  std::snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y,
                t.z);
  return text;
}

}  // namespace quipu::emulator
