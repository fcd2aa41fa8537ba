// Gated linear attention by tensor cores: kv = k~^T v~. Split-K over tokens: a block has a part of
// a unit's keys, in tiles of 32 through three stages of shared memory, and accumulates all of kv in
// the registers of 16 warps; where a unit has several parts, a second kernel adds them in order. k
// and v are read once. Unencoded ones are multiplied as they are, exactly; encoded ones go in as
// bf16 plus bf16 residual.
//
// sass multiply_keys_kernel<.*false>: need HMMA.16816.F32 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128;
// forbid STL LDL LD.E$ ST.E$; registers 64
//
// sass multiply_keys_kernel<.*false>: blocks 2; dynamic 49152
//
// sass multiply_keys_kernel<.*true>: need HMMA.16816.F32.BF16 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128;
// forbid STL LDL LD.E$ ST.E$; registers 128
//
// sass multiply_keys_kernel<.*true>: blocks 1; dynamic 58368
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
  Split split;
};

template <class E, bool encoded>
__global__ void __launch_bounds__(threads, encoded ? 1 : 2) multiply_keys_kernel(const Keys p) {
  constexpr int count = rows_of(encoded), stages = stages_of(encoded);
  using RowTile = Tile<count>;
  const auto tile = [](int i) { return RowTile{dynamic_shared<uint4>() + i * RowTile::size}; };
  const Part part(p.split);
  const int width = p.k_encoding.width, e = p.v_encoding.width, length = part.end - part.first;
  const int of_k = part.fetched<threads>(p.k), of_v = part.fetched<threads>(p.v);
  const auto fetch = [&](int t) {
    if (t * count >= length) return;
    part.fetch<threads>(tile(t % stages * 2), p.k, of_k, t * count, p.k_encoding.features);
    part.fetch<threads>(tile(t % stages * 2 + 1), p.v, of_v, t * count, e);
  };
  fetch_first<stages - 1>(fetch);
  OuterProduct<std::conditional_t<encoded, __nv_bfloat16, E>> kv;
  for (int t = 0; t * count < length; ++t) {
    fetch_next<stages - 1>(t, fetch);
    SplitTile<count> left{tile(t % stages * 2), {nullptr}},
        right{tile(t % stages * 2 + 1), {nullptr}};
    if constexpr (encoded) {
      const auto encode_input = [&](const Encoding& x, const RowTile& raw, int to) {
        const EncodeStats stats{reinterpret_cast<float4*>(tile(stages * 2 + 4).data), nullptr};
        return encode_operand<E, threads>(x, raw,
                                          {tile(stages * 2 + to), tile(stages * 2 + to + 1)}, stats,
                                          part.head, part.first + t * count, part.end);
      };
      left = encode_input(p.k_encoding, left.high, 0);
      right = encode_input(p.v_encoding, right.high, 2);
      __syncthreads();
    }
#pragma unroll 1
    for (int row = 0; row < count; row += 16) kv.add(left, right, row, width, e);
  }
  kv.store(p.sums + std::uint64_t{blockIdx.x} * static_cast<unsigned>(width * e), width, e);
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
                  Split(parts, k.size(1), sizes.m)};
  const bool encoded = !is_plain(transforms.k) || !is_plain(transforms.v);
  const auto kernel =
      k.dtype == bf16
          ? (encoded ? multiply_keys_kernel<__nv_bfloat16, true>
                     : multiply_keys_kernel<__nv_bfloat16, false>)
          : (encoded ? multiply_keys_kernel<__half, true> : multiply_keys_kernel<__half, false>);
  run(Queue(k), kernel, static_cast<unsigned>(sizes.units * parts.count), threads,
      encoded ? (2 * stages_of(true) + 4) * Tile<rows_of(true)>::bytes + sincos_bytes(rows_of(true))
              : 2 * stages_of(false) * Tile<rows_of(false)>::bytes,
      keys);
  if (!whole) reduce_flao_parts(workspace.sums, parts.count, kv);
}

}  // namespace flao_mma
}  // namespace on_cuda
}  // namespace quipu::detail
