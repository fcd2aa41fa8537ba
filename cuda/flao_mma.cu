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

constexpr int threads = 256, stages = 3;

/// What lies in shared memory: raw tiles, the encoded one, what is left of kv,
/// turns, a tile of qkv.
template <bool encoded>
struct Room {
  static constexpr int rows = encoded ? 16 : 32, tile = rows * pitch;
  static constexpr int fixed =
      stages * 2 * tile + (encoded ? 2 * tile + widest * pitch + rows * turn_pitch * 4 : 0);
  static constexpr std::size_t bytes(bool has_qkv) {
    return 4 * static_cast<std::size_t>(fixed + (has_qkv ? tile : 0));
  }
  unsigned* base = dynamic_shared<unsigned>();
  __device__ __forceinline__ unsigned* q(int t) const { return base + t % stages * 2 * tile; }
  __device__ __forceinline__ unsigned* g(int t) const { return q(t) + tile; }
  __device__ __forceinline__ Pieces encoded_q() const {
    unsigned* const high = base + stages * 2 * tile;
    return {high, high + tile};
  }
  __device__ __forceinline__ unsigned* low() const { return encoded_q().low + tile; }
  __device__ __forceinline__ float4* turns() const {
    return reinterpret_cast<float4*>(low() + widest * pitch);
  }
  __device__ __forceinline__ unsigned* qkv() const { return base + fixed; }
};

struct Queries {
  Rows q, g, o, qkv;
  Encoding q_encoding;
  Act g_act;
  const float* kv;  // (units, width, e)
  int e, heads, parts, length, tokens;
};

/// A warp's strip of 16 rows of q~ kv takes its place in qkv, if there is one, and times g~ in g.
template <class E>
__device__ __forceinline__ void gate(const float (&product)[2][4], Act act, int strip, int e,
                                     int first_row, unsigned* g, unsigned* qkv,
                                     const RowSum* found) {
  const Lane lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, row = first_row + lane.group + i % 2 * 8;
    const int word = row * pitch + strip_column(strip, half, e) / 2 + lane.member;
    const float first = product[half][i % 2 * 2], second = product[half][i % 2 * 2 + 1];
    if (qkv != nullptr) qkv[word] = packed<E>(first, second);
    const float2 x = unpacked<E>(g[word]);
    const RowSum sum = act == Act::softmax ? found[row] : RowSum{0.0f, 1.0f};
    g[word] = packed<E>(activated(act, x.x, sum) * first, activated(act, x.y, sum) * second);
  }
}

/// Rows of a tile go where they belong.
template <int count>
__device__ __forceinline__ void deliver(const unsigned* from, const Rows& to, int start, int rows,
                                        int features) {
  constexpr int vectors = widest / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < count * vectors; i += threads) {
    const int row = i / vectors, vector = i % vectors;
    if (row >= rows || vector * 8 >= features) continue;
    to.data[start + row * to.step[2] + vector] =
        reinterpret_cast<const uint4*>(from)[row * (pitch / 4) + vector];
  }
}

template <class E, bool encoded>
__global__ void __launch_bounds__(threads, 2) gate_queries(const Queries p) {
  using R = Room<encoded>;
  __shared__ RowSum found[R::rows];
  const R room;
  const Part part(p.heads, p.parts, p.length, p.tokens);
  const int width = p.q_encoding.width, e = p.e, tiles = part.tiles(R::rows);
  const int strip = static_cast<int>(threadIdx.x / warp_size);
  Source<R::rows, threads> q_source(p.q, part), g_source(p.g, part);
  const auto fetch_stage = [&](int t) {
    const int rows = part.end - part.first - t * R::rows;
    if (t < tiles) {
      q_source.fetch(room.q(t), p.q, rows, p.q_encoding.features);
      g_source.fetch(room.g(t), p.g, rows, e);
    }
    ptx::copy_commit();
  };
  for (int t = 0; t < stages - 1; ++t) fetch_stage(t);
  __syncwarp();  // rows may be shorter than the lanes reach
  unsigned* const qkv = p.qkv.data != nullptr ? room.qkv() : nullptr;
  const float* const matrix = p.kv + static_cast<std::int64_t>(part.unit) * width * e;
  Strip<encoded> kv;
  if (strip * 16 < e) kv.template load<false>(matrix, e, width, strip, e);
  if constexpr (encoded) fill_low<threads>(room.low(), matrix, width, e);
  for (int t = 0; t < tiles; ++t) {
    ptx::copy_wait<stages - 2>();
    __syncthreads();
    fetch_stage(t + stages - 1);
    const int token = part.first + t * R::rows;
    Pieces q{room.q(t), nullptr};
    if constexpr (encoded) {
      q = entered<E, R::rows, threads>(p.q_encoding, q.high, room.encoded_q(),
                                       {room.turns(), nullptr}, part.head, token, part.end);
      if (p.g_act == Act::softmax) measure<E, R::rows, threads>(room.g(t), e, found);
      __syncthreads();
    }
    for (int row = 0; row < R::rows && strip * 16 < e; row += 16) {
      float product[2][4] = {};
      const unsigned* const low = encoded ? low_of_strip<false>(room.low(), strip, e) : nullptr;
      multiply<false>(product, q.from_row(row), kv, low, width);
      gate<E>(product, encoded ? p.g_act : Act::none, strip, e, row, room.g(t), qkv, found);
    }
    __syncthreads();
    const int done = t * R::rows, rows = part.end - token;
    deliver<R::rows>(room.g(t), p.o, part.start(p.o) + done * p.o.step[2], rows, e);
    if (qkv != nullptr) {
      deliver<R::rows>(qkv, p.qkv, part.start(p.qkv) + done * p.qkv.step[2], rows, e);
    }
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
  const bool has_qkv = qkv.defined;
  const std::size_t shared = encoded ? Room<true>::bytes(has_qkv) : Room<false>::bytes(has_qkv);
  run(Queue(q), kernel, static_cast<unsigned>(sizes.units * parts.count), threads, shared, queries);
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
