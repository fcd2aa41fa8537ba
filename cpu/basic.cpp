// fill, copy, add into, find what is not finite, ramp. All are bounded by memory: each element is
// read or written once, in the order in which it lies, in chunks of fixed size. Copies that keep
// the type move bits and convert nothing.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "loop_order.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/pointwise/frame.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// Calls f with an unsigned number as wide as an element of `dtype`.
template <class F>
void with_bits_of(DType dtype, F f) {
  switch (size_of(dtype)) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

template <class Bits>
void fill_run(Bits* out, std::int64_t stride, Bits value, std::int64_t n) {
  if (stride == 1) {
    std::fill_n(out, n, value);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * stride] = value;
  }
}

void fill(View o, Scalar value) {
  const std::int64_t n = o.numel();
  alignas(8) unsigned char element[8];
  if (value.is_real()) {
    const double real = value.real();
    store_run(element, o.dtype, 1, &real, 1);
  } else {
    const std::int64_t whole = value.whole();
    store_run(element, o.dtype, 1, &whole, 1);
  }
  const Layout<1> layout = in_memory_order(Layout<1>{o.shape, {o.strides}});
  with_bits_of(o.dtype, [&]<class Bits>(Bits bits) {
    std::memcpy(&bits, element, sizeof(Bits));
    parallel_for(n, chunk_size, [&](std::int64_t begin, std::int64_t end) {
      for_each_run(layout, begin, end, end - begin,
                   [&](std::int64_t, std::int64_t length, const Offsets<1>& at) {
                     fill_run(o.as<Bits>() + at[0], layout[0].back(), bits, length);
                   });
    });
  });
}

template <class Bits>
void copy_run(Bits* out, std::int64_t out_stride, const Bits* in, std::int64_t in_stride,
              std::int64_t n) {
  if (out_stride == 1 && in_stride == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(Bits));
  } else if (out_stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = in[i * in_stride];
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * out_stride] = in[i * in_stride];
  }
}

/// Where x lies across o, it goes through tiles, so that both are touched in long stretches.
template <class Bits>
void copy_part(Bits* o, const Bits* x, const Layout<2>& layout) {
  const bool across = crossing_dim(layout) >= 0;
  const Layout<1> in_layout = Layout<1>{layout.shape, {layout[1]}};
  const Layout<1> out_layout = Layout<1>{layout.shape, {layout[0]}};
  const auto load = [&](Bits* to, std::int64_t offset, std::int64_t stride, std::int64_t n) {
    copy_run(to, 1, x + offset, stride, n);
  };
  parallel_for(numel(layout.shape), chunk_size, [&](std::int64_t begin, std::int64_t end) {
    if (!across) {
      for_each_run(layout, begin, end, end - begin,
                   [&](std::int64_t, std::int64_t length, const Offsets<2>& at) {
                     copy_run(o + at[0], layout[0].back(), x + at[1], layout[1].back(), length);
                   });
      return;
    }
    Bits tile[tile_size<Bits>];
    for (std::int64_t i = begin; i < end; i += tile_size<Bits>) {
      const std::int64_t n = std::min(tile_size<Bits>, end - i);
      gather_tile(in_layout, tile, i, n, load);
      for_each_run(out_layout, i, i + n, n,
                   [&](std::int64_t position, std::int64_t length, const Offsets<1>& at) {
                     copy_run(o + at[0], out_layout[0].back(), tile + (position - i), 1, length);
                   });
    }
  });
}

void copy_bits(const View& o, const View& x) {
  const Layout<2> layout = in_memory_order(Layout<2>{o.shape, {o.strides, x.strides}});
  with_bits_of(o.dtype, [&]<class Bits>(Bits) {
    for_each_part(layout, [&](const Layout<2>& part, const Offsets<2>& starts) {
      copy_part(o.as<Bits>() + starts[0], x.as<const Bits>() + starts[1], part);
    });
  });
}

void copy(View o, View x) {
  if (o.numel() == 0) return;
  if (o.dtype == x.dtype) {
    copy_bits(o, x);
  } else {
    pointwise_kernel(Target::write_to(o), Pointwise::copy, {x});
  }
}

void add_into(Grad g, View x) {
  if (g.view.shape == x.shape) {
    pointwise_kernel(g, Pointwise::copy, {x});
  } else {
    pointwise_sum_kernel(g, Pointwise::copy, {x}, x.shape, 1.0);
  }
}

template <class T>
bool all_finite(const T* x, std::int64_t n) {
  int found = 0;
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i)
    found |= std::abs(x[i]) <= std::numeric_limits<T>::max() ? 0 : 1;
  return found == 0;
}

template <class T>
std::int64_t first_nonfinite(const View& x) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  const Source<T> source(Path(x, x.shape, x.strides, 0));
  std::atomic<std::int64_t> first{none};
  parallel_for(x.numel(), chunk_size, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(source);
    for (std::int64_t i = begin; i < end && i < first; i += tile_size<T>) {
      const std::int64_t n = std::min(tile_size<T>, end - i);
      const T* values = reader.read(i, n);
      if (all_finite(values, n)) continue;
      const std::int64_t found =
          std::find_if(values, values + n, [](T v) { return !std::isfinite(v); }) - values + i;
      std::int64_t known = first;
      while (found < known && !first.compare_exchange_weak(known, found)) {
      }
      return;
    }
  });
  return first == none ? -1 : first.load();
}

void find_nonfinite(View x, View first_bad) {
  std::int64_t& found = *first_bad.as<std::int64_t>();
  found = -1;
  if (x.numel() == 0 || !is_floating(x.dtype)) return;
  found = x.dtype == DType::f64 ? first_nonfinite<double>(x) : first_nonfinite<float>(x);
}

void ramp(View o, double start, double step) {
  if (o.numel() == 0) return;
  const Path path(o, o.shape, o.strides, 0);
  parallel_for(o.numel(), chunk_size, [&](std::int64_t begin, std::int64_t end) {
    double tile[tile_size<double>];
    for (std::int64_t i = begin; i < end; i += tile_size<double>) {
      const std::int64_t n = std::min(tile_size<double>, end - i);
      for (std::int64_t j = 0; j < n; ++j) tile[j] = start + step * static_cast<double>(i + j);
      path.write(tile, i, n, false);
    }
  });
}

}  // namespace
}  // namespace on_cpu

void register_cpu_basic() {
  fill_kernel.provide(Variant::cpu, on_cpu::fill);
  copy_kernel.provide(Variant::cpu, on_cpu::copy);
  add_into_kernel.provide(Variant::cpu, on_cpu::add_into);
  find_nonfinite_kernel.provide(Variant::cpu, on_cpu::find_nonfinite);
  ramp_kernel.provide(Variant::cpu, on_cpu::ramp);
}

}  // namespace quipu::detail
