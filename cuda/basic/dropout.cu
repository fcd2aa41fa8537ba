// Dropout. A thread draws the four words of one counter of Philox (Salmon et al., SC 2011), for
// four neighbouring row-major positions: 24 bits of each are compared with the probability as whole
// numbers, as on the CPU. Dense tensors of one type move 16 bytes a thread, which takes one counter
// (f32), two (bf16, f16) or half of one (f64). Reads x and writes o once; bound by memory, close to
// the ten rounds of Philox.
//
// sass drop_vectors: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 48; shared 0
// sass drop_elements: forbid LD.E ST.E; registers 48; shared 0
#include <cmath>

#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/philox.cuh"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/dropout_kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_x, from_o };

template <class T>
struct Drop {
  PhiloxState state;
  std::uint32_t threshold;
  T scale;

  Drop(double p, PhiloxState from)
      : state(from),
        threshold(static_cast<std::uint32_t>(std::ceil(p * 0x1p24))),
        scale(p < 1 ? static_cast<T>(1 / (1 - p)) : T(0)) {}

  __device__ __forceinline__ PhiloxBlock words(std::int64_t position) const {
    return philox_words(state, static_cast<std::uint64_t>(position) / 4);
  }
  __device__ __forceinline__ T apply(T x, std::uint32_t word) const {
    return (word >> 8) >= threshold ? x * scale : T(0);
  }
};

__device__ __forceinline__ std::uint32_t word_of(const PhiloxBlock& b, unsigned i) {
  return i < 2 ? (i == 0 ? b.w0 : b.w1) : (i == 2 ? b.w2 : b.w3);
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    drop_elements(Walk<2> walk, std::uint32_t n, std::int64_t first, const void* x, DType x_type,
                  void* o, DType o_type, bool add, Drop<T> drop) {
  const std::int64_t counter = first / 4 + std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const std::int64_t begin = counter * 4 - first;  // in this part; below 0 where it starts inside
  if (begin >= n) return;
  const PhiloxBlock words = drop.words(counter * 4);
  for (unsigned j = 0; j < 4; ++j) {
    const std::int64_t position = begin + j;
    if (position < 0 || position >= n) continue;
    std::int64_t at[2];
    walk.find(static_cast<std::uint32_t>(position), at);
    const T value = load_element<T>(x, x_type, at[from_x]);
    put_element(o, o_type, at[from_o], drop.apply(value, word_of(words, j)), add);
  }
}

template <class T, class E>
__global__ void __launch_bounds__(block_threads, 1)
    drop_vectors(std::int64_t n, const void* x, void* o, bool add, Drop<T> drop) {
  using Chunk = Packed<T, E>;
  constexpr int count = Chunk::count;
  const std::int64_t begin = (std::int64_t{blockIdx.x} * block_threads + threadIdx.x) * count;
  if (begin >= n) return;
  T values[count];
  Chunk::load(x, element_dtype<E>, begin, values);
  for (int j = 0; j < count; j += 4) {
    const PhiloxBlock words = drop.words(begin + j);
    for (int i = j; i < count && i < j + 4; ++i) {
      values[i] = drop.apply(values[i], word_of(words, static_cast<unsigned>(begin + i) % 4));
    }
  }
  Chunk::put(o, element_dtype<E>, begin, values, add);
}

template <class T>
void drop_as(const View& x, const Target& o, double p, PhiloxState state) {
  const Queue queue(x);
  const Drop<T> drop(p, state);
  const Layout<2> layout = Layout<2>{x.shape, {x.strides, o.view.strides}}.merged(false);
  layout.for_each_part([&](const Layout<2>& part) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    run(queue, drop_elements<T>, blocks_for(n / 4 + 2), block_threads, 0, Walk<2>(part), n,
        part.first, address(x, part.starts[from_x]), x.dtype, address(o.view, part.starts[from_o]),
        o.view.dtype, o.add, drop);
  });
}

bool is_packed(const View& v) {
  const auto width = static_cast<std::int64_t>(16 / size_of(v.dtype));
  return v.is_contiguous() && v.numel() % width == 0 &&
         reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
}

void dropout(View x, Target o, double p, PhiloxState state) {
  const std::int64_t n = x.numel();
  if (n == 0) return;
  if (x.dtype == o.view.dtype && is_packed(x) && is_packed(o.view)) {
    return with_packed(x.dtype, [&]<class T, class E>(Packed<T, E>) {
      const Drop<T> drop(p, state);
      run(Queue(x), drop_vectors<T, E>, blocks_for(n / Packed<T, E>::count), block_threads, 0, n,
          x.data, o.view.data, o.add, drop);
    });
  }
  (x.dtype == f64 || o.view.dtype == f64 ? drop_as<double> : drop_as<float>)(x, o, p, state);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_dropout() {
  dropout_kernel.provide(Variant::cuda, on_cuda::dropout);
}

}  // namespace quipu::detail
