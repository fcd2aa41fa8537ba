// Gated linear attention by tensor cores, backward, the queries: d_g = d_o * (q~ kv), d_q = (d_o *
// g~) kv^T and d_kv = q~^T (d_o * g~) in one pass. A block takes a part of a unit's queries, 16 at
// a time through four stages of shared memory. One half of its warps keeps kv in registers, a strip
// of 16 columns each, makes q~ kv and with it d_g and d_o * g~; the other half keeps the transposed
// kv and makes d_q of the tile before, while all of them sum d_kv in registers. q, g and d_o are
// read once, gradients are written once, or read, added to and written; bound by memory. Where a
// unit has several parts, their sums of d_kv are added in order afterwards.
//
// sass differentiate_queries: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
#include "flao_mma_back.cuh"
#include "runtime/run.h"

namespace quipu {
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
  int e, heads, parts, length, tokens;
};

/// What lies in shared memory.
struct Room {
  unsigned* base = dynamic_shared<unsigned>();
  __device__ __forceinline__ unsigned* q(int t) const { return base + t % stages * 3 * back_tile; }
  __device__ __forceinline__ unsigned* g(int t) const { return q(t) + back_tile; }
  __device__ __forceinline__ unsigned* d_o(int t) const { return q(t) + 2 * back_tile; }
  /// The gradient of q~ kv.
  __device__ __forceinline__ Pieces d_product(int t) const {
    unsigned* const high = base + stages * 3 * back_tile + t % 2 * 2 * back_tile;
    return {high, high + back_tile};
  }
  __device__ __forceinline__ float* gradients(int group) const {
    return reinterpret_cast<float*>(d_product(1).low + back_tile) + group * wide_tile;
  }
  __device__ __forceinline__ Pieces encoded() const {
    unsigned* const high = reinterpret_cast<unsigned*>(gradients(1) + wide_tile);
    return {high, high + back_tile};
  }
  static constexpr std::size_t bytes(bool encoded) {
    return tile_bytes(stages * 3 + 4 + (encoded ? 2 : 0), back_rows) + 2 * wide_tile * 4;
  }
};

/// What softmax over the features knows; of q also for the tile before.
struct Found {
  RowSum q[2][back_rows], g[back_rows];
  float means[2][strips * back_rows];
};

/// A strip of q~ kv becomes the gradient of g~, and what it is multiplied with that of q~ kv.
template <class E>
__device__ __forceinline__ void through_gate(float (&d)[2][4], const Queries& p, const Room& room,
                                             int t, int strip, const Found& found) {
  const Pieces d_product = room.d_product(t);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Spot spot(i, strip, p.e);
    const float2 up = unpacked<E>(room.d_o(t)[spot.word()]);
    const float2 x = unpacked<E>(room.g(t)[spot.word()]);
    const RowSum sum = p.g_act == Act::softmax ? found.g[spot.row] : RowSum{0.0f, 1.0f};
    d[spot.half][spot.at] *= up.x;
    d[spot.half][spot.at + 1] *= up.y;
    put_pair(d_product, spot.word(), up.x * activated(p.g_act, x.x, sum),
             up.y * activated(p.g_act, x.y, sum));
  }
}

