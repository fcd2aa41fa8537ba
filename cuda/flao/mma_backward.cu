// Gated linear attention by tensor cores, backward, the queries: d_g = d_o * (q~ kv), d_q = (d_o *
// g~) kv^T and d_kv = q~^T (d_o * g~) in one pass. A block has a part of a unit's queries, in tiles
// of 16 through four stages of shared memory. Warps are specialised: one half keeps kv in
// registers, a strip of 16 columns each, and makes q~ kv and from it d_g and d_o * g~; the other
// half keeps kv^T and makes d_q of the tile before. All of them accumulate d_kv in registers. q, g
// and d_o are read once, gradients are written once, or read, added to and written; bound by
// memory. Where a unit has several parts (split-K), a second kernel adds their d_kv in order.
//
// sass differentiate_queries: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
//
// sass differentiate_queries<.*false>: blocks 1; dynamic 98304
//
// sass differentiate_queries<.*true>: blocks 1@80,90; dynamic 124928
#include "mma_backward.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int stages = 4;

struct Queries {
  Rows q, g, d_o;
  GradRows d_q, d_g;
  Encoding q_encoding;
  Act g_act;
  const float* kv;  // (units, width, e), null where neither d_q nor d_g is wanted
  float* d_kv;      // (units, parts, width, e), null where it is not wanted
  int e;
  Split split;
};

/// Layout of shared memory.
struct SharedLayout {
  uint4* base = dynamic_shared<uint4>();
  __device__ __forceinline__ RowTile tile(int i) const { return {base + i * RowTile::size}; }
  __device__ __forceinline__ RowTile q(int t) const { return tile(t % stages * 3); }
  __device__ __forceinline__ RowTile g(int t) const { return tile(t % stages * 3 + 1); }
  __device__ __forceinline__ RowTile d_o(int t) const { return tile(t % stages * 3 + 2); }
  /// The gradient of q~ kv, double buffered.
  __device__ __forceinline__ Operand d_product(int t) const {
    return {tile(stages * 3 + t % 2 * 2), tile(stages * 3 + t % 2 * 2 + 1)};
  }
  /// The bf16 residual of kv.
  __device__ __forceinline__ Tile<widest> residual() const { return {tile(stages * 3 + 4).data}; }
  __device__ __forceinline__ Operand encoded() const {
    uint4* const high = residual().data + Tile<widest>::size;
    return {{high}, {high + RowTile::size}};
  }
  __device__ __forceinline__ float4* sincos(int t) const {
    return reinterpret_cast<float4*>(encoded().low.data + RowTile::size) +
           t % 2 * tile_rows * sincos_pitch;
  }
  /// Gradients overwrite what they were made from.
  __device__ __forceinline__ GradTile d_g(int t) const { return {g(t), d_o(t)}; }
  __device__ __forceinline__ GradTile d_q(int t) const { return {q(t), d_o(t)}; }
  static constexpr std::size_t bytes(bool encoded) {
    return (stages * 3 + 4) * RowTile::bytes + Tile<widest>::bytes +
           (encoded ? 2 * (RowTile::bytes + sincos_bytes(tile_rows)) : 0);
  }
};

/// Statistics of softmax over the features of a tile; those of q also of the tile before.
struct alignas(8) TileStats {
  RowSoftmax q[2][tile_rows], g[tile_rows];
  float means[2][strips * tile_rows];
  Part part;  // not of a tile, but registers are short
};

/// d holds z = q~ kv and becomes d_g~ = d_o * z; d_z = d_o * g~ goes to shared memory.
template <class E>
__device__ __forceinline__ void gate_gradient(float (&d)[2][4], Act act, int e,
                                              const SharedLayout& smem, int t, int strip,
                                              const TileStats& stats) {
  const Operand d_product = smem.d_product(t);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const FragmentPair at(i, strip, e);
    const float2 up = unpacked<E>(at.in(smem.d_o(t)));
    const float2 x = unpacked<E>(at.in(smem.g(t)));
    const RowSoftmax sum = act == Act::softmax ? stats.g[at.row] : RowSoftmax{0.0f, 1.0f};
    d[at.half][at.first] *= up.x;
    d[at.half][at.first + 1] *= up.y;
    put_pair(d_product, at.row, at.column, up.x * activated(act, x.x, sum),
             up.y * activated(act, x.y, sum));
  }
}

