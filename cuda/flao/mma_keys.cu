// Gated linear attention by tensor cores: kv = k~^T v~. Split-K over tokens: a block has a part of
// a unit's keys, in tiles of 32 through three stages of shared memory, and accumulates all of kv in
// the registers of 16 warps; where a unit has several parts, a second kernel adds them in order. k
// and v are read once. Unencoded ones are multiplied as they are, exactly; encoded ones go in as
// bf16 plus bf16 residual.
//
// sass multiply_keys_kernel<.*false>: need HMMA.16816.F32 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128;
// forbid STL LDL LD.E$ ST.E$; registers 64
//
// sass multiply_keys_kernel<.*false>: blocks 2@80,90 1@86,89,120; dynamic 52224
//
// sass multiply_keys_kernel<.*true>: need HMMA.16816.F32.BF16 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128;
// forbid STL LDL LD.E$ ST.E$; registers 128
//
// sass multiply_keys_kernel<.*true>: blocks 1; dynamic 61440
#include "mma.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int threads = 512;

/// A tile of encoded rows has one row a warp. Then a block is alone on a multiprocessor and has
/// more stages in flight.
constexpr int rows_of(bool encoded) {
  return encoded ? 16 : 32;
}
constexpr int stages_of(bool encoded) {
  return encoded ? 4 : 3;
}

struct Keys {
  Rows k, v;
  Encoding k_encoding, v_encoding;
  float* sums;  // (units, parts, width, e)
  int heads, parts, length, tokens;
};

template <class E, bool encoded>
__global__ void __launch_bounds__(threads, encoded ? 1 : 2) multiply_keys_kernel(const Keys p) {
  constexpr int count = rows_of(encoded), stages = stages_of(encoded), tile = count * pitch;
  constexpr int last = (stages - 1) * 2 * tile;
  unsigned* const shared = dynamic_shared<unsigned>();
  const Part part(p.heads, p.parts, p.length, p.tokens);
  const int width = p.k_encoding.width, e = p.v_encoding.width;
  TileLoader<count, threads> k(p.k, part), v(p.v, part);
  int left_rows = part.end - part.first;  // in this tile and those after it
  const auto fetch_stage = [&](unsigned* stage, int rows) {
    if (rows > 0) {
      k.fetch(stage, p.k, rows, p.k_encoding.features);
      v.fetch(stage + tile, p.v, rows, e);
    }
    ptx::copy_commit();
  };
  OuterProduct<std::conditional_t<encoded, __nv_bfloat16, E>> kv;
  for (int t = 0; t < stages - 1; ++t) {
    fetch_stage(shared + t * 2 * tile, left_rows - t * count);
  }
  for (int at = 0; left_rows > 0; at = at == last ? 0 : at + 2 * tile, left_rows -= count) {
    ptx::copy_wait<stages - 2>();
    __syncthreads();
    fetch_stage(shared + (at == 0 ? last : at - 2 * tile), left_rows - (stages - 1) * count);
    unsigned* const stage = shared + at;
    SplitTile left{stage, nullptr}, right{stage + tile, nullptr};
    if constexpr (encoded) {
      unsigned* const encoded_tiles = shared + stages * 2 * tile;
      const int token = part.end - left_rows;
      const auto encode_input = [&](const Encoding& x, unsigned* raw, unsigned* to) {
        const EncodeStats stats{reinterpret_cast<float4*>(encoded_tiles + 4 * tile), nullptr};
        return encode_operand<E, count, threads>(x, raw, {to, to + tile}, stats, part.head, token,
                                                 part.end);
      };
      left = encode_input(p.k_encoding, left.high, encoded_tiles);
      right = encode_input(p.v_encoding, right.high, encoded_tiles + 2 * tile);
      __syncthreads();
    }
#pragma unroll 1
    for (int row = 0; row < count; row += 16) {
      kv.add(left.from_row(row), right.from_row(row), width, e);
    }
  }
  kv.store(p.sums + static_cast<std::int64_t>(blockIdx.x) * width * e, width, e);
}

}  // namespace

void multiply_keys(const View& k, const View& v, const View& kv, const FlaoSizes& sizes,
                   const FlaoTransforms& transforms, const FlaoWorkspace& workspace) {
  const FlaoParts parts(sizes.m, sizes.units);
  const bool whole = parts.count == 1;
  const Keys keys{Rows(k),
                  Rows(v),
                  Encoding(transforms.k, sizes.d, sizes.m),
                  Encoding(transforms.v, sizes.e, sizes.m),
                  (whole ? kv : workspace.sums).as<float>(),
                  static_cast<int>(k.size(1)),
                  static_cast<int>(parts.count),
                  static_cast<int>(parts.length),
                  static_cast<int>(sizes.m)};
  const bool encoded = !is_plain(transforms.k) || !is_plain(transforms.v);
  const auto kernel =
      k.dtype == bf16
          ? (encoded ? multiply_keys_kernel<__nv_bfloat16, true>
                     : multiply_keys_kernel<__nv_bfloat16, false>)
          : (encoded ? multiply_keys_kernel<__half, true> : multiply_keys_kernel<__half, false>);
  run(Queue(k), kernel, static_cast<unsigned>(sizes.units * parts.count), threads,
      tile_bytes(2 * stages_of(encoded) + (encoded ? 4 : 0), rows_of(encoded)) +
          (encoded ? sincos_bytes(rows_of(true)) : 0),
      keys);
  if (!whole) reduce_flao_parts(workspace.sums, parts.count, kv);
}

}  // namespace flao_mma
}  // namespace on_cuda
}  // namespace quipu::detail
