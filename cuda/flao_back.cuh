#pragma once
// What the two passes of backward of gated linear attention share: the way of gradients from tiles
// to where they belong, and the means that softmax over the sequence needs first.
#include "flao_tiles.cuh"

namespace quipu::on_cuda::gated {

/// The sums over the tokens of a tile, added to those of the tiles before; a thread has the same
/// columns every time.
template <class T>
__device__ __forceinline__ void add_columns(const Tile<T>& tile, unsigned features, T* sums) {
  for (unsigned c = threadIdx.x; c < features; c += block_threads) {
    T sum(0);
    for (unsigned r = 0; r < tile.valid; ++r) sum += tile.row(r)[c];
    sums[c] += sum;
  }
}
template <class T>
__device__ __forceinline__ void clear_columns(unsigned features, T* sums) {
  for (unsigned c = threadIdx.x; c < features; c += block_threads) sums[c] = T(0);
}

/// Gradients of one of q, k, v, g.
template <class T>
struct FlaoWay {
  FlaoRows<T> rows;
  FlaoTarget target;
  bool wanted;
  T* means;  // (units, parts, features): sums of parts, if `target.measure`

  __device__ __forceinline__ T* means_of(std::uint32_t part_of_unit) const {
    return means + static_cast<std::int64_t>(part_of_unit) * rows.features;
  }
  /// The gradients of rows of x~ in a tile that all threads filled.
  __device__ __forceinline__ void deliver(const FlaoUnit& unit, const Tile<T>& tile,
                                          std::uint32_t part_of_unit) const {
    deliver_rows(rows, unit, tile, target);
    if (!target.measure) return;
    __syncthreads();
    add_columns(tile, rows.features, means_of(part_of_unit));
  }
};

// ---- on the host ----

/// The means of softmax over the sequence come first.
enum class FlaoStage { measure, deliver };

/// A call.
struct FlaoBackward {
  const View& d_o;
  const FlaoSaved& saved;
  const View& d_kv;
  const FlaoGrads& grads;
  const FlaoEncodings& encodings;
  const FlaoSpace& space;
  const FlaoSizes& s;
};

inline bool is_wanted(const Grad& grad, const RowEncoding& encoding, FlaoStage stage) {
  return grad.wanted() && (stage == FlaoStage::deliver || encoding.has_columns());
}

template <class T>
FlaoWay<T> way_of(const View& x, const RowEncoding& encoding, std::int64_t features,
                  std::int64_t tokens, const FlaoColumns& columns, const Grad& grad,
                  FlaoStage stage) {
  return {FlaoRows<T>(x, encoding, features, tokens, columns),
          {FlaoPlace(grad.view), grad.add, stage == FlaoStage::measure},
          is_wanted(grad, encoding, stage),
          encoding.has_columns() ? columns.parts.as<T>() : nullptr};
}

/// d_k = v~ d_kv^T and d_v = k~ d_kv, as far as they are wanted.
void differentiate_flao_keys(const FlaoBackward& a);

}  // namespace quipu::on_cuda::gated
