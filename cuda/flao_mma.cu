// Gated linear attention by tensor cores, forward: kv = k~^T v~ (flao_mma_keys.cu), then o = g~ *
// (q~ kv) in one pass. There a block keeps kv in registers, a strip of 16 columns a warp, and takes
// its part of the queries 32 at a time through three stages of shared memory. The gate is applied
// where the product lies, o takes the place of g, and leaves from there 16 bytes a thread. q and g
// are read once, o is written once; bound by memory.
//
// sass gate_queries: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDGSTS.E.BYPASS.128 STG.E.128; forbid
// STL LDL LD.E$ ST.E$; registers 128
#include "flao_mma.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int threads = 256, count = 32, stages = 3, tile = count * pitch;

struct Queries {
  Rows q, g, o, qkv;
  Encoding q_encoding;
  Act g_act;
  const float* kv;  // (units, width, e)
  int e, heads, parts, length, tokens;
};

/// A warp's strip of 16 rows of q~ kv takes its place in qkv, if there is one, and times g~ in g.
template <class E>
__device__ __forceinline__ void gate(const float (&product)[2][4], const Queries& p, int strip,
                                     int first_row, unsigned* g, unsigned* qkv,
                                     const RowSum* found) {
  const Lane lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, row = first_row + lane.group + i % 2 * 8;
    const int word = row * pitch + strip_column(strip, half, p.e) / 2 + lane.member;
    const float first = product[half][i % 2 * 2], second = product[half][i % 2 * 2 + 1];
    if (qkv != nullptr) qkv[word] = packed<E>(first, second);
    const float2 x = unpacked<E>(g[word]);
    const RowSum sum = p.g_act == Act::softmax ? found[row] : RowSum{0.0f, 1.0f};
    g[word] =
        packed<E>(activated(p.g_act, x.x, sum) * first, activated(p.g_act, x.y, sum) * second);
  }
}

/// Rows of a tile go where they belong.
__device__ __forceinline__ void deliver(const unsigned* from, uint4* rows, std::int64_t step,
                                        int first, int end, int features) {
  constexpr int vectors = widest / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += threads) {
    const int row = i / vectors, vector = i % vectors;
    if (first + row >= end || vector * 8 >= features) continue;
    rows[(first + row) * step + vector] =
        reinterpret_cast<const uint4*>(from)[row * (pitch / 4) + vector];
  }
}

template <class E, bool encoded>
__global__ void __launch_bounds__(threads, 2) gate_queries(const Queries p) {
  __shared__ RowSum q_found[count], g_found[count];
  unsigned* const shared = dynamic_shared<unsigned>();
  const Part part(p.heads, p.parts, p.length, p.tokens);
  const int width = p.q_encoding.width, e = p.e, tiles = part.tiles(count);
  const uint4 *const q = part.rows(p.q), *const g = part.rows(p.g);
  const int strip = static_cast<int>(threadIdx.x / warp_size);
  const auto fetch_stage = [&](int t) {
    unsigned* const stage = shared + t % stages * 2 * tile;
    const int first = part.first + t * count;
    if (t < tiles) {
      fetch<count, threads>(stage, q, p.q.step[2], first, part.end, p.q_encoding.features);
      fetch<count, threads>(stage + tile, g, p.g.step[2], first, part.end, e);
    }
    ptx::copy_commit();
  };
  unsigned* const room = shared + stages * 2 * tile;
  unsigned* const qkv = p.qkv.data != nullptr ? room + (encoded ? 2 * tile : 0) : nullptr;
  for (int t = 0; t < stages - 1; ++t) fetch_stage(t);
  Strip kv;
  const float* const matrix = p.kv + static_cast<std::int64_t>(part.unit) * width * e;
  if (strip * 16 < e) kv.load<false>(matrix, e, width, strip, e);
  for (int t = 0; t < tiles; ++t) {
    ptx::copy_wait<stages - 2>();
    __syncthreads();
    fetch_stage(t + stages - 1);
    unsigned* const stage = shared + t % stages * 2 * tile;
    const int token = part.first + t * count;
    Pieces left{stage, nullptr};
    if constexpr (encoded) {
      const bool plain = p.q_encoding.act == Act::none && p.q_encoding.kind == LrpeKind::none;
      if (!plain || std::is_same_v<E, __half>) {
        left = {room, room + tile};
        encode<E, count, threads>(p.q_encoding, stage, left, q_found, part.head, token, part.end);
      }
      if (p.g_act == Act::softmax) measure<E, count, threads>(stage + tile, e, g_found);
      __syncthreads();
    }
    for (int row = 0; row < count && strip * 16 < e; row += 16) {
      float product[2][4] = {};
      const Pieces rows{left.high + row * pitch,
                        left.low == nullptr ? nullptr : left.low + row * pitch};
      multiply(product, rows, kv, width);
      gate<E>(product, p, strip, row, stage + tile, qkv, g_found);
    }
    __syncthreads();
    deliver(stage + tile, part.rows(p.o), p.o.step[2], token, part.end, e);
    if (qkv != nullptr) deliver(qkv, part.rows(p.qkv), p.qkv.step[2], token, part.end, e);
  }
}

void run_queries(const View& q, const View& g, const View& kv, const View& qkv, const View& o,
                 const FlaoSizes& sizes, const FlaoEncodings& encodings) {
  const FlaoParts parts = parts_without_sums(sizes.n, sizes.units);
  const Queries queries{Rows(q),
                        Rows(g),
                        Rows(o),
                        Rows(qkv),
                        Encoding(encodings.q, sizes.d, sizes.n),
                        encodings.g.act,
                        kv.as<float>(),
                        static_cast<int>(sizes.e),
                        static_cast<int>(q.size(1)),
                        static_cast<int>(parts.count),
                        static_cast<int>(parts.length),
                        static_cast<int>(sizes.n)};
  const bool encoded = q.dtype == f16 || !is_plain(encodings.q) || !is_plain(encodings.g);
  const auto kernel = q.dtype == f16 ? gate_queries<__half, true>
                      : encoded      ? gate_queries<__nv_bfloat16, true>
                                     : gate_queries<__nv_bfloat16, false>;
  run(Queue(q), kernel, static_cast<unsigned>(sizes.units * parts.count), threads,
      tile_bytes(2 * stages + (encoded ? 2 : 0) + (qkv.defined ? 1 : 0), count), queries);
}

}  // namespace
}  // namespace flao_mma

bool flao_forward_by_tensor_cores(const View& q, const View& k, const View& v, const View& g,
                                  const View& kv, const View& qkv, const View& o,
                                  const FlaoEncodings& encodings, const FlaoSpace& space) {
  using namespace flao_mma;
  if (q.dtype != bf16 && q.dtype != f16) return false;
  for (const View* x : {&q, &k, &v, &g, &qkv, &o}) {
    if (!takes_rows(*x, q.dtype)) return false;
  }
  const FlaoSizes sizes{
      q.size(0) * q.size(1), q.size(2), k.size(2), q.size(3), kv.size(2), v.size(3)};
  if (!takes_encodings(encodings) || !takes_sizes(sizes)) return false;
  multiply_keys(k, v, kv, sizes, encodings, space);
  run_queries(q, g, kv, qkv, o, sizes, encodings);
  return true;
}

}  // namespace on_cuda

void register_cuda_flao_mma() {}

}  // namespace quipu