template <class E, bool encoded>
__global__ void __launch_bounds__(back_threads, 1) differentiate_queries(const Queries p) {
  __shared__ Found found;
  const Room room;
  const Part part(p.heads, p.parts, p.length, p.tokens);
  const Worker worker;
  const bool is_first = worker.group == 0;
  const int width = p.q_encoding.width, e = p.e, tiles = part.tiles(back_rows);
  const bool softmax = encoded && (p.q_encoding.act == Act::softmax || p.g_act == Act::softmax);
  const auto fetch_stage = [&](int t) {
    const int first = part.first + t * back_rows;
    if (t < tiles) {
      const auto get = [&](unsigned* tile, const Rows& x, int features) {
        fetch<back_rows, back_threads>(tile, part.rows(x), x.step[2], first, part.end, features);
      };
      get(room.q(t), p.q, p.q_encoding.features);
      get(room.g(t), p.g, e);
      get(room.d_o(t), p.d_o, e);
    }
    ptx::copy_commit();
  };
  for (int t = 0; t < stages - 2; ++t) fetch_stage(t);
  // The first group's strip is one of kv, the second one's is of the transposed.
  const int columns = is_first ? e : width, depth = is_first ? width : e;
  const bool multiplies = (is_first ? p.d_g : p.d_q).data != nullptr && worker.strip * 16 < columns;
  Strip kv;
  const float* const matrix = p.kv + static_cast<std::int64_t>(part.unit) * width * e;
  if (multiplies && is_first) kv.load<false>(matrix, e, depth, worker.strip, columns);
  if (multiplies && !is_first) kv.load<true>(matrix, e, depth, worker.strip, columns);
  OuterSum<__nv_bfloat16> d_kv;
  for (int t = 0; t <= tiles; ++t) {
    ptx::copy_wait<stages - 3>();
    __syncthreads();
    fetch_stage(t + stages - 2);
    const int token = part.first + t * back_rows;
    Outlet<E> outlet;
    if (is_first && t < tiles) outlet.open(p.d_g, part, token, e);
    if (!is_first && t > 0) {
      outlet.open(p.d_q, part, token - back_rows, p.q_encoding.features);
    }
    Pieces q{room.q(t), nullptr};
    if constexpr (encoded) {
      const bool plain = p.q_encoding.act == Act::none && p.q_encoding.kind == LrpeKind::none;
      if (t < tiles && (!plain || std::is_same_v<E, __half>)) {
        q = room.encoded();
        encode<E, back_rows, back_threads>(p.q_encoding, room.q(t), q, found.q[t % 2], part.head,
                                           token, part.end);
      }
      if (p.g_act == Act::softmax && t < tiles) {
        measure<E, back_rows, back_threads>(room.g(t), e, found.g);
      }
      __syncthreads();
    }
    float d[2][4] = {};
    const bool has_tile = is_first ? t < tiles : t > 0;
    const bool gates = is_first && has_tile && worker.strip * 16 < e;
    const bool returns = !is_first && has_tile && multiplies;
    float* const means = found.means[worker.group];
    if (multiplies && has_tile) multiply(d, is_first ? q : room.d_product(t - 1), kv, depth);
    if (gates) {
      through_gate<E>(d, p, room, t, worker.strip, found);
      if (encoded && p.g_act == Act::softmax) {
        add_to_means<E>(d, room.g(t), found.g, means, worker.strip, e, 4);
      }
    }
    const int pairs = pairs_of(p.q_encoding.kind);
    if (encoded && returns) {
      if (p.q_encoding.kind != LrpeKind::none) {
        decode(d, p.q_encoding, worker.strip, part.head, token - back_rows);
      }
      if (p.q_encoding.act == Act::softmax) {
        add_to_means<E>(d, room.q(t - 1), found.q[(t + 1) % 2], means, worker.strip, width, pairs);
      }
    }
    if (softmax) __syncthreads();
    if (gates) {
      leave<E>(d, encoded ? p.g_act : Act::none, room.g(t), found.g, means, room.gradients(0),
               worker.strip, e, 4);
    }
    if (returns) {
      leave<E>(d, encoded ? p.q_encoding.act : Act::none, room.q(t - 1), found.q[(t + 1) % 2],
               means, room.gradients(1), worker.strip, width, pairs);
    }
    __syncthreads();
    outlet.put(is_first ? p.d_g.wide : p.d_q.wide, is_first ? p.d_g.add : p.d_q.add,
               room.gradients(worker.group));
    if (p.d_kv != nullptr && t < tiles) d_kv.add(q, room.d_product(t), width, e);
  }
  if (p.d_kv == nullptr) return;
  d_kv.store(p.d_kv + static_cast<std::int64_t>(blockIdx.x) * width * e, width, e);
}

}  // namespace

void differentiate_queries_of(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                              const FlaoGrads& grads, const FlaoEncodings& encodings,
                              const FlaoSpace& space) {
  const FlaoSizes& sizes = saved.sizes;
  const FlaoParts parts(sizes.n, sizes.units);
  const bool whole = parts.count == 1, wants_kv = grads.q.wanted() || grads.g.wanted();
  const Queries queries{Rows(saved.q),
                        Rows(saved.g),
                        Rows(d_o),
                        GradRows(grads.q),
                        GradRows(grads.g),
                        Encoding(encodings.q, sizes.d, sizes.n),
                        encodings.g.act,
                        wants_kv ? saved.kv.as<float>() : nullptr,
                        !d_kv.defined ? nullptr : (whole ? d_kv : space.sums).as<float>(),
                        static_cast<int>(sizes.e),
                        static_cast<int>(d_o.size(1)),
                        static_cast<int>(parts.count),
                        static_cast<int>(parts.length),
                        static_cast<int>(sizes.n)};
  const bool encoded = d_o.dtype == f16 || !is_plain(encodings.q) || !is_plain(encodings.g);
  const auto kernel = d_o.dtype == f16 ? differentiate_queries<__half, true>
                      : encoded        ? differentiate_queries<__nv_bfloat16, true>
                                       : differentiate_queries<__nv_bfloat16, false>;
  run(Queue(d_o), kernel, static_cast<unsigned>(sizes.units * parts.count), back_threads,
      Room::bytes(encoded), queries);
  if (d_kv.defined && !whole) add_flao_parts(space.sums, parts.count, d_kv);
}

}  // namespace flao_mma

bool flao_backward_by_tensor_cores(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                                   const FlaoGrads& grads, const FlaoEncodings& encodings,
                                   const FlaoSpace& space) {
  using namespace flao_mma;
  if (d_o.dtype != bf16 && d_o.dtype != f16) return false;
  for (const View* x : {&d_o, &saved.q, &saved.k, &saved.v, &saved.g}) {
    if (!takes_rows(*x, d_o.dtype)) return false;
  }
  for (const Grad* x : {&grads.q, &grads.k, &grads.v, &grads.g}) {
    if (!takes_grad(*x, d_o.dtype)) return false;
  }
  const bool by_queries = d_kv.defined || grads.q.wanted() || grads.g.wanted();
  const bool multiplies = grads.q.wanted() || grads.g.wanted();
  if (!takes_encodings(encodings) || !takes_sizes(saved.sizes)) return false;
  if (by_queries && (!saved.q.defined || !saved.g.defined)) return false;
  if (multiplies && !saved.kv.defined) return false;
  if (saved.fill_kv) multiply_keys(saved.k, saved.v, saved.kv, saved.sizes, encodings, space);
  if (by_queries) differentiate_queries_of(d_o, saved, d_kv, grads, encodings, space);
  if (d_kv.defined) differentiate_keys_of(d_o.dtype, saved, d_kv, grads, encodings);
  return true;
}

}  // namespace on_cuda

void register_cuda_flao_mma_backward() {}

}  // namespace quipu
