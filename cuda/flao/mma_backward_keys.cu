// Gated linear attention by tensor cores, backward, the keys: d_v = k~ d_kv and d_k = v~ d_kv^T in
// one pass. A block has a part of a unit's keys, in tiles of 16 through four stages of shared
// memory. Warps are specialised: one half keeps d_kv in registers, a strip of 16 columns each, and
// makes d_v, the other half keeps d_kv^T and makes d_k. k and v are read once, gradients are
// written once, or read, added to and written; bound by memory.
//
// sass differentiate_keys: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDGSTS.E.BYPASS.128 LDG.E.128
// STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
//
// sass differentiate_keys<.*false>: blocks 1; dynamic 49152
//
// sass differentiate_keys<.*true>: blocks 1@80,90; dynamic 107520
#include "mma_backward.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int stages = 4;

struct Keys {
  Rows k, v;  // null where no wanted gradient needs them
  GradRows d_k, d_v;
  Encoding k_encoding, v_encoding;
  const float* d_kv;  // (units, width, e)
  Split split;
};

/// Layout of shared memory.
struct SharedLayout {
  uint4* base = dynamic_shared<uint4>();
  __device__ __forceinline__ RowTile tile(int i) const { return {base + i * RowTile::size}; }
  /// k is input 0, v is 1.
  __device__ __forceinline__ RowTile raw(int t, int input) const {
    return tile(t % stages * 2 + input);
  }
  __device__ __forceinline__ GradTile gradients(int input) const {
    return {tile((stages + input) * 2), tile((stages + input) * 2 + 1)};
  }
  __device__ __forceinline__ Operand encoded(int input) const {
    return {tile((stages + 2 + input) * 2), tile((stages + 2 + input) * 2 + 1)};
  }
  /// The bf16 residual of d_kv.
  __device__ __forceinline__ Tile<widest> residual() const { return {tile((stages + 4) * 2).data}; }
  __device__ __forceinline__ float4* sincos() const {
    return reinterpret_cast<float4*>(residual().data + Tile<widest>::size);
  }
  static constexpr std::size_t bytes(bool encoded) {
    return 2 * (stages + (encoded ? 4 : 2)) * RowTile::bytes +
           (encoded ? Tile<widest>::bytes + sincos_bytes(tile_rows) : 0);
  }
};

/// Statistics of softmax over the features of a tile of k and of v.
struct alignas(8) TileStats {
  RowSoftmax sums[2][tile_rows];
  float means[2][strips * tile_rows];
};

