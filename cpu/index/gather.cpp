// Reading at indices. All indices are checked first, so that an error leaves nothing half done.
// Whole rows that lie densely are copied as bytes; else elements are picked one by one into a tile
// and stored in one go. Cut over the output; bound by the cache misses of the places that are read.
#include <cstring>

#include "index_check.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/layout.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/ops/index/gather_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t tile = 512;
constexpr std::int64_t grain = 16384;

/// out[i] = base[places[i]], for elements of any type of this width.
void pick(char* out, const char* base, const std::int64_t* places, std::int64_t n,
          std::size_t width) {
  const auto pick_as = [&]<class Element>(Element) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(out + i * static_cast<std::int64_t>(sizeof(Element)),
                  base + places[i] * static_cast<std::int64_t>(sizeof(Element)), sizeof(Element));
    }
  };
  switch (width) {
    case 1: return pick_as(std::uint8_t{});
    case 2: return pick_as(std::uint16_t{});
    case 4: return pick_as(std::uint32_t{});
    default: return pick_as(std::uint64_t{});
  }
}

/// index has the shape of o; its strides may be 0.
template <class T>
void gather_as(const View& x, const View& index, const Target& o, int axis) {
  Strides x_strides = x.strides;
  const std::int64_t step = x_strides[axis];
  x_strides[axis] = 0;
  const Layout<3> layout =
      Layout<3>{o.view.shape, {x_strides, index.strides, o.view.strides}}.merged();
  const auto put_run = o.add ? add_run<T> : store_run<T>;
  const bool direct = !o.add && x.dtype == o.view.dtype && layout[2].back() == 1;
  parallel_for(o.view.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t places[tile];
    alignas(8) char raw[tile * 8];
    T values[tile];
    for_each_run(layout, begin, end, tile,
                 [&](std::int64_t, std::int64_t n, const Offsets<3>& offset) {
                   load_run(places, at(index, offset[1]), index.dtype, layout[1].back(), n);
                   for (std::int64_t i = 0; i < n; ++i)
                     places[i] = places[i] * step + i * layout[0].back();
                   char* const target = at(o.view, offset[2]);
                   pick(direct ? target : raw, at(x, offset[0]), places, n, size_of(x.dtype));
                   if (direct) return;
                   load_run(values, raw, x.dtype, 1, n);
                   put_run(target, o.view.dtype, layout[2].back(), values, n);
                 });
  });
}

void gather_checked(const View& x, const View& index, const Target& o, int axis) {
  switch (compute_type(x.dtype)) {
    case DType::f64: return gather_as<double>(x, index, o, axis);
    case DType::f32: return gather_as<float>(x, index, o, axis);
    default: return gather_as<std::int64_t>(x, index, o, axis);
  }
}

void gather(View x, View index, Target o, int axis) {
  check_indices(index, x.size(axis), axis);
  gather_checked(x, index, o, axis);
}

/// Elements of a dense row behind the axis; 0 where the rows of x and o do not lie densely.
std::int64_t dense_row(const View& x, const View& o, int axis) {
  std::int64_t length = 1;
  for (int d = o.dim() - 1; d > axis; --d) {
    if (o.size(d) != 1 && (x.stride(d) != length || o.stride(d) != length)) return 0;
    length *= o.size(d);
  }
  return length;
}

void copy_rows(const View& x, const View& index, const View& o, int axis, std::int64_t row) {
  Layout<2> outer;
  for (int d = 0; d < axis; ++d) {
    outer.shape.push_back(o.size(d));
    outer[0].push_back(x.stride(d));
    outer[1].push_back(o.stride(d));
  }
  const std::int64_t picks = o.size(axis), rows = numel(outer.shape) * picks;
  const auto bytes = static_cast<std::size_t>(row) * size_of(x.dtype);
  parallel_for(rows, std::max<std::int64_t>(1, grain / row),
               [&](std::int64_t begin, std::int64_t end) {
                 Odometer<2> start(outer);
                 for (std::int64_t r = begin; r < end; ++r) {
                   if (r == begin || r % picks == 0) start.seek(r / picks);
                   const std::int64_t i = r % picks;
                   std::int64_t place = 0;
                   load_run(&place, at(index, i * index.stride(0)), index.dtype, 1, 1);
                   std::memcpy(at(o, start.offsets()[1] + i * o.stride(axis)),
                               at(x, start.offsets()[0] + place * x.stride(axis)), bytes);
                 }
               });
}

void index_select(View x, View index, View o, int axis) {
  check_indices(index, x.size(axis), axis);
  if (o.numel() == 0) return;
  const std::int64_t row = dense_row(x, o, axis);
  if (row > 1) return copy_rows(x, index, o, axis, row);
  gather_checked(x, along_axis(index, o.shape, axis), Target::write_to(o), axis);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_gather() {
  gather_kernel.provide(Variant::cpu, on_cpu::gather);
  index_select_kernel.provide(Variant::cpu, on_cpu::index_select);
}

}  // namespace quipu::detail