template <class E, bool encoded>
__global__ void __launch_bounds__(backward_threads, 1) differentiate_queries(const Queries p) {
  __shared__ TileStats stats;
  const SharedLayout smem;
  const Part& part = stats.part;
  if (threadIdx.x == 0) stats.part = Part(p.split);
  __syncthreads();
  const WarpRole role;
  const bool is_first = role.group == 0;
  const int width = p.q_encoding.width, e = p.e, tiles = part.tiles(tile_rows);
  const bool softmax = encoded && (p.q_encoding.act == Act::softmax || p.g_act == Act::softmax);
  constexpr int half = backward_threads / 2;
  const int own = is_first ? part.fetched<half>(p.g) : part.fetched<half>(p.q),
            of_d_o = part.fetched<half>(p.d_o);
  const auto fetch = [&](int t) {
    if (t >= tiles) return;
    if (is_first) {
      part.fetch<half>(smem.g(t), p.g, own, t * tile_rows, e);
      part.fetch<half>(smem.d_o(t), p.d_o, of_d_o, t * tile_rows, e);
    } else {
      part.fetch<half>(smem.q(t), p.q, own, t * tile_rows, p.q_encoding.features);
    }
  };
  fetch_first<stages - 2>(fetch);
  __syncwarp();  // rows may be shorter than the lanes reach
  WarpStrip<true> kv(width, e);
  const bool multiplies = (is_first ? p.d_g : p.d_q).data != nullptr && kv.is_active();
  const float* const matrix = p.kv + static_cast<std::int64_t>(part.unit) * width * e;
  if (multiplies) kv.load(matrix);
  if (p.kv != nullptr) fill_residual<backward_threads>(smem.residual(), matrix, width, e);
  GradStore<E> store =
      is_first ? GradStore<E>(p.d_g, part, e) : GradStore<E>(p.d_q, part, p.q_encoding.features);
  OuterProduct<__nv_bfloat16> d_kv;
  for (int t = 0; t <= tiles; ++t) {
    fetch_next<stages - 2>(t, fetch);
    const int token = part.first + t * tile_rows;
    Operand q{smem.q(t), {nullptr}};
    if constexpr (encoded) {
      if (t < tiles) {
        q = encode_operand<E, backward_threads>(p.q_encoding, q.high, smem.encoded(),
                                                {smem.sincos(t), stats.q[t % 2]}, part.head, token,
                                                part.end);
      }
      if (p.g_act == Act::softmax && t < tiles) {
        tile_softmax<E, backward_threads>(smem.g(t), e, stats.g);
      }
      __syncthreads();
    }
    // First group: d_g of this tile. Second group: d_q of the tile before.
    const int rows = part.end - token + (is_first ? 0 : tile_rows);
    const bool has_tile = is_first ? t < tiles : t > 0;
    uint4 old{};
    const auto read = [&] { old = is_first ? store.read(p.d_g, rows) : store.read(p.d_q, rows); };
    if (!encoded && has_tile) read();
    float d[2][4] = {};
    const bool works = has_tile && kv.is_active();
    if (works && multiplies)
      kv.multiply_by(d, is_first ? q : smem.d_product(t + 1), smem.residual());
    if (encoded && has_tile) read();  // not earlier: register pressure
    if (is_first && works) {
      gate_gradient<E>(d, encoded ? p.g_act : Act::none, e, smem, t, role.strip, stats);
    }
    const Act act = !encoded ? Act::none : is_first ? p.g_act : p.q_encoding.act;
    const int pairs = is_first ? 4 : pairs_of(p.q_encoding.kind);
    const GradTile out = is_first ? smem.d_g(t) : smem.d_q(t + stages - 1);
    const RowSoftmax* const sums = is_first ? stats.g : stats.q[(t + 1) % 2];
    float* const means = stats.means[role.group];
    if (encoded && !is_first && works && p.q_encoding.kind != LrpeKind::none) {
      rotate_back(d, smem.sincos(t + 1), role.strip);
    }
    if (works && act == Act::softmax) {
      add_row_means<E>(d, out.even, sums, means, role.strip, kv.columns, pairs);
    }
    if (softmax) __syncthreads();
    if (works) {
      activation_gradient<E>(d, act, out.even, sums, means, out, role.strip, kv.columns, pairs);
    }
    __syncthreads();
    if (is_first && has_tile) store.put(p.d_g, rows, out, old);
    if (!is_first && has_tile) store.put(p.d_q, rows, out, old);
    if (p.d_kv != nullptr && t < tiles) d_kv.add(q, smem.d_product(t), 0, width, e);
  }
  if (p.d_kv == nullptr) return;
  d_kv.store(p.d_kv + static_cast<std::int64_t>(blockIdx.x) * width * e, width, e);
}

}  // namespace

