#pragma once
// What the two passes of backward of gated linear attention share: the epilogue that stores a tile
// of gradients, and the means that the gradient of softmax over the sequence needs first.
#include "tiles.cuh"

namespace quipu::detail::on_cuda::gated {

/// sums[c] += the sum of column c over the tokens of a tile. A thread has the same columns for
/// every tile, so that no atomics are needed.
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

/// One of q, k, v, g with its encoding, and where its gradient goes.
template <class T>
struct FlaoInputGrad {
  FlaoRows<T> rows;
  FlaoGradTarget target;
  bool wanted;
  T* means;  // (units, parts, features): partial sums, if `target.for_means`

  __device__ __forceinline__ T* means_of(std::uint32_t part_of_unit) const {
    return means + static_cast<std::int64_t>(part_of_unit) * rows.features;
  }
  /// Epilogue: from a tile of gradients of x~, which all threads filled, to the gradient of x.
  __device__ __forceinline__ void store_gradients(const FlaoUnit& unit, const Tile<T>& tile,
                                                  std::uint32_t part_of_unit) const {
    store_row_gradients(rows, unit, tile, target);
    if (!target.for_means) return;
    __syncthreads();
    add_columns(tile, rows.features, means_of(part_of_unit));
  }
};

// ---- on the host ----

/// The launches of backward: the means that softmax over the sequence needs, then gradients.
enum class FlaoStage { means, gradients };

/// The arguments of flao_backward.
struct FlaoBackward {
  const View& d_o;
  const FlaoSaved& saved;
  const View& d_kv;
  const FlaoGrads& grads;
  const FlaoTransforms& transforms;
  const FlaoWorkspace& workspace;
  const FlaoSizes& s;
};

inline bool is_wanted(const Grad& grad, const RowTransform& transform, FlaoStage stage) {
  return grad.wanted() && (stage == FlaoStage::gradients || transform.softmax_over_sequence());
}

template <class T>
FlaoInputGrad<T> input_grad_of(const View& x, const RowTransform& transform, std::int64_t features,
                               std::int64_t tokens, const FlaoSoftmaxStats& columns,
                               const Grad& grad, FlaoStage stage) {
  return {FlaoRows<T>(x, transform, features, tokens, columns),
          {FlaoView(grad.view), grad.add, stage == FlaoStage::means},
          is_wanted(grad, transform, stage),
          transform.softmax_over_sequence() ? columns.parts.as<T>() : nullptr};
}

/// d_k = v~ d_kv^T and d_v = k~ d_kv, as far as they are wanted.
void differentiate_flao_keys(const FlaoBackward& a);

}  // namespace quipu::detail::on_cuda::gated
