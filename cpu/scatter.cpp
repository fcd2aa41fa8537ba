// Adding at indices. All indices are checked first. Tasks never share a destination: each owns some
// lines along the axis and a range of places on them, and goes through the indices in order, so
// that sums are the same bits always. f32, f64 and whole numbers are added where they lie; bf16 and
// f16 are summed in an f32 tile that covers the range, and rounded once. Every task reads the
// indices of its lines, but only the rows that fall into its range.
#include <array>

#include "axis_plan.h"
#include "convert.h"
#include "index_check.h"
#include "quipu/core/parallel.h"
#include "quipu/ops/gather_kernels.h"
#include "wrapping.h"

namespace quipu {
namespace on_cpu {
namespace {

constexpr std::int64_t widest = 64;           // lines side by side
constexpr std::int64_t tile_entries = 32768;  // of the f32 tile
constexpr std::int64_t worth_a_range =
    65536;  // entries of x that are worth cutting the destination

/// One group of lines of x, their indices and their destinations.
struct Lines {
  const View& x;
  const View& index;
  const View& o;
  const AxisPlan<3>& plan;
  const AxisPlan<3>::Group& group;

  /// Calls add(place, column, value) for all entries whose place lies in [low, high), in the order
  /// of the axis.
  template <class T, class Add>
  void each(std::int64_t low, std::int64_t high, Add add) const {
    T values[widest];
    std::int64_t places[widest];
    const bool one_place = plan.column_stride[1] == 0;  // the whole row goes to one place
    for (std::int64_t k = 0; k < plan.length; ++k) {
      const std::int64_t row = group.offsets[1] + k * plan.axis_stride[1];
      load_run(places, at(index, row), index.dtype, plan.column_stride[1],
               one_place ? 1 : group.width);
      if (one_place && !(places[0] >= low && places[0] < high)) continue;
      load_run(values, at(x, group.offsets[0] + k * plan.axis_stride[0]), x.dtype,
               plan.column_stride[0], group.width);
      for (std::int64_t i = 0; i < group.width; ++i) {
        const std::int64_t place = places[one_place ? 0 : i];
        if (place >= low && place < high) add(place, i, values[i]);
      }
    }
  }
};

/// T is what is summed, O what lies in memory.
template <class T, class O>
void add_in_place(const Lines& lines, std::int64_t low, std::int64_t high) {
  O* const o = reinterpret_cast<O*>(at(lines.o, lines.group.offsets[2]));
  const std::int64_t step = lines.plan.axis_stride[2], column = lines.plan.column_stride[2];
  lines.each<T>(low, high, [&](std::int64_t place, std::int64_t i, T value) {
    O& target = o[place * step + i * column];
    target = static_cast<O>(wrapping_sum(static_cast<T>(target), value));
  });
}

void add_in_tile(const Lines& lines, std::int64_t low, std::int64_t high) {
  const std::int64_t width = lines.group.width;
  float tile[tile_entries];
  std::array<bool, tile_entries> loaded;
  std::fill_n(loaded.begin(), high - low, false);
  const auto row = [&](std::int64_t place) {
    return at(lines.o, lines.group.offsets[2] + place * lines.plan.axis_stride[2]);
  };
  lines.each<float>(low, high, [&](std::int64_t place, std::int64_t i, float value) {
    float* sums = tile + (place - low) * width;
    bool& known = loaded[static_cast<std::size_t>(place - low)];
    if (!known) load_run(sums, row(place), lines.o.dtype, lines.plan.column_stride[2], width);
    known = true;
    sums[i] += value;
  });
  for (std::int64_t place = low; place < high; ++place) {
    if (!loaded[static_cast<std::size_t>(place - low)]) continue;
    store_run(row(place), lines.o.dtype, lines.plan.column_stride[2], tile + (place - low) * width,
              width);
  }
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
    range = tile_entries / (plan.has_columns() ? widest : 1);
  } else if (groups < 4 && x.numel() >= worth_a_range) {
    range = (places + 7) / 8;
  }
  const std::int64_t ranges = (places + range - 1) / range;
  const std::int64_t grain = std::max<std::int64_t>(1, 4096 / plan.length);
  parallel_for(groups * ranges, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t low = task % ranges * range, high = std::min(places, low + range);
      plan.each(task / ranges, task / ranges + 1, [&](const AxisPlan<3>::Group& group) {
        add_range({x, index, o, plan, group}, low, high);
      });
    }
  });
}

void scatter_add(View o, View index, View x, int axis) {
  check_indices(index, o.size(axis), axis);
  scatter(o, index, x, axis);
}

void index_add(View o, View index, View x, int axis) {
  check_indices(index, o.size(axis), axis);
  scatter(o, along_axis(index, x.shape, axis), x, axis);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_scatter() {
  scatter_add_kernel.provide(DeviceKind::cpu, on_cpu::scatter_add);
  index_add_kernel.provide(DeviceKind::cpu, on_cpu::index_add);
}

}  // namespace quipu