void differentiate_queries_of(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                              const FlaoGrads& grads, const FlaoTransforms& transforms,
                              const FlaoWorkspace& workspace) {
  const FlaoSizes& sizes = saved.sizes;
  const FlaoParts parts(sizes.n, sizes.units);
  const bool whole = parts.count == 1, wants_kv = grads.q.wanted() || grads.g.wanted();
  const Queries queries{Rows(saved.q),
                        Rows(saved.g),
                        Rows(d_o),
                        GradRows(grads.q),
                        GradRows(grads.g),
                        Encoding(transforms.q, sizes.d, sizes.n),
                        transforms.g.act,
                        wants_kv ? saved.kv.as<float>() : nullptr,
                        !d_kv.defined ? nullptr : (whole ? d_kv : workspace.sums).as<float>(),
                        static_cast<int>(sizes.e),
                        Split(parts, d_o.size(1), sizes.n)};
  const bool encoded = are_encoded(d_o.dtype, transforms.q, transforms.g);
  const auto kernel = d_o.dtype == f16 ? differentiate_queries<__half, true>
                      : encoded        ? differentiate_queries<__nv_bfloat16, true>
                                       : differentiate_queries<__nv_bfloat16, false>;
  run(Queue(d_o), kernel, static_cast<unsigned>(sizes.units * parts.count), backward_threads,
      SharedLayout::bytes(encoded), queries);
  if (d_kv.defined && !whole) reduce_flao_parts(workspace.sums, parts.count, d_kv);
}

/// Rows of `features` numbers that exist but mean nothing: all are the first bytes of kv.
View stand_in(const View& d_o, const View& kv, std::int64_t features) {
  View rows = d_o;
  rows.data = kv.data;
  rows.shape[3] = features;
  rows.strides = {0, 0, 0, 1};
  return rows;
}

}  // namespace flao_mma

bool try_flao_backward_mma(const View& d_o, const FlaoSaved& given, const View& d_kv,
                           const FlaoGrads& grads, const FlaoTransforms& transforms,
                           const FlaoWorkspace& workspace) {
  using namespace flao_mma;
  FlaoSaved saved = given;
  for (const View* x : {&d_o, &given.q, &given.k, &given.v, &given.g}) {
    if (!supports_rows(*x, d_o.dtype)) return false;
  }
  for (const Grad* x : {&grads.q, &grads.k, &grads.v, &grads.g}) {
    if (!supports_grad(*x, d_o.dtype)) return false;
  }
  const bool by_queries = d_kv.defined || grads.q.wanted() || grads.g.wanted();
  const bool by_keys = grads.k.wanted() || grads.v.wanted();
  const bool multiplies = grads.q.wanted() || grads.g.wanted();
  if (!flao_suits_tensor_cores(saved.sizes, transforms, d_o.dtype)) return false;
  if (multiplies && !saved.kv.defined) return false;
  // Without activations d_q alone depends on no q and d_g alone on no g, so that they are not
  // saved. The kernel loads both.
  if (multiplies && !saved.q.defined) saved.q = stand_in(d_o, saved.kv, saved.sizes.d);
  if (multiplies && !saved.g.defined) saved.g = stand_in(d_o, saved.kv, saved.sizes.e);
  const std::size_t of_queries =
      SharedLayout::bytes(are_encoded(d_o.dtype, transforms.q, transforms.g)) + sizeof(TileStats);
  if (by_queries && !has_shared(d_o, of_queries)) return false;
  const bool keys_encoded = are_encoded(d_o.dtype, transforms.k, transforms.v);
  if (by_keys && !has_shared(d_o, shared_of_keys(keys_encoded))) return false;
  if (saved.fill_kv) multiply_keys(saved.k, saved.v, saved.kv, saved.sizes, transforms, workspace);
  if (by_queries) differentiate_queries_of(d_o, saved, d_kv, grads, transforms, workspace);
  if (by_keys) differentiate_keys_of(d_o.dtype, saved, d_kv, grads, transforms);
  return true;
}

}  // namespace on_cuda
}  // namespace quipu::detail
