#pragma once
// The way back from gradients of encoded rows to those of rows, as the lanes of a warp hold them
// after a product: 16 rows of a strip; and how a tile of gradients leaves.
#include "flao_mma.cuh"

namespace quipu::on_cuda::flao_mma {

inline constexpr int back_rows = 16;      // of a tile
inline constexpr int back_threads = 512;  // two groups of 8 warps, a strip each
inline constexpr int back_tile = back_rows * pitch, wide_tile = back_rows * wide_pitch;

/// Which of the two groups, and which of its warps.
struct Worker {
  int group = static_cast<int>(threadIdx.x / warp_size / strips);
  int strip = static_cast<int>(threadIdx.x / warp_size % strips);
};

/// Where a lane has the first of pair i of its 16 x 16 numbers.
struct Spot {
  __device__ __forceinline__ Spot(int i, int strip, int columns)
      : half(i / 2),
        at(i % 2 * 2),
        row(Lane().group + i % 2 * 8),
        column(strip_column(strip, half, columns) + 2 * Lane().member) {}
  __device__ __forceinline__ int word() const { return row * pitch + column / 2; }
  int half, at, row, column;
};

/// From gradients of the encoded rows to those of the activated ones. Of cosine only the first half
/// of the columns is left.
__device__ __forceinline__ void decode(float (&d)[2][4], const Encoding& x, int strip, int head,
                                       int token) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Spot spot(i / 2, strip, x.width);
    const int j = spot.at + i % 2;
    const math::SinCos<float> turn = math::sincos(x.angles.angle(
        static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(token + spot.row),
        static_cast<std::uint32_t>(spot.column + i % 2)));
    const float a = d[0][j], b = d[1][j];
    d[0][j] = a * turn.cos + b * turn.sin;
    d[1][j] = b * turn.cos - a * turn.sin;
  }
}

/// Pairs that hold gradients of x.
__device__ __forceinline__ int pairs_of(LrpeKind kind) {
  return kind == LrpeKind::cosine ? 2 : 4;
}

/// A warp's part of the means of its rows that softmax needs; `means` has a row of 16 a strip.
template <class E>
__device__ __forceinline__ void add_to_means(const float (&d)[2][4], const unsigned* tile,
                                             const RowSum* found, float* means, int strip,
                                             int columns, int pairs) {
  float mean[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= pairs) continue;
    const Spot spot(i, strip, columns);
    const float2 x = unpacked<E>(tile[spot.word()]);
    mean[i % 2] += activated(Act::softmax, x.x, found[spot.row]) * d[spot.half][spot.at];
    mean[i % 2] += activated(Act::softmax, x.y, found[spot.row]) * d[spot.half][spot.at + 1];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    mean[i] += __shfl_xor_sync(all_lanes, mean[i], 1);
    mean[i] += __shfl_xor_sync(all_lanes, mean[i], 2);
    if (Lane().member == 0) means[strip * back_rows + Lane().group + 8 * i] = mean[i];
  }
}

/// Leaves the gradients of x, which lies in `tile`, in `out`.
template <class E>
__device__ __forceinline__ void leave(const float (&d)[2][4], Act act, const unsigned* tile,
                                      const RowSum* found, const float* means, float* out,
                                      int strip, int columns, int pairs) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= pairs) continue;
    const Spot spot(i, strip, columns);
    float first = d[spot.half][spot.at], second = d[spot.half][spot.at + 1];
    if (act != Act::none) {
      RowSum sum{0.0f, 1.0f};
      float mean = 0.0f;
      if (act == Act::softmax) {
        sum = found[spot.row];
        for (int s = 0; s < columns / 16; ++s) mean += means[s * back_rows + spot.row];
      }
      const float2 x = unpacked<E>(tile[spot.word()]);
      first = activated_back(act, first, x.x, sum, mean);
      second = activated_back(act, second, x.y, sum, mean);
    }
    reinterpret_cast<float2*>(out)[(spot.row * wide_pitch + spot.column) / 2] =
        make_float2(first, second);
  }
}

/// The 8 neighbours in a tile of gradients that a thread of a group takes care of. What is there
/// already comes early.
template <class E>
class Outlet {
 public:
  /// For the tile whose first row is `first`.
  __device__ __forceinline__ void open(const GradRows& g, const Part& part, int first,
                                       int features) {
    const int row = thread() / (widest / 8), vector = thread() % (widest / 8);
    if (g.data == nullptr || first + row >= part.end || vector * 8 >= features) return;
    place_ = part.rows(g) + (first + row) * g.step[2] + vector * (g.wide ? 2 : 1);
    if (g.add && !g.wide) old_ = place_[0];
  }

  __device__ __forceinline__ void put(bool wide, bool add, const float* tile) const {
    if (place_ == nullptr) return;
    const int row = thread() / (widest / 8), vector = thread() % (widest / 8);
    const float4* const from = reinterpret_cast<const float4*>(tile);
    const float4 a = from[row * (wide_pitch / 4) + 2 * vector];
    const float4 b = from[row * (wide_pitch / 4) + 2 * vector + 1];
    if (wide) return put_wide(add, a, b);
    uint4 bits{packed<E>(a.x, a.y), packed<E>(a.z, a.w), packed<E>(b.x, b.y), packed<E>(b.z, b.w)};
    if (add) {
      const float2 p = unpacked<E>(old_.x), q = unpacked<E>(old_.y), r = unpacked<E>(old_.z),
                   s = unpacked<E>(old_.w);
      bits = {packed<E>(a.x + p.x, a.y + p.y), packed<E>(a.z + q.x, a.w + q.y),
              packed<E>(b.x + r.x, b.y + r.y), packed<E>(b.z + s.x, b.w + s.y)};
    }
    place_[0] = bits;
  }

 private:
  __device__ __forceinline__ void put_wide(bool add, float4 a, float4 b) const {
    float4* const to = reinterpret_cast<float4*>(place_);
    if (add) {
      const float4 p = to[0], q = to[1];
      a = make_float4(a.x + p.x, a.y + p.y, a.z + p.z, a.w + p.w);
      b = make_float4(b.x + q.x, b.y + q.y, b.z + q.z, b.w + q.w);
    }
    to[0] = a;
    to[1] = b;
  }

  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x) % (back_threads / 2);
  }

  uint4* place_ = nullptr;  // nowhere
  uint4 old_{};
};

/// Whether gradients can go there.
inline bool takes_grad(const Grad& g, DType dtype) {
  return !g.wanted() ||
         ((g.view.dtype == dtype || g.view.dtype == f32) && has_packed_rows(g.view, 3));
}

/// d_k and d_v of the wanted ones, from d_kv; inputs and gradients of type `dtype`.
void differentiate_keys_of(DType dtype, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoEncodings& encodings);

}  // namespace quipu::on_cuda::flao_mma
