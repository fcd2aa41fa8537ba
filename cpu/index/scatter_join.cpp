// Products, largest and smallest entries at indices. All indices are checked first. A task owns
// some lines along the axis and goes through their entries in order, for as many places at a time
// as fit a tile of the compute type, so that results are rounded once and the same bits always.
// Bound by the entries, which are read once for every tile of places.
#include <algorithm>

#include "index_check.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/axis_plan.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/vector_math.h"
#include "quipu/cpu/simd/wrapping.h"
#include "quipu/ops/index/gather_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t tile = 2048;  // places
constexpr std::int64_t block = 512;  // entries at a time

template <Join join, class T>
T joined(T a, T b) {
  if constexpr (join == Join::mul) return wrapping_product(a, b);
  if constexpr (join == Join::max) return math::maximum(a, b);
  return math::minimum(a, b);
}

/// One line: starts are the offsets of its first entry, index and place.
template <Join join, class T>
void join_line(const View& o, const View& index, const View& x, int axis,
               const Offsets<3>& starts) {
  const std::int64_t length = x.size(axis), places = o.size(axis);
  T results[tile], values[block];
  std::int64_t at_places[block];
  for (std::int64_t low = 0; low < places; low += tile) {
    const std::int64_t count = std::min(tile, places - low);
    char* const first = at(o, starts[2] + low * o.stride(axis));
    load_run(results, first, o.dtype, o.stride(axis), count);
    bool changed = false;
    for (std::int64_t k = 0; k < length; k += block) {
      const std::int64_t n = std::min(block, length - k);
      load_run(at_places, at(index, starts[1] + k * index.stride(axis)), index.dtype,
               index.stride(axis), n);
      load_run(values, at(x, starts[0] + k * x.stride(axis)), x.dtype, x.stride(axis), n);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t place = at_places[i] - low;
        if (place < 0 || place >= count) continue;
        results[place] = joined<join>(results[place], values[i]);
        changed = true;
      }
    }
    if (changed) store_run(first, o.dtype, o.stride(axis), results, count);
  }
}

template <Join join, class T>
void join_lines(const View& o, const View& index, const View& x, int axis) {
  Layout<3> lines{x.shape, {x.strides, index.strides, o.strides}};
  lines.shape.erase(axis);
  for (int v = 0; v < 3; ++v) lines[v].erase(axis);
  const std::int64_t grain = std::max<std::int64_t>(1, 4096 / x.size(axis));
  parallel_for(numel(lines.shape), grain, [&](std::int64_t begin, std::int64_t end) {
    Odometer<3> line(lines);
    line.seek(begin);
    for (std::int64_t i = begin; i < end; ++i, line.next()) {
      join_line<join, T>(o, index, x, axis, line.offsets());
    }
  });
}

template <class T>
void join_as(const View& o, const View& index, const View& x, int axis, Join join) {
  switch (join) {
    case Join::mul: return join_lines<Join::mul, T>(o, index, x, axis);
    case Join::max: return join_lines<Join::max, T>(o, index, x, axis);
    case Join::min: return join_lines<Join::min, T>(o, index, x, axis);
  }
}

void scatter_join(View o, View index, View x, int axis, Join join) {
  check_indices(index, o.size(axis), axis);
  if (x.numel() == 0) return;
  switch (compute_type(o.dtype)) {
    case DType::f64: return join_as<double>(o, index, x, axis, join);
    case DType::f32: return join_as<float>(o, index, x, axis, join);
    default: return join_as<std::int64_t>(o, index, x, axis, join);
  }
}

}  // namespace
}  // namespace on_cpu

void register_cpu_scatter_join() {
  scatter_join_kernel.provide(Variant::cpu, on_cpu::scatter_join);
}

}  // namespace quipu::detail
