#pragma once
// The way back from gradients of encoded rows to those of rows, as the lanes of a warp hold them
// after a product: 16 rows of a strip; and how a tile of gradients leaves.
#include "flao_mma.cuh"

namespace quipu::on_cuda::flao_mma {

inline constexpr int back_rows = 16;      // of a tile
inline constexpr int back_threads = 512;  // two groups of 8 warps, a strip each
inline constexpr int back_tile = back_rows * pitch;

/// Which of the two groups, and which of its warps.
struct Worker {
  int group = static_cast<int>(threadIdx.x / warp_size / strips);
  int strip = static_cast<int>(threadIdx.x / warp_size % strips);
};

/// The strip that a worker multiplies by: the first group's is one of the matrix (width, e), which
/// has `columns` of them in all, the second one's is of the transposed.
template <bool low_in_tile>
class WorkerStrip {
 public:
  __device__ __forceinline__ WorkerStrip(int width, int e)
      : columns(Worker().group == 0 ? e : width), depth_(Worker().group == 0 ? width : e), e_(e) {}

  __device__ __forceinline__ bool is_there() const { return Worker().strip * 16 < columns; }

  __device__ __forceinline__ void load(const float* matrix) {
    const Worker worker;
    if (worker.group == 0) {
      strip_.template load<false>(matrix, e_, depth_, worker.strip, columns);
    } else {
      strip_.template load<true>(matrix, e_, depth_, worker.strip, columns);
    }
  }

  /// sum += 16 rows times the strip; `low` is what fill_low made, where it is needed.
  __device__ __forceinline__ void multiply_by(float (&sum)[2][4], const Pieces& rows,
                                              const unsigned* low) const {
    const Worker worker;
    if (worker.group == 0) {
      multiply<false>(sum, rows, strip_, low_of_strip<false>(low, worker.strip, columns), depth_);
    } else {
      multiply<true>(sum, rows, strip_, low_of_strip<true>(low, worker.strip, columns), depth_);
    }
  }

  int columns;

 private:
  int depth_, e_;
  Strip<low_in_tile> strip_;
};

/// A tile of gradients in f32: those of even columns, those of odd ones.
struct GradTile {
  unsigned* even;
  unsigned* odd;
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
__device__ __forceinline__ void decode(float (&d)[2][4], const float4* turns, int strip) {
  const Lane lane;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const float4 turn = turns[(lane.group + 8 * below) * turn_pitch + strip * 4 + lane.member];
    const int i = 2 * below;
    const float a = d[0][i], b = d[1][i], c = d[0][i + 1], e = d[1][i + 1];
    d[0][i] = a * turn.x + b * turn.y;
    d[1][i] = b * turn.x - a * turn.y;
    d[0][i + 1] = c * turn.z + e * turn.w;
    d[1][i + 1] = e * turn.z - c * turn.w;
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

/// Leaves the gradients of x, which lies in `tile`, in `out`, of which `tile` may be a part.
template <class E>
__device__ __forceinline__ void leave(const float (&d)[2][4], Act act, const unsigned* tile,
                                      const RowSum* found, const float* means, const GradTile& out,
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
    out.even[spot.word()] = __float_as_uint(first);
    out.odd[spot.word()] = __float_as_uint(second);
  }
}

/// Where a thread of a group leaves its 8 neighbours of each tile of gradients, one after the
/// other.
template <class E>
class Outlet {
 public:
  __device__ __forceinline__ Outlet(const GradRows& g, const Part& part, int features) {
    if (g.data == nullptr || vector() * 8 >= features) return;
    place_ = part.start(g) + row() * g.step[2] + vector() * (g.wide ? 2 : 1);
    active_ = true;
  }

  /// What is there already, to be read early. The tile has so many rows.
  __device__ __forceinline__ uint4 read(const GradRows& g, int rows) const {
    const bool reads = g.add && !g.wide && active_ && row() < rows;
    return reads ? g.data[place_] : make_uint4(0u, 0u, 0u, 0u);
  }

  __device__ __forceinline__ void put(const GradRows& g, int rows, const GradTile& tile,
                                      const uint4& old) {
    if (!active_ || row() >= rows) return;
    const uint4 even = reinterpret_cast<const uint4*>(tile.even)[row() * (pitch / 4) + vector()];
    const uint4 odd = reinterpret_cast<const uint4*>(tile.odd)[row() * (pitch / 4) + vector()];
    if (g.wide) {
      put_wide(g, even, odd);
    } else {
      const auto sum = [&](unsigned first, unsigned second, unsigned there) {
        const float2 before = unpacked<E>(there);
        const float a = __uint_as_float(first), b = __uint_as_float(second);
        return g.add ? packed<E>(before.x + a, before.y + b) : packed<E>(a, b);
      };
      g.data[place_] = make_uint4(sum(even.x, odd.x, old.x), sum(even.y, odd.y, old.y),
                                  sum(even.z, odd.z, old.z), sum(even.w, odd.w, old.w));
    }
    place_ += back_rows * g.step[2];
  }

 private:
  __device__ __forceinline__ void put_wide(const GradRows& g, const uint4& even,
                                           const uint4& odd) const {
    float4* const to = reinterpret_cast<float4*>(g.data);
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 p = g.add ? to[place_] : zero, q = g.add ? to[place_ + 1] : zero;
    const auto value = [](unsigned bits) { return __uint_as_float(bits); };
    to[place_] = make_float4(p.x + value(even.x), p.y + value(odd.x), p.z + value(even.y),
                             p.w + value(odd.y));
    to[place_ + 1] = make_float4(q.x + value(even.z), q.y + value(odd.z), q.z + value(even.w),
                                 q.w + value(odd.w));
  }
  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) % (back_threads / 2) / (widest / 8);
  }
  __device__ __forceinline__ static int vector() {
    return static_cast<int>(threadIdx.x) % (widest / 8);
  }

  int place_ = 0;  // in vectors
  bool active_ = false;
};

/// Whether gradients can go there.
inline bool takes_grad(const Grad& g, DType dtype) {
  return !g.wanted() || ((g.view.dtype == dtype || g.view.dtype == f32) && takes_layout(g.view));
}

/// d_k and d_v of the wanted ones, from d_kv; inputs and gradients of type `dtype`.
void differentiate_keys_of(DType dtype, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoEncodings& encodings);

}  // namespace quipu::on_cuda::flao_mma
