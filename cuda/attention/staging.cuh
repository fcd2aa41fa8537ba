#pragma once
// How backward of attention by tensor cores stores its results: accumulators go through shared
// memory, so that they are stored in whole vectors.
#include "mma.cuh"

namespace quipu::detail::on_cuda::attention_mma {

/// A gradient to store; without data it is not wanted.
struct Result {
  explicit Result(const Grad& g)
      : view(g.wanted() && g.view.numel() > 0 ? AttentionView(g.view) : AttentionView()),
        add(g.add) {}
  __device__ __forceinline__ bool wanted() const { return view.data != nullptr; }
  /// Whole vectors alone are stored, of the inputs' type or f32.
  static bool suits(const Grad& g, DType dtype) {
    return has_packed_rows(g.view, 3) && (g.view.dtype == dtype || g.view.dtype == f32);
  }

  AttentionView view;
  bool add;
};

/// Rows of f32 in shared memory, without padding: a swizzle of 16-byte chunks avoids bank
/// conflicts.
template <class E, int width>
struct Staging {
  /// A lane's part of an accumulator, its two rows times a factor each.
  __device__ __forceinline__ void put(const float (&x)[4], int row, int column, float first,
                                      float second) const {
    const Thread self;
    auto* const to =
        reinterpret_cast<float2*>(data) + at(row + self.group, column + 2 * self.member) / 2;
    to[0] = make_float2(x[0] * first, x[1] * first);
    to[8 * width / 2] = make_float2(x[2] * second, x[3] * second);
  }
  /// Stores (=|+=) `count` rows, which begin at `from`, by all threads of the block.
  template <bool of_queries>
  __device__ __forceinline__ void store(const Attention<float>& a, const HeadOffsets& offsets,
                                        int from, int count, const Result& to, int features) const {
    constexpr int chunks = width / 8;
    const AttentionView& out = to.view;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count * chunks; i += threads) {
      const int row = i / chunks, column = i % chunks * 8;
      if (column >= features) continue;
      const std::int64_t start = offsets.start<of_queries>(a, out, from + row) + column;
      const auto* const x = reinterpret_cast<const float4*>(data + at(row, column));
      const float4 low = x[0], high = x[1];
      if (out.dtype == f32) {
        Packed<float, float>::put(out.data, f32, start, {low.x, low.y, low.z, low.w}, to.add);
        Packed<float, float>::put(out.data, f32, start + 4, {high.x, high.y, high.z, high.w},
                                  to.add);
      } else {
        Packed<float, E>::put(out.data, element_dtype<E>, start,
                              {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, to.add);
      }
    }
  }

  float* data;

 private:
  __device__ __forceinline__ static int at(int row, int column) {
    return row * width + (column ^ ((row & 3) * 8));
  }
};

}  // namespace quipu::detail::on_cuda::attention_mma
