#include "order.h"

#include <algorithm>

namespace quipu::emulator {

void join(StreamClock& clock, const StreamClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void Order::begin_launch() {
  blocks_.clear();
  published_.clear();
}

void Order::begin_block(std::uint64_t epoch, uint3 index) {
  blocks_.push_back({epoch, index});
  known_.clear();
}

void Order::publish(const void* address, Stamp fenced) {
  if (fenced == 0) return;
  std::vector<Stamp>& published = published_[address];
  published.resize(std::max(published.size(), blocks_.size()));
  published[blocks_.size() - 1] = fenced;
  // What this block has learnt itself is published with it.
  for (std::size_t i = 0; i < known_.size(); ++i) {
    published[i] = std::max(published[i], known_[i].until);
  }
}

void Order::learn(const void* address, Stamp now) {
  const auto found = published_.find(address);
  if (found == published_.end()) return;
  known_.resize(std::max(known_.size(), blocks_.size() - 1));
  for (std::size_t i = 0; i < std::min(found->second.size(), known_.size()); ++i) {
    if (found->second[i] > known_[i].until) known_[i] = {found->second[i], now};
  }
}

bool Order::knows_block(std::size_t number, Stamp earlier, Stamp now) const {
  if (number >= known_.size()) return false;
  const auto& [until, since] = known_[number];
  // Other threads know it after a barrier, other lanes after a __syncwarp.
  const bool mine = thread_of(since) == thread_of(now) || epoch_of(since) < epoch_of(now) ||
                    ordered_by_warp(since, now);
  return mine && (epoch_of(earlier) < epoch_of(until) ||
                  (epoch_of(earlier) == epoch_of(until) &&
                   (thread_of(earlier) == thread_of(until) || ordered_by_warp(earlier, until))));
}

bool Order::knows(Stamp earlier, Stamp now) const {
  if (known_.empty()) return false;
  if (warp_of(earlier) != several_blocks)
    return knows_block(number_at(epoch_of(earlier)), earlier, now);
  // Which blocks is not recorded: all that came before have to be known.
  for (std::size_t i = 0; i < blocks_.size() - 1; ++i) {
    if (!knows_block(i, make_stamp(blocks_[i].start, 0, several_warps, 0), now)) return false;
  }
  return true;
}

std::size_t Order::number_at(std::uint64_t epoch) const {
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), epoch,
                                      [](std::uint64_t e, const Block& b) { return e < b.start; });
  return after == blocks_.begin() ? 0 : static_cast<std::size_t>(after - blocks_.begin()) - 1;
}

uint3 Order::block_at(std::uint64_t epoch) const {
  return blocks_.empty() ? uint3{} : blocks_[number_at(epoch)].index;
}

StreamOrder& stream_order() {
  static StreamOrder* order = new StreamOrder;  // never destroyed: programs launch until they end
  return *order;
}

std::uint64_t StreamOrder::begin(const Work& work, std::uint64_t start) {
  running_ = work;
  done_.push_back({start, work.stream, work.position});
  if (starts_.size() <= work.stream) starts_.resize(work.stream + 1);
  auto& mine = starts_[work.stream];
  if (mine.size() < work.position) mine.resize(work.position);
  mine[work.position - 1] = start;
  std::uint64_t oldest = start;
  for (std::size_t stream = 0; stream < starts_.size(); ++stream) {
    if (stream == work.stream) continue;
    const std::size_t known = stream < work.after.size() ? work.after[stream] : 0;
    const auto& other = starts_[stream];
    if (known < other.size() && other[known] != 0) oldest = std::min(oldest, other[known]);
  }
  return oldest;
}

const StreamOrder::Done* StreamOrder::at(std::uint64_t epoch) const {
  const auto after = std::upper_bound(done_.begin(), done_.end(), epoch,
                                      [](std::uint64_t e, const Done& d) { return e < d.start; });
  return after == done_.begin() ? nullptr : &*(after - 1);
}

bool StreamOrder::ordered(std::uint64_t epoch) const {
  const Done* done = at(epoch);
  if (done == nullptr || done->stream == running_.stream) return true;
  return done->stream < running_.after.size() && done->position <= running_.after[done->stream];
}

std::uint32_t StreamOrder::stream_at(std::uint64_t epoch) const {
  const Done* done = at(epoch);
  return done == nullptr ? 0 : done->stream;
}

}  // namespace quipu::emulator
