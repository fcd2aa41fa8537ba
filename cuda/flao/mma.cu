// Gated linear attention by tensor cores, forward: kv = k~^T v~ (mma_keys.cu), then o = g~ * (q~
// kv) in one pass. There a block keeps kv as B fragments in registers, a strip of 16 columns a
// warp, and loads its part of the queries in tiles of 32 through three stages of shared memory. The
// epilogue applies the gate to the accumulators; o overwrites g in shared memory and is stored from
// there, 16 bytes a thread. q and g are read once, o is written once; bound by memory.
//
// sass gate_queries: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDGSTS.E.BYPASS.128 STG.E.128; forbid
// STL LDL LD.E$ ST.E$; registers 128
//
// sass gate_queries<.*false>: blocks 2@80,90 1@86,89,120; dynamic 57344
//
// sass gate_queries<.*true>: blocks 2@80,90 1@86,89,120; dynamic 74752
#include "mma.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int threads = 256, stages = 3;

/// Layout of shared memory: stages of raw tiles, then the encoded tile, the bf16 residual of kv and
/// a sin/cos table, or, without encoding, a tile of qkv.
template <bool encoded>
struct SharedLayout {
  static constexpr int rows = encoded ? 16 : 32;
  using RowTile = Tile<rows>;
  static constexpr std::size_t bytes(bool has_qkv) {
    constexpr std::size_t for_encoding =
        2 * RowTile::bytes + Tile<widest>::bytes + sincos_bytes(rows);
    return stages * 2 * RowTile::bytes + (encoded ? for_encoding : has_qkv ? RowTile::bytes : 0);
  }
  uint4* base = dynamic_shared<uint4>();
  __device__ __forceinline__ RowTile q(int t) const {
    return {base + t % stages * 2 * RowTile::size};
  }
  __device__ __forceinline__ RowTile g(int t) const { return {q(t).data + RowTile::size}; }
  __device__ __forceinline__ SplitTile<rows> encoded_q() const {
    uint4* const high = base + stages * 2 * RowTile::size;
    return {{high}, {high + RowTile::size}};
  }
  __device__ __forceinline__ Tile<widest> residual() const {
    return {encoded_q().low.data + RowTile::size};
  }
  __device__ __forceinline__ float4* sincos() const {
    return reinterpret_cast<float4*>(residual().data + Tile<widest>::size);
  }
  /// Where qkv of a tile goes. q is read once more as an operand, encoded or raw; of both places
  /// the other one is free. A place is a distance, as the compiler does not see of two pointers
  /// that both are to shared memory.
  __device__ __forceinline__ RowTile qkv(int t, const SplitTile<rows>& operand) const {
    const bool is_encoded = operand.high.data == encoded_q().high.data;
    return {base + (is_encoded ? t % stages : stages) * 2 * RowTile::size};
  }
};
constexpr std::size_t reserved_bytes = 1024;  // of a block, by the system
template <bool encoded>
constexpr bool two_blocks_fit = 2 * (SharedLayout<encoded>::bytes(true) +
                                     SharedLayout<encoded>::rows * sizeof(RowSoftmax) +
                                     reserved_bytes) <=
                                164 * 1024;
static_assert(two_blocks_fit<false> && two_blocks_fit<true>);  // on a multiprocessor of an A100

struct Queries {
  Rows q, g, o, qkv;
  Encoding q_encoding;
  Act g_act;
  const float* kv;  // (units, width, e)
  int e;
  Split split;
};

/// Epilogue of a warp's 16 x 16 accumulators z = q~ kv: z goes to the tile qkv, if there is one,
/// and o = g~ * z replaces g.
template <class E, int rows>
__device__ __forceinline__ void gate(const float (&product)[2][4], Act act, int strip, int e,
                                     int first_row, const Tile<rows>& g, const Tile<rows>& qkv,
                                     const RowSoftmax* stats) {
  const Thread self;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, row = first_row + self.group + i % 2 * 8;
    const int column = strip_column(strip, half, e) + 2 * self.member;
    const float first = product[half][i % 2 * 2], second = product[half][i % 2 * 2 + 1];
    if (qkv.data != nullptr) qkv.pair(row, column) = packed<E>(first, second);
    const float2 x = unpacked<E>(g.pair(row, column));
    const RowSoftmax sum = act == Act::softmax ? stats[row] : RowSoftmax{0.0f, 1.0f};
    g.pair(row, column) =
        packed<E>(activated(act, x.x, sum) * first, activated(act, x.y, sum) * second);
  }
}

