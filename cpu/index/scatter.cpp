// Adding at indices. All indices are checked first. Tasks never share a destination: each owns some
// lines along the axis and a range of places on them, and goes through the indices in order, so
// that sums are the same bits always. f32, f64 and whole numbers are added where they lie; bf16 and
// f16 are summed in an f32 tile that covers the range, and rounded once. Every task reads the
// indices of its lines, but only the rows that fall into its range.
#include <algorithm>

#include "index_check.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/axis_plan.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/wrapping.h"
#include "quipu/ops/index/gather_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t widest = 128;           // lines side by side
constexpr std::int64_t block = 512;            // indices at a time
constexpr std::int64_t tile_entries = 32768;   // of the f32 tile
constexpr std::int64_t worth_cutting = 65536;  // entries of x that are shared between ranges

/// One group of lines of x, their indices and their destinations.
struct Lines {
  const View& x;
  const View& index;
  const View& o;
  const AxisPlan<3>& plan;
  const AxisPlan<3>::Group& group;
  std::int64_t places;  // along the axis of o

  char* source(std::int64_t k) const { return at(x, group.offsets[0] + k * plan.axis_stride[0]); }
  char* indices(std::int64_t k) const {
    return at(index, group.offsets[1] + k * plan.axis_stride[1]);
  }
  char* destination(std::int64_t place) const {
    return at(o, group.offsets[2] + place * plan.axis_stride[2]);
  }

  /// Goes through all entries whose place lies in [low, high), in the order of the axis. Calls
  /// sums.add_row(place, values) where a whole row goes to one place, else sums.add(place, line,
  /// value).
  template <class T, class Sums>
  void each(std::int64_t low, std::int64_t high, Sums& sums) const {
    const bool columns = plan.softmax_over_sequence(),
               rows_go_together = columns && plan.column_stride[1] == 0;
    if (rows_go_together) return each_row<T>(low, high, sums);
    // Entries are read in runs: a row across the lines, or a stretch of the only line.
    const Offsets<3>& stride = columns ? plan.column_stride : plan.axis_stride;
    const std::int64_t step = columns ? 1 : block;
    for (std::int64_t k = 0; k < plan.length; k += step) {
      const std::int64_t n = columns ? group.width : std::min(step, plan.length - k);
      std::int64_t places[block];
      T values[block];
      load_run(places, indices(k), index.dtype, stride[1], n);
      load_run(values, source(k), x.dtype, stride[0], n);
      for (std::int64_t i = 0; i < n; ++i) {
        if (places[i] >= low && places[i] < high) sums.add(places[i], columns ? i : 0, values[i]);
      }
    }
  }

 private:
  /// First finds which of a block of rows go there, then adds those. Where they are some of many,
  /// the memory is asked for them in advance: half the time of an embedding's gradient in bf16.
  template <class T, class Sums>
  void each_row(std::int64_t low, std::int64_t high, Sums& sums) const {
    constexpr std::int64_t ahead = 4;
    const bool all = high - low == places;
    std::int64_t here[block], found[block];
    T values[widest];
    for (std::int64_t first = 0; first < plan.length; first += block) {
      const std::int64_t n = std::min(block, plan.length - first);
      load_run(here, indices(first), index.dtype, plan.axis_stride[1], n);
      std::int64_t count = 0;
      for (std::int64_t k = 0; k < n && !all; ++k) {
        found[count] = k;
        count += here[k] >= low && here[k] < high;
      }
      for (std::int64_t k = 0; k < n && all; ++k) {
        load_run(values, source(first + k), x.dtype, plan.column_stride[0], group.width);
        sums.add_row(here[k], values);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        if (i + ahead < count) {
          const char* next = source(first + found[i + ahead]);
          const std::int64_t bytes = group.width * static_cast<std::int64_t>(size_of(x.dtype));
          for (std::int64_t k = 0; k < bytes; k += 64) __builtin_prefetch(next + k);
        }
        load_run(values, source(first + found[i]), x.dtype, plan.column_stride[0], group.width);
        sums.add_row(here[found[i]], values);
      }
    }
  }
};

/// Sums where they lie. T is what is added, O what lies in memory.
template <class T, class O>
struct SumsInPlace {
  const Lines& lines;
  std::int64_t stride = lines.plan.column_stride[2];