template <class E, bool encoded>
__global__ void __launch_bounds__(backward_threads, 1) differentiate_keys(const Keys p) {
  __shared__ TileStats stats;
  const SharedLayout smem;
  const Part part(p.split);
  const WarpRole role;
  const int tiles = part.tiles(tile_rows);
  // The first group multiplies k~ and makes d_v, the second one v~ and makes d_k.
  const int to = 1 - role.group;
  const Act act = !encoded ? Act::none : to == 0 ? p.k_encoding.act : p.v_encoding.act;
  const bool rotated = encoded && to == 0 && p.k_encoding.kind != LrpeKind::none;
  const int width = p.k_encoding.width, e = p.v_encoding.width;
  const bool softmax =
      encoded && (p.k_encoding.act == Act::softmax || p.v_encoding.act == Act::softmax);
  const int of_k = part.fetched<backward_threads>(p.k), of_v = part.fetched<backward_threads>(p.v);
  const auto fetch = [&](int t) {
    if (t < tiles && p.k.data != nullptr) {
      part.fetch<backward_threads>(smem.raw(t, 0), p.k, of_k, t * tile_rows, p.k_encoding.features);
    }
    if (t < tiles && p.v.data != nullptr) {
      part.fetch<backward_threads>(smem.raw(t, 1), p.v, of_v, t * tile_rows, e);
    }
  };
  fetch_first<stages - 1>(fetch);
  __syncwarp();  // rows may be shorter than the lanes reach
  WarpStrip<encoded> d_kv(width, e);
  const bool multiplies = (to == 0 ? p.d_k : p.d_v).data != nullptr && d_kv.is_active();
  const float* const matrix = p.d_kv + static_cast<std::int64_t>(part.unit) * width * e;
  if (multiplies) d_kv.load(matrix);
  if constexpr (encoded) fill_residual<backward_threads>(smem.residual(), matrix, width, e);
  GradStore<E> store =
      to == 0 ? GradStore<E>(p.d_k, part, p.k_encoding.features) : GradStore<E>(p.d_v, part, e);
  for (int t = 0; t < tiles; ++t) {
    fetch_next<stages - 1>(t, fetch);
    const int token = part.first + t * tile_rows;
    const int rows = part.end - token;
    const uint4 old = to == 0 ? store.read(p.d_k, rows) : store.read(p.d_v, rows);
    Operand left{smem.raw(t, 1 - to), {nullptr}};
    if constexpr (encoded) {
      const auto encode_input = [&](int input, const Encoding& x, const Rows& source) {
        if (source.data == nullptr) return;
        const Operand split = encode_operand<E, backward_threads>(
            x, smem.raw(t, input), smem.encoded(input), {smem.sincos(), stats.sums[input]},
            part.head, token, part.end);
        if (input != to) left = split;
      };
      encode_input(0, p.k_encoding, p.k);
      if (p.k.data == nullptr && p.k_encoding.kind != LrpeKind::none) {
        fill_sincos_tile<tile_rows, backward_threads>(p.k_encoding, smem.sincos(), part.head,
                                                      token);
      }
      encode_input(1, p.v_encoding, p.v);
      __syncthreads();
    }
    float d[2][4] = {};
    const int pairs = rotated ? pairs_of(p.k_encoding.kind) : 4;
    if (multiplies) d_kv.multiply_by(d, left, smem.residual());
    if (encoded && multiplies) {
      if (rotated) rotate_back(d, smem.sincos(), role.strip);
      if (act == Act::softmax) {
        add_row_means<E>(d, smem.raw(t, to), stats.sums[to], stats.means[to], role.strip,
                         d_kv.columns, pairs);
      }
    }
    if (softmax) __syncthreads();
    if (multiplies) {
      activation_gradient<E>(d, act, smem.raw(t, to), stats.sums[to], stats.means[to],
                             smem.gradients(to), role.strip, d_kv.columns, pairs);
    }
    __syncthreads();
    if (to == 0) store.put(p.d_k, rows, smem.gradients(0), old);
    if (to == 1) store.put(p.d_v, rows, smem.gradients(1), old);
  }
}

}  // namespace

std::size_t shared_of_keys(bool encoded) {
  return SharedLayout::bytes(encoded) + sizeof(TileStats);
}

void differentiate_keys_of(DType dtype, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoTransforms& transforms) {
  const FlaoSizes& sizes = saved.sizes;
  const FlaoParts parts = parts_without_sums(sizes.m, sizes.units);
  const Keys keys{Rows(saved.k),
                  Rows(saved.v),
                  GradRows(grads.k),
                  GradRows(grads.v),
                  Encoding(transforms.k, sizes.d, sizes.m),
                  Encoding(transforms.v, sizes.e, sizes.m),
                  d_kv.as<float>(),
                  Split(parts, d_kv.size(1), sizes.m)};
  const bool encoded = are_encoded(dtype, transforms.k, transforms.v);
  const auto kernel = dtype == f16 ? differentiate_keys<__half, true>
                      : encoded    ? differentiate_keys<__nv_bfloat16, true>
                                   : differentiate_keys<__nv_bfloat16, false>;
  run(Queue(d_kv), kernel, static_cast<unsigned>(sizes.units * parts.count), backward_threads,
      SharedLayout::bytes(encoded), keys);
}

}  // namespace flao_mma
}  // namespace on_cuda
}  // namespace quipu::detail
