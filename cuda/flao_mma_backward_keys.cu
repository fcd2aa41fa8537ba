// Gated linear attention by tensor cores, backward, the keys: d_v = k~ d_kv and d_k = v~ d_kv^T in
// one pass. A block takes a part of a unit's keys, 16 at a time through four stages of shared
// memory. One half of its warps keeps d_kv in registers, a strip of 16 columns each, and makes d_v,
// the other half keeps the transposed and makes d_k. k and v are read once, gradients are written
// once, or read, added to and written; bound by memory.
//
// sass differentiate_keys: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDGSTS.E.BYPASS.128 LDG.E.128
// STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
#include "flao_mma_back.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace flao_mma {
namespace {

constexpr int stages = 4;

struct Keys {
  Rows k, v;  // null where no wanted gradient needs them
  GradRows d_k, d_v;
  Encoding k_encoding, v_encoding;
  const float* d_kv;  // (units, width, e)
  int heads, parts, length, tokens;
};

/// What lies in shared memory.
struct Room {
  unsigned* base = dynamic_shared<unsigned>();
  /// k is input 0, v is 1.
  __device__ __forceinline__ unsigned* raw(int t, int input) const {
    return base + (t % stages * 2 + input) * back_tile;
  }
  __device__ __forceinline__ GradTile gradients(int input) const {
    unsigned* const even = base + (stages + input) * 2 * back_tile;
    return {even, even + back_tile};
  }
  __device__ __forceinline__ Pieces encoded(int input) const {
    unsigned* const high = base + (stages + 2 + input) * 2 * back_tile;
    return {high, high + back_tile};
  }
  /// What is left of d_kv.
  __device__ __forceinline__ unsigned* low() const { return base + (stages + 4) * 2 * back_tile; }
  __device__ __forceinline__ float4* turns() const {
    return reinterpret_cast<float4*>(low() + widest * pitch);
  }
  static constexpr std::size_t bytes(bool encoded) {
    return tile_bytes(2 * (stages + (encoded ? 4 : 2)), back_rows) +
           (encoded ? tile_bytes(1, widest) + turn_bytes(back_rows) : 0);
  }
};

template <class E, bool encoded>
__global__ void __launch_bounds__(back_threads, 1) differentiate_keys(const Keys p) {
  __shared__ RowSum found[2][back_rows];
  __shared__ float all_means[2][strips * back_rows];
  const Room room;
  const Part part(p.heads, p.parts, p.length, p.tokens);
  const Worker worker;
  const int tiles = part.tiles(back_rows);
  // The first group multiplies k~ and makes d_v, the second one v~ and makes d_k.
  const int to = 1 - worker.group;
  const Act act = !encoded ? Act::none : to == 0 ? p.k_encoding.act : p.v_encoding.act;
  const bool turned = encoded && to == 0 && p.k_encoding.kind != LrpeKind::none;
  const int width = p.k_encoding.width, e = p.v_encoding.width;
  const int columns = to == 0 ? width : e, depth = to == 0 ? e : width;
  const bool softmax =
      encoded && (p.k_encoding.act == Act::softmax || p.v_encoding.act == Act::softmax);
  Source<back_rows, back_threads> k_source(p.k, part), v_source(p.v, part);
  const auto fetch_stage = [&](int t) {
    const int rows = part.end - part.first - t * back_rows;
    if (t < tiles && p.k.data != nullptr) {
      k_source.fetch(room.raw(t, 0), p.k, rows, p.k_encoding.features);
    }
    if (t < tiles && p.v.data != nullptr) v_source.fetch(room.raw(t, 1), p.v, rows, e);
    ptx::copy_commit();
  };
  for (int t = 0; t < stages - 1; ++t) fetch_stage(t);
  __syncwarp();  // rows may be shorter than the lanes reach
  const bool multiplies = (to == 0 ? p.d_k : p.d_v).data != nullptr && worker.strip * 16 < columns;
  Strip<encoded> d_kv;
  const float* const matrix = p.d_kv + static_cast<std::int64_t>(part.unit) * width * e;
  if (multiplies && to == 1) d_kv.template load<false>(matrix, e, depth, worker.strip, columns);
  if (multiplies && to == 0) d_kv.template load<true>(matrix, e, depth, worker.strip, columns);
  if constexpr (encoded) fill_low<back_threads>(room.low(), matrix, width, e);
  Outlet<E> outlet =
      to == 0 ? Outlet<E>(p.d_k, part, p.k_encoding.features) : Outlet<E>(p.d_v, part, e);
  for (int t = 0; t < tiles; ++t) {
    ptx::copy_wait<stages - 2>();
    __syncthreads();
    fetch_stage(t + stages - 1);
    const int token = part.first + t * back_rows;
    const int rows = part.end - token;
    const uint4 old = to == 0 ? outlet.read(p.d_k, rows) : outlet.read(p.d_v, rows);
    Pieces left{room.raw(t, 1 - to), nullptr};
    if constexpr (encoded) {
      const auto enter = [&](int input, const Encoding& x, const Rows& source) {
        if (source.data == nullptr) return;
        const Pieces pieces = entered<E, back_rows, back_threads>(
            x, room.raw(t, input), room.encoded(input), {room.turns(), found[input]}, part.head,
            token, part.end);
        if (input != to) left = pieces;
      };
      enter(0, p.k_encoding, p.k);
      if (p.k.data == nullptr && p.k_encoding.kind != LrpeKind::none) {
        find_all_turns<back_rows, back_threads>(p.k_encoding, room.turns(), part.head, token);
      }
      enter(1, p.v_encoding, p.v);
      __syncthreads();
    }
    float d[2][4] = {};
    const int pairs = turned ? pairs_of(p.k_encoding.kind) : 4;
    if (multiplies && to == 1) {
      multiply<false>(d, left, d_kv, low_of_strip<false>(room.low(), worker.strip, columns), depth);
    } else if (multiplies) {
      multiply<true>(d, left, d_kv, low_of_strip<true>(room.low(), worker.strip, columns), depth);
    }
    if (encoded && multiplies) {
      if (turned) decode(d, room.turns(), worker.strip);
      if (act == Act::softmax) {
        add_to_means<E>(d, room.raw(t, to), found[to], all_means[to], worker.strip, columns, pairs);
      }
    }
    if (softmax) __syncthreads();
    if (multiplies) {
      leave<E>(d, act, room.raw(t, to), found[to], all_means[to], room.gradients(to), worker.strip,
               columns, pairs);
    }
    __syncthreads();
    if (to == 0) outlet.put(p.d_k, rows, room.gradients(0), old);
    if (to == 1) outlet.put(p.d_v, rows, room.gradients(1), old);
  }
}

}  // namespace

