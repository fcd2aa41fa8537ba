// The best entries along an axis. Lines are independent and go to the threads. A line is read once,
// in pieces; what beats the worst of the best so far is noted as a candidate, and whenever the room
// for candidates is full it is cut back to the k best, which raises the bar. So nearly all entries
// of a long line are only compared with the bar, many at a time: bound by memory. The order is a
// strict one (by value, then by index), which makes the result unique.
#include <algorithm>
#include <cmath>

#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/rows.h"
#include "quipu/ops/index/top_k_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t piece = 2048;
constexpr std::int64_t task = 16384;  // entries that are worth a task of their own
constexpr std::int64_t stretch = 64;  // entries that are compared with the bar at once

template <class T>
struct Entry {
  T value;
  std::int64_t index;
};

/// Whether a goes before b whatever their indices; NaN is larger than everything.
template <bool largest, class T>
bool beats(T a, T b) {
  if constexpr (largest) return (a > b) | ((a != a) & (b == b));
  return (a < b) | ((a == a) & (b != b));
}

template <class T, bool largest>
class Candidates {
 public:
  Candidates(Entry<T>* room, std::int64_t capacity, std::int64_t k)
      : room_(room), capacity_(capacity), k_(k) {}

  /// n entries of the line, from index `first` on.
  void offer(const T* values, std::int64_t first, std::int64_t n) {
    for (std::int64_t begin = 0; begin < n; begin += stretch) {
      const std::int64_t end = std::min(n, begin + stretch);
      if (has_bar_ && !any_beats_bar(values + begin, end - begin)) continue;
      for (std::int64_t i = begin; i < end; ++i) {
        // One that equals the bar comes after it.
        if (has_bar_ && !beats<largest>(values[i], bar_)) continue;
        room_[count_++] = {values[i], first + i};
        if (count_ == capacity_) cut_back();
      }
    }
  }

  /// The k best in order, once all were offered.
  const Entry<T>* sorted() {
    if (count_ > k_) cut_back();
    std::sort(room_, room_ + k_, goes_before);
    return room_;
  }

 private:
  static bool goes_before(const Entry<T>& a, const Entry<T>& b) {
    if (beats<largest>(a.value, b.value)) return true;
    return !beats<largest>(b.value, a.value) && a.index < b.index;
  }
  bool any_beats_bar(const T* values, std::int64_t n) const {
    int any = 0;
    const T bar = bar_;
    for (std::int64_t i = 0; i < n; ++i) any |= beats<largest>(values[i], bar) ? 1 : 0;
    return any != 0;
  }
  void cut_back() {
    if (count_ > k_) std::nth_element(room_, room_ + (k_ - 1), room_ + count_, goes_before);
    count_ = k_;
    bar_ = room_[k_ - 1].value;
    has_bar_ = true;
  }

  Entry<T>* room_;
  std::int64_t capacity_, k_, count_ = 0;
  bool has_bar_ = false;
  T bar_{};
};

template <class T, bool largest>
class Lines {
 public:
  Lines(const View& x, const View& values, const View& indices, int axis)
      : x_(x),
        values_(values),
        indices_(indices),
        axis_(axis),
        length_(x.size(axis)),
        k_(values.size(axis)) {
    outer_ = {x.shape, {x.strides, values.strides, indices.strides}};
    outer_.shape.erase(axis);
    for (int v = 0; v < 3; ++v) outer_[v].erase(axis);
    outer_ = outer_.merged();
    count_ = numel(outer_.shape);
  }

  void run_in_tiles() const {
    // Few candidates for a small k: cutting back early raises the bar early.
    constexpr std::int64_t most = 2 * top_k_in_tiles;
    const std::int64_t capacity = std::clamp<std::int64_t>(4 * k_, 512, most);
    parallel_for(count_, std::max<std::int64_t>(1, task / length_),
                 [&](std::int64_t begin, std::int64_t end) {
                   Entry<T> room[most];
                   for (std::int64_t line = begin; line < end; ++line) find(line, room, capacity);
                 });
  }
  void run_in_room(const View& room) const {
    const std::int64_t together = room.size(0);
    parallel_for(together, 1, [&](std::int64_t begin, std::int64_t) {
      Entry<T>* const own = room.as<Entry<T>>() + begin * length_;
      for (std::int64_t line = begin; line < count_; line += together) {
        find(line, own, length_ + 1);  // never full
      }
    });
  }

 private:
  void find(std::int64_t line, Entry<T>* room, std::int64_t capacity) const {
    Odometer<3> place(outer_);
    place.seek(line);
    T tile[piece];
    Candidates<T, largest> best(room, capacity, k_);
    const std::int64_t stride = x_.stride(axis_);
    for (std::int64_t first = 0; first < length_; first += piece) {
      const std::int64_t n = std::min(piece, length_ - first);
      best.offer(read_row(tile, x_, place.offsets()[0] + first * stride, stride, n), first, n);
    }
    store(best.sorted(), place.offsets());
  }

  void store(const Entry<T>* best, const Offsets<3>& line) const {
    constexpr std::int64_t some = 256;
    T values[some];
    std::int64_t indices[some];
    const std::int64_t v_stride = values_.stride(axis_), i_stride = indices_.stride(axis_);
    for (std::int64_t first = 0; first < k_; first += some) {
      const std::int64_t n = std::min(some, k_ - first);
      for (std::int64_t i = 0; i < n; ++i) {
        values[i] = best[first + i].value;
        indices[i] = best[first + i].index;
      }
      store_run(at(values_, line[1] + first * v_stride), values_.dtype, v_stride, values, n);
      store_run(at(indices_, line[2] + first * i_stride), indices_.dtype, i_stride, indices, n);
    }
  }

  const View &x_, &values_, &indices_;
  int axis_;
  std::int64_t length_, k_, count_;
  Layout<3> outer_;
};

template <class T>
void find_as(const View& x, const View& values, const View& indices, const View& room, int axis,
             bool largest) {
  static_assert(sizeof(Entry<T>) == 16);
  const auto run = [&](const auto& lines) {
    room.numel() > 0 ? lines.run_in_room(room) : lines.run_in_tiles();
  };
  if (largest) return run(Lines<T, true>(x, values, indices, axis));
  run(Lines<T, false>(x, values, indices, axis));
}

void find(View x, View values, View indices, View room, int axis, bool largest) {
  switch (compute_type(x.dtype)) {
    case DType::f64: return find_as<double>(x, values, indices, room, axis, largest);
    case DType::f32: return find_as<float>(x, values, indices, room, axis, largest);
    default: return find_as<std::int64_t>(x, values, indices, room, axis, largest);
  }
}

}  // namespace
}  // namespace on_cpu

void register_cpu_top_k() {
  top_k_kernel.provide(Variant::cpu, on_cpu::find);
}

}  // namespace quipu::detail
