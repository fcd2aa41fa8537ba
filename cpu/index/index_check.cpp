#include "index_check.h"

#include <atomic>

#include "quipu/core/error.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/layout.h"
#include "quipu/cpu/simd/convert.h"

namespace quipu::detail::on_cpu {
namespace {

constexpr std::int64_t tile = 512;
constexpr std::int64_t grain = 32768;

[[noreturn]] void fail_at(const Layout<1>& all, std::int64_t position, const View& index,
                          std::int64_t size, int axis) {
  Odometer<1> place(all);
  place.seek(position);
  std::int64_t value = 0;
  load_run(&value, at(index, place.offsets()[0]), index.dtype, 1, 1);
  fail("index at ", place.index(), " is ", value, ", but x has size ", size, " in dimension ",
       axis);
}

}  // namespace

void check_indices(const View& index, std::int64_t size, int axis) {
  const Layout<1> all{index.shape, {index.strides}};
  const Layout<1> merged = all.merged();
  const std::int64_t count = index.numel();
  std::atomic<std::int64_t> first_bad{count};
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t values[tile];
    std::int64_t bad = count;
    for_each_run(merged, begin, end, tile,
                 [&](std::int64_t position, std::int64_t n, const Offsets<1>& offset) {
                   load_run(values, at(index, offset[0]), index.dtype, merged[0].back(), n);
                   bool any = false;
                   for (std::int64_t i = 0; i < n; ++i) any |= values[i] < 0 || values[i] >= size;
                   if (!any || bad < count) return;
                   for (bad = position;
                        values[bad - position] >= 0 && values[bad - position] < size;)
                     ++bad;
                 });
    for (std::int64_t known = first_bad;
         bad < known && !first_bad.compare_exchange_weak(known, bad);) {
    }
  });
  if (first_bad < count) fail_at(all, first_bad, index, size, axis);
}

View along_axis(const View& index, const Shape& shape, int axis) {
  View wide = index;
  wide.shape = shape;
  wide.strides = Dims::filled(shape.size(), 0);
  wide.strides[axis] = index.stride(0);
  return wide;
}

}  // namespace quipu::detail::on_cpu
