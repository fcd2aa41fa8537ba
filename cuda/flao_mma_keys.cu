// Gated linear attention by tensor cores: kv = k~^T v~. A block takes a part of a unit's keys, 32
// at a time through four stages of shared memory, and sums all of kv in the registers of 16 warps;
// where a unit has several parts, they are added in order afterwards. k and v are read once. Plain
// ones are multiplied as they are, exactly; others pass through f32 and go in as two halves.
//
// sass multiply_keys_kernel<.*false>: need HMMA.16816.F32 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128;
// forbid STL LDL LD.E$ ST.E$; registers 64
//
// sass multiply_keys_kernel<.*true>: need HMMA.16816.F32.BF16 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128;
// forbid STL LDL LD.E$ ST.E$; registers 128
#include "flao_mma.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int threads = 512, stages = 4;
/// Rows of a tile: as many as warps encode at once.
constexpr int rows_of(bool encoded) {
  return encoded ? 16 : 32;
}

struct Keys {
  Rows k, v;
  Encoding k_encoding, v_encoding;
  float* sums;  // (units, parts, width, e)
  int heads, parts, length, tokens;
};

template <class E, bool encoded>
__global__ void __launch_bounds__(threads, encoded ? 1 : 2) multiply_keys_kernel(const Keys p) {
  constexpr int count = rows_of(encoded), tile = count * pitch;
  unsigned* const shared = dynamic_shared<unsigned>();
  const Part part(p.heads, p.parts, p.length, p.tokens);
  const int width = p.k_encoding.width, e = p.v_encoding.width, tiles = part.tiles(count);
  Source<count, threads> k(p.k, part), v(p.v, part);
  const auto fetch_stage = [&](int t) {
    unsigned* const stage = shared + t % stages * 2 * tile;
    const int rows = part.end - part.first - t * count;
    if (t < tiles) {
      k.fetch(stage, p.k, rows, p.k_encoding.features);
      v.fetch(stage + tile, p.v, rows, e);
    }
    ptx::copy_commit();
  };
  OuterSum<std::conditional_t<encoded, __nv_bfloat16, E>> kv;
  for (int t = 0; t < stages - 1; ++t) fetch_stage(t);
  for (int t = 0; t < tiles; ++t) {
    ptx::copy_wait<stages - 2>();
    __syncthreads();
    fetch_stage(t + stages - 1);
    unsigned* const stage = shared + t % stages * 2 * tile;
    Pieces left{stage, nullptr}, right{stage + tile, nullptr};
    if constexpr (encoded) {
      unsigned* const room = shared + stages * 2 * tile;
      const int token = part.first + t * count;
      const auto enter = [&](const Encoding& x, unsigned* raw, unsigned* to) {
        const Notes notes{reinterpret_cast<float4*>(room + 4 * tile), nullptr};
        return entered<E, count, threads>(x, raw, {to, to + tile}, notes, part.head, token,
                                          part.end);
      };
      left = enter(p.k_encoding, left.high, room);
      right = enter(p.v_encoding, right.high, room + 2 * tile);
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
                   const FlaoEncodings& encodings, const FlaoSpace& space) {
  const FlaoParts parts(sizes.m, sizes.units);
  const bool whole = parts.count == 1;
  const Keys keys{Rows(k),
                  Rows(v),
                  Encoding(encodings.k, sizes.d, sizes.m),
                  Encoding(encodings.v, sizes.e, sizes.m),
                  (whole ? kv : space.sums).as<float>(),
                  static_cast<int>(k.size(1)),
                  static_cast<int>(parts.count),
                  static_cast<int>(parts.length),
                  static_cast<int>(sizes.m)};
  const bool encoded = !is_plain(encodings.k) || !is_plain(encodings.v);
  const auto kernel =
      k.dtype == bf16
          ? (encoded ? multiply_keys_kernel<__nv_bfloat16, true>
                     : multiply_keys_kernel<__nv_bfloat16, false>)
          : (encoded ? multiply_keys_kernel<__half, true> : multiply_keys_kernel<__half, false>);
  run(Queue(k), kernel, static_cast<unsigned>(sizes.units * parts.count), threads,
      tile_bytes(2 * stages + (encoded ? 4 : 0), rows_of(encoded)) +
          (encoded ? turn_bytes(rows_of(true)) : 0),
      keys);
  if (!whole) add_flao_parts(space.sums, parts.count, kv);
}

}  // namespace flao_mma
}  // namespace on_cuda

void register_cuda_flao_mma_keys() {}

}  // namespace quipu
