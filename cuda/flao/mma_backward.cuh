#pragma once
// Epilogue of the backward kernels: from the gradient of encoded rows, which the lanes of a warp
// hold as the 16 x 16 accumulators of a product, to the gradient of the input, and its store
// through shared memory.
#include "mma.cuh"

namespace quipu::detail::on_cuda::flao_mma {

inline constexpr int tile_rows = 16;          // of a tile
inline constexpr int backward_threads = 512;  // two groups of 8 warps, a strip each
using RowTile = Tile<tile_rows>;
using Operand = SplitTile<tile_rows>;

/// A warp's role: which of the two groups it belongs to, and which strip of columns it has.
struct WarpRole {
  int group = static_cast<int>(threadIdx.x / warp_size / strips);
  int strip = static_cast<int>(threadIdx.x / warp_size % strips);
};

/// The strip that a warp multiplies by. It belongs to the matrix (width, e) in the first group and
/// to its transpose in the second; `columns` counts the columns of all strips.
template <bool residual_in_tile>
class WarpStrip {
 public:
  __device__ __forceinline__ WarpStrip(int width, int e)
      : columns(WarpRole().group == 0 ? e : width),
        depth_(WarpRole().group == 0 ? width : e),
        e_(e) {}

  __device__ __forceinline__ bool is_active() const { return WarpRole().strip * 16 < columns; }

  __device__ __forceinline__ void load(const float* matrix) {
    const WarpRole role;
    if (role.group == 0) {
      strip_.template load<false>(matrix, e_, depth_, role.strip, columns);
    } else {
      strip_.template load<true>(matrix, e_, depth_, role.strip, columns);
    }
  }

  /// sum += 16 rows times the strip; `low` is the tile of the residual, if residuals are in a tile.
  __device__ __forceinline__ void multiply_by(float (&sum)[2][4], const Operand& rows,
                                              const Tile<widest>& low) const {
    const WarpRole role;
    if (role.group == 0) {
      multiply<false>(sum, rows, 0, strip_, low, role.strip, columns, depth_);
    } else {
      multiply<true>(sum, rows, 0, strip_, low, role.strip, columns, depth_);
    }
  }

  int columns;

 private:
  int depth_, e_;
  Strip<residual_in_tile> strip_;
};

/// A tile of gradients in f32: even columns in the words of one tile, odd ones in another.
struct GradTile {
  RowTile even, odd;
};

/// Where pair i of a lane's 16 x 16 accumulators lies: in its registers, and in a tile.
struct FragmentPair {
  __device__ __forceinline__ FragmentPair(int i, int strip, int columns)
      : half(i / 2),
        first(i % 2 * 2),
        row(Thread().group + i % 2 * 8),
        column(strip_column(strip, half, columns) + 2 * Thread().member) {}
  __device__ __forceinline__ unsigned& in(const RowTile& tile) const {
    return tile.pair(row, column);
  }
  int half, first, row, column;  // first: index of the pair in d[half]
};

/// The gradient of the position encoding, in accumulators: the transposed rotation. Of cosine only
/// the first half of the columns remains.
__device__ __forceinline__ void rotate_back(float (&d)[2][4], const float4* sincos, int strip) {
  const Thread self;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const float4 sc = sincos[(self.group + 8 * below) * sincos_pitch + strip * 4 + self.member];
    const int i = 2 * below;
    const float a = d[0][i], b = d[1][i], c = d[0][i + 1], e = d[1][i + 1];
    d[0][i] = a * sc.x + b * sc.y;
    d[1][i] = b * sc.x - a * sc.y;
    d[0][i + 1] = c * sc.z + e * sc.w;
    d[1][i + 1] = e * sc.z - c * sc.w;
  }
}

/// Pairs that hold gradients of x.
__device__ __forceinline__ int pairs_of(LrpeKind kind) {
  return kind == LrpeKind::cosine ? 2 : 4;
}

/// A warp's part of the row sums of y * d_y that the gradient of softmax needs; `means` is (strip,
/// row).
template <class E>
__device__ __forceinline__ void add_row_means(const float (&d)[2][4], const RowTile& tile,
                                              const RowSoftmax* stats, float* means, int strip,
                                              int columns, int pairs) {
  float mean[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= pairs) continue;
    const FragmentPair at(i, strip, columns);
    const float2 x = unpacked<E>(at.in(tile));
    mean[i % 2] += activated(Act::softmax, x.x, stats[at.row]) * d[at.half][at.first];
    mean[i % 2] += activated(Act::softmax, x.y, stats[at.row]) * d[at.half][at.first + 1];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    mean[i] += __shfl_xor_sync(all_lanes, mean[i], 1);
    mean[i] += __shfl_xor_sync(all_lanes, mean[i], 2);
    if (Thread().member == 0) means[strip * tile_rows + Thread().group + 8 * i] = mean[i];
  }
}

