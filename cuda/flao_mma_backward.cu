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
  /// What is left of kv.
  __device__ __forceinline__ unsigned* low() const { return d_product(1).low + back_tile; }
  __device__ __forceinline__ Pieces encoded() const {
    unsigned* const high = low() + widest * pitch;
    return {high, high + back_tile};
  }
  __device__ __forceinline__ float4* turns(int t) const {
    return reinterpret_cast<float4*>(encoded().low + back_tile) + t % 2 * back_rows * turn_pitch;
  }
  /// Gradients take the places of what they were made from.
  __device__ __forceinline__ GradTile d_g(int t) const { return {g(t), d_o(t)}; }
  __device__ __forceinline__ GradTile d_q(int t) const { return {q(t), d_o(t)}; }
  static constexpr std::size_t bytes(bool encoded) {
    return tile_bytes(stages * 3 + 4 + (encoded ? 2 : 0), back_rows) + tile_bytes(1, widest) +
           (encoded ? 2 * turn_bytes(back_rows) : 0);
  }
};

/// What softmax over the features knows; of q also for the tile before.
struct Found {
  RowSum q[2][back_rows], g[back_rows];
  float means[2][strips * back_rows];
};

/// A strip of q~ kv becomes the gradient of g~, and what it is multiplied with that of q~ kv.
template <class E>
__device__ __forceinline__ void through_gate(float (&d)[2][4], Act act, int e, const Room& room,
                                             int t, int strip, const Found& found) {
  const Pieces d_product = room.d_product(t);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Spot spot(i, strip, e);
    const float2 up = unpacked<E>(room.d_o(t)[spot.word()]);
    const float2 x = unpacked<E>(room.g(t)[spot.word()]);
    const RowSum sum = act == Act::softmax ? found.g[spot.row] : RowSum{0.0f, 1.0f};
    d[spot.half][spot.at] *= up.x;
    d[spot.half][spot.at + 1] *= up.y;
    put_pair(d_product, spot.word(), up.x * activated(act, x.x, sum),
             up.y * activated(act, x.y, sum));
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
  // The first group fetches g and d_o, the second one q.
  using Half = Source<back_rows, back_threads / 2>;
  Half own = is_first ? Half(p.g, part) : Half(p.q, part), upstream(p.d_o, part);
  const auto fetch_stage = [&](int t) {
    const int rows = part.end - part.first - t * back_rows;
    if (t < tiles) {
      if (is_first) {
        own.fetch(room.g(t), p.g, rows, e);
        upstream.fetch(room.d_o(t), p.d_o, rows, e);
      } else {
        own.fetch(room.q(t), p.q, rows, p.q_encoding.features);
      }
    }
    ptx::copy_commit();
  };
  for (int t = 0; t < stages - 2; ++t) fetch_stage(t);
  __syncwarp();  // rows may be shorter than the lanes reach
  WorkerStrip<true> kv(width, e);
  const bool multiplies = (is_first ? p.d_g : p.d_q).data != nullptr && kv.is_there();
  const float* const matrix = p.kv + static_cast<std::int64_t>(part.unit) * width * e;
  if (multiplies) kv.load(matrix);
  if (p.kv != nullptr) fill_low<back_threads>(room.low(), matrix, width, e);
  Outlet<E> outlet =
      is_first ? Outlet<E>(p.d_g, part, e) : Outlet<E>(p.d_q, part, p.q_encoding.features);
  OuterSum<__nv_bfloat16> d_kv;
  for (int t = 0; t <= tiles; ++t) {
    ptx::copy_wait<stages - 3>();
    __syncthreads();
    fetch_stage(t + stages - 2);
    const int token = part.first + t * back_rows;
    Pieces q{room.q(t), nullptr};
    if constexpr (encoded) {
      if (t < tiles) {
        q = entered<E, back_rows, back_threads>(p.q_encoding, q.high, room.encoded(),
                                                {room.turns(t), found.q[t % 2]}, part.head, token,
                                                part.end);
      }
      if (p.g_act == Act::softmax && t < tiles) {
        measure<E, back_rows, back_threads>(room.g(t), e, found.g);
      }
      __syncthreads();
    }
    // The gradients of the gate's rows, or of the queries' of the tile before.
    const int rows = part.end - token + (is_first ? 0 : back_rows);
    const bool delivers = is_first ? t < tiles : t > 0;
    uint4 old{};
    const auto read = [&] { old = is_first ? outlet.read(p.d_g, rows) : outlet.read(p.d_q, rows); };
    if (!encoded && delivers) read();
    float d[2][4] = {};
    const bool works = delivers && kv.is_there();
    if (works && multiplies) kv.multiply_by(d, is_first ? q : room.d_product(t + 1), room.low());
    if (encoded && delivers) read();  // later, for want of registers
    if (is_first && works) {
      through_gate<E>(d, encoded ? p.g_act : Act::none, e, room, t, worker.strip, found);
    }
    const Act act = !encoded ? Act::none : is_first ? p.g_act : p.q_encoding.act;
    const int pairs = is_first ? 4 : pairs_of(p.q_encoding.kind);
    const GradTile out = is_first ? room.d_g(t) : room.d_q(t + stages - 1);
    const RowSum* const sums = is_first ? found.g : found.q[(t + 1) % 2];
    float* const means = found.means[worker.group];
    if (encoded && !is_first && works && p.q_encoding.kind != LrpeKind::none) {
      decode(d, room.turns(t + 1), worker.strip);
    }
    if (works && act == Act::softmax) {
      add_to_means<E>(d, out.even, sums, means, worker.strip, kv.columns, pairs);
    }
    if (softmax) __syncthreads();
    if (works) leave<E>(d, act, out.even, sums, means, out, worker.strip, kv.columns, pairs);
    __syncthreads();
    if (is_first && delivers) outlet.put(p.d_g, rows, out, old);
    if (!is_first && delivers) outlet.put(p.d_q, rows, out, old);
    if (p.d_kv != nullptr && t < tiles) d_kv.add(q, room.d_product(t), width, e);
  }
  if (p.d_kv == nullptr) return;
  d_kv.store(p.d_kv + static_cast<std::int64_t>(blockIdx.x) * width * e, width, e);
}

}  // namespace

/// Of a block.
constexpr std::size_t most_shared() {
  return Room::bytes(true) + sizeof(Found);
}

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
  if (!has_shared(d_o, most_shared())) return false;
  if (saved.fill_kv) multiply_keys(saved.k, saved.v, saved.kv, saved.sizes, encodings, space);
  if (by_queries) differentiate_queries_of(d_o, saved, d_kv, grads, encodings, space);
  if (d_kv.defined) differentiate_keys_of(d_o.dtype, saved, d_kv, grads, encodings);
  return true;
}

}  // namespace on_cuda

void register_cuda_flao_mma_backward() {}

}  // namespace quipu