  void add(std::int64_t place, std::int64_t line, T value) {
    O& target = reinterpret_cast<O*>(lines.destination(place))[line * stride];
    target = static_cast<O>(wrapping_sum(static_cast<T>(target), value));
  }
  void add_row(std::int64_t place, const T* values) {
    add_run(lines.destination(place), lines.o.dtype, stride, values, lines.group.width);
  }
};

template <class T, class O>
void add_in_place(const Lines& lines, std::int64_t low, std::int64_t high) {
  SumsInPlace<T, O> sums{lines};
  lines.each<T>(low, high, sums);
}

/// Sums of a range of places in f32, loaded at the first touch and stored at the end.
class SumsInTile {
 public:
  SumsInTile(const Lines& lines, std::int64_t low, std::int64_t high)
      : lines_(lines), low_(low), high_(high), stride_(lines.plan.column_stride[2]) {
    std::fill_n(loaded_, high - low, false);
  }
  void add(std::int64_t place, std::int64_t line, float value) { row(place)[line] += value; }
  void add_row(std::int64_t place, const float* values) {
    float* sums = row(place);
    for (std::int64_t i = 0; i < lines_.group.width; ++i) sums[i] += values[i];
  }
  void store() {
    for (std::int64_t place = low_; place < high_; ++place) {
      if (!loaded_[place - low_]) continue;
      store_run(lines_.destination(place), lines_.o.dtype, stride_, row(place), lines_.group.width);
    }
  }

 private:
  float* row(std::int64_t place) {
    float* sums = tile_ + (place - low_) * lines_.group.width;
    bool& loaded = loaded_[place - low_];
    if (!loaded)
      load_run(sums, lines_.destination(place), lines_.o.dtype, stride_, lines_.group.width);
    loaded = true;
    return sums;
  }

  const Lines& lines_;
  std::int64_t low_, high_, stride_;
  bool loaded_[tile_entries];
  float tile_[tile_entries];
};

void add_in_tile(const Lines& lines, std::int64_t low, std::int64_t high) {
  SumsInTile sums(lines, low, high);
  lines.each<float>(low, high, sums);
  sums.store();
}

void add_range(const Lines& lines, std::int64_t low, std::int64_t high) {
  switch (lines.o.dtype) {
    case DType::f64: return add_in_place<double, double>(lines, low, high);
    case DType::f32: return add_in_place<float, float>(lines, low, high);
    case DType::i64: return add_in_place<std::int64_t, std::int64_t>(lines, low, high);
    case DType::i32: return add_in_place<std::int64_t, std::int32_t>(lines, low, high);
    case DType::u8: return add_in_place<std::int64_t, std::uint8_t>(lines, low, high);
    default: return add_in_tile(lines, low, high);
  }
}

/// index has the shape of x; its strides may be 0.
void scatter(const View& o, const View& index, const View& x, int axis) {
  if (x.numel() == 0) return;
  const AxisPlan<3> plan({&x, &index, &o}, axis, widest);
  const std::int64_t places = o.size(axis), groups = plan.groups();
  std::int64_t range = places;
  if (is_reduced(o.dtype)) {
    range = tile_entries / (plan.softmax_over_sequence() ? widest : 1);
  } else if (groups < 4 && x.numel() >= worth_cutting) {
    range = (places + 7) / 8;
  }
  const std::int64_t ranges = (places + range - 1) / range;
  const std::int64_t grain = std::max<std::int64_t>(1, 4096 / plan.length);
  parallel_for(groups * ranges, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t low = task % ranges * range, high = std::min(places, low + range);
      plan.each(task / ranges, task / ranges + 1, [&](const AxisPlan<3>::Group& group) {
        add_range({x, index, o, plan, group, places}, low, high);
      });
    }
  });
}

void scatter_add(View o, View index, View x, int axis) {
  check_indices(index, o.size(axis), axis);
  scatter(o, index, x, axis);
}

void index_add(View o, View index, View x, int axis, View) {
  check_indices(index, o.size(axis), axis);
  scatter(o, along_axis(index, x.shape, axis), x, axis);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_scatter() {
  scatter_add_kernel.provide(Variant::cpu, on_cpu::scatter_add);
  index_add_kernel.provide(Variant::cpu, on_cpu::index_add);
}

}  // namespace quipu::detail