/// The gradient of the activation: d_y in accumulators and x in `tile` give d_x in `out`, which may
/// overwrite `tile`.
template <class E>
__device__ __forceinline__ void activation_gradient(const float (&d)[2][4], Act act,
                                                    const RowTile& tile, const RowSoftmax* stats,
                                                    const float* means, const GradTile& out,
                                                    int strip, int columns, int pairs) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= pairs) continue;
    const FragmentPair at(i, strip, columns);
    float first = d[at.half][at.first], second = d[at.half][at.first + 1];
    if (act != Act::none) {
      RowSoftmax sum{0.0f, 1.0f};
      float mean = 0.0f;
      if (act == Act::softmax) {
        sum = stats[at.row];
        for (int s = 0; s < columns / 16; ++s) mean += means[s * tile_rows + at.row];
      }
      const float2 x = unpacked<E>(at.in(tile));
      first = activation_slope(act, first, x.x, sum, mean);
      second = activation_slope(act, second, x.y, sum, mean);
    }
    at.in(out.even) = __float_as_uint(first);
    at.in(out.odd) = __float_as_uint(second);
  }
}

/// Stores tiles of gradients to memory, one after the other; a thread of a group has 8 neighbouring
/// columns of a row.
template <class E>
class GradStore {
 public:
  __device__ __forceinline__ GradStore(const GradRows& g, const Part& part, int features) {
    if (g.data == nullptr || vector() * 8 >= features) return;
    next_ = part.start(g) + row() * g.step[2] + vector() * (g.wide ? 2 : 1);
    active_ = true;
  }

  /// The old gradient, if it is to be added to, loaded early. The tile has `rows` rows.
  __device__ __forceinline__ uint4 read(const GradRows& g, int rows) const {
    const bool reads = g.add && !g.wide && active_ && row() < rows;
    return reads ? g.data[next_] : make_uint4(0u, 0u, 0u, 0u);
  }

  __device__ __forceinline__ void put(const GradRows& g, int rows, const GradTile& tile,
                                      const uint4& old) {
    if (!active_ || row() >= rows) return;
    const uint4 even = tile.even.chunk(row(), vector()), odd = tile.odd.chunk(row(), vector());
    if (g.wide) {
      put_wide(g, even, odd);
    } else {
      const auto sum = [&](unsigned first, unsigned second, unsigned there) {
        const float2 before = unpacked<E>(there);
        const float a = __uint_as_float(first), b = __uint_as_float(second);
        return g.add ? packed<E>(before.x + a, before.y + b) : packed<E>(a, b);
      };
      g.data[next_] = make_uint4(sum(even.x, odd.x, old.x), sum(even.y, odd.y, old.y),
                                 sum(even.z, odd.z, old.z), sum(even.w, odd.w, old.w));
    }
    next_ += tile_rows * g.step[2];
  }

 private:
  __device__ __forceinline__ void put_wide(const GradRows& g, const uint4& even,
                                           const uint4& odd) const {
    float4* const to = reinterpret_cast<float4*>(g.data);
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 p = g.add ? to[next_] : zero, q = g.add ? to[next_ + 1] : zero;
    const auto value = [](unsigned bits) { return __uint_as_float(bits); };
    to[next_] = make_float4(p.x + value(even.x), p.y + value(odd.x), p.z + value(even.y),
                            p.w + value(odd.y));
    to[next_ + 1] = make_float4(q.x + value(even.z), q.y + value(odd.z), q.z + value(even.w),
                                q.w + value(odd.w));
  }
  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) % (backward_threads / 2) / (widest / 8);
  }
  __device__ __forceinline__ static int vector() {
    return static_cast<int>(threadIdx.x) % (widest / 8);
  }

  int next_ = 0;  // in vectors
  bool active_ = false;
};

/// Whether GradStore can store to a gradient.
inline bool supports_grad(const Grad& g, DType dtype) {
  return !g.wanted() || ((g.view.dtype == dtype || g.view.dtype == f32) && supports_layout(g.view));
}

/// Shared memory of a block of the kernel below.
std::size_t shared_of_keys(bool encoded);
/// d_k = v~ d_kv^T and d_v = k~ d_kv, as far as they are wanted, for inputs of type `dtype`.
void differentiate_keys_of(DType dtype, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoTransforms& transforms);

}  // namespace quipu::detail::on_cuda::flao_mma
