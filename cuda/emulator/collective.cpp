// Barriers of a block and collectives of a warp. Each thread deposits what it brings; the last one
// to arrive computes everybody's result and readies them all.
#include <algorithm>
#include <bit>

#include "checks/report.h"
#include "multiprocessor.h"

namespace quipu::emulator {
namespace {

bool same_place(Site a, Site b) {
  const bool same_file = a.file_name() == b.file_name() ||  // the usual case, without a look inside
                         std::strcmp(a.file_name(), b.file_name()) == 0;
  return a.line() == b.line() && a.column() == b.column() && same_file;
}

std::string at_line(Site at) {
  return "line " + std::to_string(at.line());
}

/// Calls visit(lane) for each bit of the mask.
template <class Visit>
void each_lane(std::uint32_t mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

/// The lane that a shuffle reads; its own where that lies outside its part of the warp.
int shuffle_source(Collective what, int lane, int argument, int width) {
  const int first = lane & ~(width - 1), last = first + width - 1;
  int source = lane;
  switch (what) {
    case Collective::shuffle: return first + (argument & (width - 1));
    case Collective::shuffle_up: source = lane - argument; break;
    case Collective::shuffle_down: source = lane + argument; break;
    default: source = lane ^ argument; break;
  }
  // An xor may reach a lower part of the warp, as on the device.
  const bool too_low = what != Collective::shuffle_xor && source < first;
  return too_low || source > last ? lane : source;
}

std::uint32_t reduce(Collective what, std::uint32_t a, std::uint32_t b) {
  const auto x = static_cast<std::int32_t>(a), y = static_cast<std::int32_t>(b);
  switch (what) {
    case Collective::add: return a + b;
    case Collective::min_signed: return static_cast<std::uint32_t>(std::min(x, y));
    case Collective::max_signed: return static_cast<std::uint32_t>(std::max(x, y));
    case Collective::min_unsigned: return std::min(a, b);
    case Collective::max_unsigned: return std::max(a, b);
    case Collective::bit_and: return a & b;
    case Collective::bit_or: return a | b;
    default: return a ^ b;
  }
}

bool is_shuffle(Collective what) {
  return what >= Collective::shuffle && what <= Collective::shuffle_xor;
}

}  // namespace

int Multiprocessor::barrier(bool predicate, Site at) {
  if (arrived_ == 0) {
    barrier_at_ = at;
  } else if (!same_place(at, barrier_at_)) {
    report("barrier divergence", at, "other threads of the block wait at " + at_line(barrier_at_));
  }
  if (alive_ != threads_) {
    report("barrier divergence", at,
           std::to_string(threads_ - alive_) + " of " + std::to_string(threads_) +
               " threads have left the kernel before this barrier");
  }
  warp().at_barrier |= bit();
  ++arrived_;
  votes_ += predicate;
  if (arrived_ == alive_) release_barrier();
  yield();
  return vote_result_;
}

void Multiprocessor::release_barrier() {
  ++epoch_;
  ++counting.launch.barriers;
  vote_result_ = votes_;
  arrived_ = votes_ = 0;
  for (int w = 0; w < warp_count_; ++w) {
    Warp& warp = warps_[static_cast<std::size_t>(w)];
    const std::uint32_t waiting = warp.at_barrier;
    warp.at_barrier = 0;
    warp.clock = 0;
    if (counting_) counting.close(warp.requests);
    make_ready(w, waiting);
  }
}

/// A mask that names lanes which can never arrive is reported, and made to name those that can.
void Multiprocessor::check_mask(Collective what, std::uint32_t& mask, Site at) {
  if (what == Collective::call && warp().exists != ~0u) {
    report("warp divergence", at,
           "this needs all 32 lanes, but the last warp of the block has " +
               std::to_string(std::popcount(warp().exists)));
  }
  mask &= warp().exists;  // a full mask in a block whose last warp is not full
  if ((mask & bit()) == 0) {
    report("warp divergence", at, "lane " + std::to_string(lane_) + " is not in its own mask");
    mask |= bit();
  }
  if ((mask & warp().ended) != 0) {
    report("warp divergence", at,
           "the mask names " + std::to_string(std::popcount(mask & warp().ended)) +
               " lanes that have left the kernel");
    mask &= ~warp().ended;
  }
}

std::uint64_t Multiprocessor::collective(Collective what, std::uint32_t mask, std::uint64_t input,
                                         unsigned argument, unsigned width, Site at,
                                         CollectiveFunction function) {
  Lane& mine = lane();
  mine.input = input;
  mine.argument = argument;
  mine.width = width;
  check_mask(what, mask, at);
  auto& meetings = warp().meetings;
  std::size_t i = 0;
  while (i < meetings.size() && meetings[i].mask != mask) ++i;
  if (i == meetings.size()) {
    for (const Meeting& other : meetings) {
      if ((other.mask & mask) == 0) continue;
      report("warp divergence", at,
             "lanes named here wait with another mask at " + at_line(other.at));
    }
    meetings.push_back({mask, 0, what, at, function});
  } else if (meetings[i].what != what || !same_place(meetings[i].at, at)) {
    report("warp divergence", at,
           "lanes of one mask meet in different calls, the others at " + at_line(meetings[i].at));
  }
  meetings[i].arrived |= bit();
  if (meetings[i].arrived == mask) complete(i);
  yield();
  return mine.output;
}

void Multiprocessor::complete(std::size_t index) {
  Warp& w = warp();
  const Meeting meeting = w.meetings[index];
  w.meetings.erase(w.meetings.begin() + static_cast<std::ptrdiff_t>(index));
  ++counting.launch.collectives;
  const auto lane_at = [&](int l) -> Lane& { return w.lanes[static_cast<std::size_t>(l)]; };
  const auto all_get = [&](std::uint64_t value) {
    each_lane(meeting.arrived, [&](int l) { lane_at(l).output = value; });
  };
  const auto lanes_with = [&](std::uint64_t value) {
    std::uint32_t lanes = 0;
    each_lane(meeting.arrived,
              [&](int l) { lanes |= std::uint32_t{lane_at(l).input == value} << l; });
    return lanes;
  };

  if (meeting.what == Collective::sync) {
    if (w.clock < clock_limit) ++w.clock;
  } else if (meeting.what == Collective::ballot) {
    all_get(lanes_with(1));
  } else if (is_shuffle(meeting.what)) {
    each_lane(meeting.arrived, [&](int l) {
      const int source = shuffle_source(meeting.what, l, static_cast<int>(lane_at(l).argument),
                                        static_cast<int>(lane_at(l).width));
      if ((meeting.arrived >> source & 1) == 0) {
        report("warp divergence", meeting.at,
               "lane " + std::to_string(l) + " shuffles from lane " + std::to_string(source) +
                   ", which does not take part");
      }
      lane_at(l).output = lane_at(source).input;
    });
  } else if (meeting.what == Collective::match_any) {
    each_lane(meeting.arrived, [&](int l) { lane_at(l).output = lanes_with(lane_at(l).input); });
  } else if (meeting.what == Collective::match_all) {
    const std::uint32_t same = lanes_with(lane_at(std::countr_zero(meeting.arrived)).input);
    all_get(same == meeting.arrived ? same : 0);
  } else if (meeting.what == Collective::call) {
    std::array<std::uint64_t, 32> inputs{};
    each_lane(meeting.arrived,
              [&](int l) { inputs[static_cast<std::size_t>(l)] = lane_at(l).input; });
    if (meeting.function != nullptr && meeting.arrived == ~0u) meeting.function(inputs.data());
  } else {
    const int first = std::countr_zero(meeting.arrived);
    auto value = static_cast<std::uint32_t>(lane_at(first).input);
    each_lane(meeting.arrived & ~(1u << first), [&](int l) {
      value = reduce(meeting.what, value, static_cast<std::uint32_t>(lane_at(l).input));
    });
    all_get(value);
  }
  if (counting_ && meeting.arrived == (w.exists & ~w.ended)) counting.close(w.requests);
  make_ready(warp_, meeting.arrived);
}

}  // namespace quipu::emulator
