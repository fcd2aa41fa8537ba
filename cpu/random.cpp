// Random numbers. Every element draws its own words of the Philox stream: 32 bits (f32, bf16, f16)
// or 64 (f64, whole numbers) at its row-major position, so that the cut between threads cannot be
// seen in the result. Uniforms are bound by the ten rounds of Philox, normals by log, sin and cos,
// which are computed in f64 and rounded once.
#include <cmath>
#include <numbers>

#include "layout.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/philox_words.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t tile = 512;     // elements at a time
constexpr std::int64_t grain = 16384;  // elements a chunk

/// draw(values, position, n) gives the values of n neighbouring positions; stores them all in `o`.
template <class T, class Draw>
void fill_random(const View& o, Draw draw) {
  const Layout<1> layout = Layout<1>{o.shape, {o.strides}}.merged();
  parallel_for(o.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    T values[tile];
    for_each_run(layout, begin, end, tile,
                 [&](std::int64_t position, std::int64_t n, const Offsets<1>& offset) {
                   draw(values, static_cast<std::uint64_t>(position), n);
                   store_run(at(o, offset[0]), o.dtype, layout[0].back(), values, n);
                 });
  });
}

std::uint64_t word_pair(const std::uint32_t* words) {
  return (std::uint64_t{words[0]} << 32) | words[1];
}

void random_uniform(View o, PhiloxState state) {
  if (o.dtype == f64) {
    return fill_random<double>(o, [&](double* values, std::uint64_t position, std::int64_t n) {
      std::uint32_t words[2 * tile];
      philox_words(words, state, 2 * position, 2 * n);
      for (std::int64_t i = 0; i < n; ++i)
        values[i] = static_cast<double>(word_pair(words + 2 * i) >> 11) * 0x1p-53;
    });
  }
  // As many bits as the type can hold, so that nothing is rounded up to 1.
  const int bits = o.dtype == f32 ? 24 : o.dtype == f16 ? 11 : 8;
  const float unit = std::ldexp(1.0f, -bits);
  fill_random<float>(o, [&](float* values, std::uint64_t position, std::int64_t n) {
    std::uint32_t words[tile];
    philox_words(words, state, position, n);
    for (std::int64_t i = 0; i < n; ++i)
      values[i] = static_cast<float>(words[i] >> (32 - bits)) * unit;
  });
}

/// Box-Muller: uniforms in (0, 1] and [0, 1) become pairs of normals.
void to_normals(const double* first, const double* second, double* normals, std::int64_t pairs) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double radius = std::sqrt(-2 * math::log(first[i]));
    const auto angle = math::sincos(2 * std::numbers::pi * second[i]);
    normals[2 * i] = radius * angle.cos;
    normals[2 * i + 1] = radius * angle.sin;
  }
}

void random_normal(View o, PhiloxState state) {
  const bool wide = o.dtype == f64;
  fill_random<double>(o, [&](double* values, std::uint64_t position, std::int64_t n) {
    const auto skip =
        static_cast<std::int64_t>(position % 2);  // a run may start with the second of a pair
    const std::int64_t pairs = (skip + n + 1) / 2;
    std::uint32_t words[2 * tile + 4];
    double first[tile / 2 + 1], second[tile / 2 + 1], normals[tile + 2];
    philox_words(words, state, (position - position % 2) * (wide ? 2 : 1), pairs * (wide ? 4 : 2));
    for (std::int64_t i = 0; i < pairs; ++i) {
      if (wide) {
        first[i] = static_cast<double>((word_pair(words + 4 * i) >> 11) + 1) * 0x1p-53;
        second[i] = static_cast<double>(word_pair(words + 4 * i + 2) >> 11) * 0x1p-53;
      } else {
        first[i] = (words[2 * i] + 1.0) * 0x1p-32;
        second[i] = words[2 * i + 1] * 0x1p-32;
      }
    }
    to_normals(first, second, normals, pairs);
    std::copy_n(normals + skip, n, values);
  });
}

/// The upper half of a 128-bit product.
std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

void random_int(View o, PhiloxState state, std::int64_t low, std::int64_t high) {
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  fill_random<std::int64_t>(o, [&](std::int64_t* values, std::uint64_t position, std::int64_t n) {
    std::uint32_t words[2 * tile];
    philox_words(words, state, 2 * position, 2 * n);
    for (std::int64_t i = 0; i < n; ++i) {
      // 64 bits scaled to the range: no value is favoured by more than range / 2^64.
      const std::uint64_t step = multiply_high(word_pair(words + 2 * i), range);
      values[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + step);
    }
  });
}

}  // namespace
}  // namespace on_cpu

void register_cpu_random() {
  random_uniform_kernel.provide(Variant::cpu, on_cpu::random_uniform);
  random_normal_kernel.provide(Variant::cpu, on_cpu::random_normal);
  random_int_kernel.provide(Variant::cpu, on_cpu::random_int);
}

}  // namespace quipu::detail
