// Random numbers. A thread turns one counter of Philox (Salmon et al., SC 2011) into four values
// (f32, bf16, f16) or two (f64, whole numbers) at neighbouring row-major positions: the same words
// at the same positions as on the CPU. They are stored together where the output is dense. Uniforms
// are bound by memory, normals by log, sin and cos, which are computed in f64 and rounded once.
//
// sass random_groups: need STG.E.128; forbid LD.E ST.E; registers 40; shared 0
// sass random_elements: forbid LD.E ST.E; registers 40; shared 0
#include <cmath>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/cuda/tile/groups.cuh"
#include "quipu/cuda/tile/philox.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

__device__ __forceinline__ std::uint64_t word_pair(std::uint32_t high, std::uint32_t low) {
  return (std::uint64_t{high} << 32) | low;
}

/// As many bits as the type can hold, so that nothing is rounded up to 1.
struct Uniform {
  static constexpr int per_counter = 4;
  __device__ __forceinline__ void operator()(const PhiloxBlock& w, float (&values)[4]) const {
    const std::uint32_t words[4] = {w.w0, w.w1, w.w2, w.w3};
    for (int j = 0; j < 4; ++j) values[j] = static_cast<float>(words[j] >> (32 - bits)) * unit;
  }
  int bits;
  float unit;
};

struct WideUniform {
  static constexpr int per_counter = 2;
  __device__ __forceinline__ void operator()(const PhiloxBlock& w, double (&values)[2]) const {
    values[0] = static_cast<double>(word_pair(w.w0, w.w1) >> 11) * 0x1p-53;
    values[1] = static_cast<double>(word_pair(w.w2, w.w3) >> 11) * 0x1p-53;
  }
};

/// Box-Muller: uniforms in (0, 1] and [0, 1) become a pair of normals.
__device__ __forceinline__ void to_normals(double first, double second, double* pair) {
  const double radius = std::sqrt(-2 * std::log(first));
  double sine, cosine;
  sincospi(2 * second, &sine, &cosine);
  pair[0] = radius * cosine;
  pair[1] = radius * sine;
}

struct Normal {
  static constexpr int per_counter = 4;
  __device__ __forceinline__ void operator()(const PhiloxBlock& w, double (&values)[4]) const {
    to_normals((w.w0 + 1.0) * 0x1p-32, w.w1 * 0x1p-32, values);
    to_normals((w.w2 + 1.0) * 0x1p-32, w.w3 * 0x1p-32, values + 2);
  }
};

struct WideNormal {
  static constexpr int per_counter = 2;
  __device__ __forceinline__ void operator()(const PhiloxBlock& w, double (&values)[2]) const {
    to_normals(static_cast<double>((word_pair(w.w0, w.w1) >> 11) + 1) * 0x1p-53,
               static_cast<double>(word_pair(w.w2, w.w3) >> 11) * 0x1p-53, values);
  }
};

/// 64 bits scaled to the range: no value is favoured by more than range / 2^64.
struct Whole {
  static constexpr int per_counter = 2;
  __device__ __forceinline__ std::int64_t scaled(std::uint64_t bits) const {
    return static_cast<std::int64_t>(low + __umul64hi(bits, range));
  }
  __device__ __forceinline__ void operator()(const PhiloxBlock& w,
                                             std::int64_t (&values)[2]) const {
    values[0] = scaled(word_pair(w.w0, w.w1));
    values[1] = scaled(word_pair(w.w2, w.w3));
  }
  std::uint64_t low, range;
};

template <class T, class Draw>
__global__ void __launch_bounds__(block_threads, 1)
    random_elements(Walk<1> walk, std::uint32_t n, std::int64_t first, void* out, DType dtype,
                    PhiloxState state, Draw draw) {
  constexpr int count = Draw::per_counter;
  const std::int64_t counter =
      first / count + static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  const std::int64_t begin =
      counter * count - first;  // in this part; below 0 where it starts inside
  if (begin >= n) return;
  T values[count];
  draw(philox_words(state, static_cast<std::uint64_t>(counter)), values);
  for (int j = 0; j < count; ++j) {
    if (begin + j < 0 || begin + j >= n) continue;
    std::int64_t at[1];
    walk.find(static_cast<std::uint32_t>(begin + j), at);
    store_element(out, dtype, at[0], values[j]);
  }
}

/// The same for a dense output that begins with a counter.
template <class T, class Draw>
__global__ void __launch_bounds__(block_threads, 1)
    random_groups(std::uint32_t n, void* out, DType dtype, PhiloxState state, Draw draw) {
  constexpr int count = Draw::per_counter;
  const std::int64_t counter = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
  if (counter * count >= n) return;
  T values[count];
  draw(philox_words(state, static_cast<std::uint64_t>(counter)), values);
  store_group(out, dtype, counter, n, values);
}

template <class T, class Draw>
void fill_random(const View& o, PhiloxState state, Draw draw) {
  if (o.numel() == 0) return;
  constexpr int count = Draw::per_counter;
  const Queue queue(o);
  const Layout<1> layout = Layout<1>{o.shape, {o.strides}}.merged(false);
  layout.for_each_part([&](const Layout<1>& part) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    char* const out = address(o, part.starts[0]);
    const bool dense = part.shape.size() == 1 && part.strides[0][0] == 1 &&
                       part.first % count == 0 && is_group_aligned(out, o.dtype, count);
    if (dense) {
      PhiloxState from = state;
      from.offset += static_cast<std::uint64_t>(part.first / count);
      run(queue, random_groups<T, Draw>, blocks_for(n, block_threads * count), block_threads, 0, n,
          out, o.dtype, from, draw);
      return;
    }
    run(queue, random_elements<T, Draw>, blocks_for(n / count + 2), block_threads, 0, Walk<1>(part),
        n, part.first, out, o.dtype, state, draw);
  });
}

void random_uniform(View o, PhiloxState state) {
  if (o.dtype == DType::f64) return fill_random<double>(o, state, WideUniform{});
  const int bits = o.dtype == DType::f32 ? 24 : o.dtype == DType::f16 ? 11 : 8;
  fill_random<float>(o, state, Uniform{bits, std::ldexp(1.0f, -bits)});
}

void random_normal(View o, PhiloxState state) {
  if (o.dtype == DType::f64) return fill_random<double>(o, state, WideNormal{});
  fill_random<double>(o, state, Normal{});
}

void random_int(View o, PhiloxState state, std::int64_t low, std::int64_t high) {
  const auto from = static_cast<std::uint64_t>(low);
  fill_random<std::int64_t>(o, state, Whole{from, static_cast<std::uint64_t>(high) - from});
}

}  // namespace
}  // namespace on_cuda

void register_cuda_random() {
  random_uniform_kernel.provide(Variant::cuda, on_cuda::random_uniform);
  random_normal_kernel.provide(Variant::cuda, on_cuda::random_normal);
  random_int_kernel.provide(Variant::cuda, on_cuda::random_int);
}

}  // namespace quipu::detail