/// Stores the part's rows from number `done` on, 16 bytes a thread.
template <int rows>
__device__ __forceinline__ void store_rows(const Tile<rows>& from, const Rows& to, const Part& part,
                                           int done, int features) {
  const int start = part.start(to) + done * to.step[2];
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < Tile<rows>::size; i += threads) {
    const int row = i / Tile<rows>::chunks, chunk = i % Tile<rows>::chunks;
    if (row >= part.end - part.first - done || chunk * 8 >= features) continue;
    to.data[start + row * to.step[2] + chunk] = from.chunk(row, chunk);
  }
}

template <class E, bool encoded>
__global__ void __launch_bounds__(threads, 2) gate_queries(const Queries p) {
  using R = SharedLayout<encoded>;
  __shared__ RowSoftmax stats[R::rows];
  const R smem;
  const Part part(p.split);
  const int width = p.q_encoding.width, e = p.e, tiles = part.tiles(R::rows);
  const int strip = static_cast<int>(threadIdx.x / warp_size);
  const int of_q = part.fetched<threads>(p.q), of_g = part.fetched<threads>(p.g);
  const auto fetch = [&](int t) {
    if (t >= tiles) return;
    part.fetch<threads>(smem.q(t), p.q, of_q, t * R::rows, p.q_encoding.features);
    part.fetch<threads>(smem.g(t), p.g, of_g, t * R::rows, e);
  };
  fetch_first<stages - 1>(fetch);
  __syncwarp();  // rows may be shorter than the lanes reach
  const float* const matrix = p.kv + static_cast<std::int64_t>(part.unit) * width * e;
  Strip<encoded> kv;
  if (strip * 16 < e) kv.template load<false>(matrix, e, width, strip, e);
  if constexpr (encoded) fill_residual<threads>(smem.residual(), matrix, width, e);
  for (int t = 0; t < tiles; ++t) {
    fetch_next<stages - 1>(t, fetch);
    const int token = part.first + t * R::rows;
    SplitTile<R::rows> q{smem.q(t), {nullptr}};
    if constexpr (encoded) {
      q = encode_operand<E, threads>(p.q_encoding, q.high, smem.encoded_q(),
                                     {smem.sincos(), nullptr}, part.head, token, part.end);
      if (p.g_act == Act::softmax) tile_softmax<E, threads>(smem.g(t), e, stats);
      __syncthreads();
    }
    Tile<R::rows> qkv{nullptr};
    if (p.qkv.data != nullptr) qkv = smem.qkv(t, q);
    for (int row = 0; row < R::rows && strip * 16 < e; row += 16) {
      float product[2][4] = {};
      multiply<false>(product, q, row, kv, smem.residual(), strip, e, width);
      gate<E>(product, encoded ? p.g_act : Act::none, strip, e, row, smem.g(t), qkv, stats);
    }
    __syncthreads();
    store_rows(smem.g(t), p.o, part, t * R::rows, e);
    if (qkv.data != nullptr) store_rows(qkv, p.qkv, part, t * R::rows, e);
  }
}

void run_queries(const View& q, const View& g, const View& kv, const View& qkv, const View& o,
                 const FlaoSizes& sizes, const FlaoTransforms& transforms) {
  const FlaoParts parts = parts_without_sums(sizes.n, sizes.units);
  const Queries queries{Rows(q),
                        Rows(g),
                        Rows(o),
                        Rows(qkv),
                        Encoding(transforms.q, sizes.d, sizes.n),
                        transforms.g.act,
                        kv.as<float>(),
                        static_cast<int>(sizes.e),
                        Split(parts, q.size(1), sizes.n)};
  const bool encoded = are_encoded(q.dtype, transforms.q, transforms.g);
  const auto kernel = q.dtype == f16 ? gate_queries<__half, true>
                      : encoded      ? gate_queries<__nv_bfloat16, true>
                                     : gate_queries<__nv_bfloat16, false>;
  const bool has_qkv = qkv.defined;
  const std::size_t shared =
      encoded ? SharedLayout<true>::bytes(has_qkv) : SharedLayout<false>::bytes(has_qkv);
  run(Queue(q), kernel, static_cast<unsigned>(sizes.units * parts.count), threads, shared, queries);
}

}  // namespace
}  // namespace flao_mma

bool try_flao_forward_mma(const View& q, const View& k, const View& v, const View& g,
                          const View& kv, const View& qkv, const View& o,
                          const FlaoTransforms& transforms, const FlaoWorkspace& workspace,
                          const FlaoSizes& sizes) {
  using namespace flao_mma;
  for (const View* x : {&q, &k, &v, &g, &qkv, &o}) {
    if (!supports_rows(*x, q.dtype)) return false;
  }
  if (!flao_suits_tensor_cores(sizes, transforms, q.dtype)) return false;
  multiply_keys(k, v, kv, sizes, transforms, workspace);
  run_queries(q, g, kv, qkv, o, sizes, transforms);
  return true;
}

}  // namespace on_cuda
}  // namespace quipu::detail