void differentiate_keys_of(DType dtype, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoEncodings& encodings) {
  const FlaoSizes& sizes = saved.sizes;
  const FlaoParts parts = parts_without_sums(sizes.m, sizes.units);
  const Keys keys{Rows(saved.k),
                  Rows(saved.v),
                  GradRows(grads.k),
                  GradRows(grads.v),
                  Encoding(encodings.k, sizes.d, sizes.m),
                  Encoding(encodings.v, sizes.e, sizes.m),
                  d_kv.as<float>(),
                  static_cast<int>(d_kv.size(1)),
                  static_cast<int>(parts.count),
                  static_cast<int>(parts.length),
                  static_cast<int>(sizes.m)};
  const bool encoded = dtype == f16 || !is_plain(encodings.k) || !is_plain(encodings.v);
  const auto kernel = dtype == f16 ? differentiate_keys<__half, true>
                      : encoded    ? differentiate_keys<__nv_bfloat16, true>
                                   : differentiate_keys<__nv_bfloat16, false>;
  run(Queue(d_kv), kernel, static_cast<unsigned>(sizes.units * parts.count), back_threads,
      Room::bytes(encoded), keys);
}

}  // namespace flao_mma
}  // namespace on_cuda

void register_cuda_flao_mma_backward_keys() {}

}  // namespace quipu
