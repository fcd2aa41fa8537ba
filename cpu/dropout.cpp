// Dropout. One pass in tiles that stay in the first cache: 24 random bits an element, by row-major
// position, are compared with the probability as whole numbers. Reads x and writes o once; bound by
// the ten rounds of Philox.
#include <cmath>

#include "layout.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/philox_words.h"
#include "quipu/ops/dropout_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t tile = 512;
constexpr std::int64_t grain = 16384;

template <class T>
void drop_run(T* values, const std::uint32_t* words, std::int64_t n, std::uint32_t threshold,
              T scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T kept = values[i] * scale;
    values[i] = (words[i] >> 8) >= threshold ? kept : T(0);
  }
}

template <class T>
void drop(const View& x, const Target& o, double p, PhiloxState state) {
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  const T scale = p < 1 ? static_cast<T>(1 / (1 - p)) : T(0);
  const Layout<2> layout = Layout<2>{x.shape, {x.strides, o.view.strides}}.merged();
  const auto put_run = o.add ? add_run<T> : store_run<T>;
  parallel_for(x.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    T values[tile];
    std::uint32_t words[tile];
    for_each_run(layout, begin, end, tile,
                 [&](std::int64_t position, std::int64_t n, const Offsets<2>& offset) {
                   philox_words(words, state, static_cast<std::uint64_t>(position), n);
                   load_run(values, at(x, offset[0]), x.dtype, layout[0].back(), n);
                   drop_run(values, words, n, threshold, scale);
                   put_run(at(o.view, offset[1]), o.view.dtype, layout[1].back(), values, n);
                 });
  });
}

void dropout(View x, Target o, double p, PhiloxState state) {
  (x.dtype == f64 || o.view.dtype == f64 ? drop<double> : drop<float>)(x, o, p, state);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_dropout() {
  dropout_kernel.provide(Variant::cpu, on_cpu::dropout);
}

}  // namespace quipu::detail
