// Position encodings with softmax over the sequence, backward; sequence.cuh tells how work is
// split. One pass over x and d_o finds, online, the maximum of each column, the sum of exponentials
// and the mean of the rotated-back gradient; another one stores the result (=|+=). Nothing is kept
// from forward. Bound by memory.
//
// sass decode_columns<float,.*Packed: need LDG.E.128 STG.E.128 LDS.128; forbid STL LDL LD.E$ ST.E$;
//   registers 128
// sass decode_columns<double: forbid STL LDL LD.E$ ST.E$; registers 200
// sass decode_columns<float,.*Loose: forbid STL LDL LD.E$ ST.E$; registers 128
#include "sequence.cuh"

namespace quipu::detail::on_cuda {
namespace {

template <class T, class Chunk, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, sizeof(T) == 8 ? 1 : 2)
    decode_columns(SequencePlan<T> plan, RowView x, RowView d_o, RowView d_x, bool add) {
  constexpr int halves = halves_of<kind>, count = Chunk::count, columns = halves * count;
  constexpr int at_once = SequencePlan<T>::at_once;
  using Element = typename Chunk::Element;
  T* const shared = dynamic_shared<T>();
  const SequenceThread at(plan);
  const std::uint32_t first = at.chunk * count, n = plan.angles.count;
  const std::int64_t from = at.entry * x.batch_step, up = at.entry * d_o.batch_step;
  SinCosTile<T, count> tile(plan, at, shared);
  // Calls f(token, x, rotated-back gradient) for the thread's tokens; loads of a few are in flight
  // together.
  const auto each_token = [&](auto f) {
    for (std::uint32_t start = at.begin; start < at.end; start += at_once * at.team.members) {
      typename Chunk::Raw raw_d_o[at_once][2];
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const std::uint32_t token = start + k * at.team.members + at.team.member;
        if (!at.has_work || token >= at.end) continue;
        fetch_chunks<Chunk>(d_o, up + d_o.line(at.head, token), first, n, raw_d_o[k]);
      }
      tile.fill(plan, at, start, false);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        const std::uint32_t row = k * at.team.members + at.team.member;
        if (!at.has_work || start + row >= at.end) continue;
        typename Chunk::Raw raw_x[halves];
        fetch_chunks<Chunk>(x, from + x.line(at.head, start + row), first, n, raw_x);
        T y[halves][count], d[halves][count], encoded[2][count];
        unpack_chunks<Chunk>(raw_d_o[k], encoded);
        tile.get(row, at.lane).encode_gradient(encoded, d);
        unpack_chunks<Chunk>(raw_x, y);
        f(start + row, y, d);
      }
      __syncthreads();
    }
  };

  OnlineLines<Element, columns, true> state;
  if (plan.pass != SequencePass::result) {
    each_token([&](std::uint32_t, const T(&y)[halves][count], const T(&d)[halves][count]) {
      T entries[1][columns], weights[1][columns];
#pragma unroll
      for (int s = 0; s < columns; ++s) {
        entries[0][s] = y[s / count][s % count];
        weights[0][s] = d[s / count][s % count];
      }
      state.add(entries, weights);
    });
  }
  if (!finish_statistics<halves, count>(plan, at, state, shared)) return;

  each_token([&](std::uint32_t token, const T(&y)[halves][count], T(&d)[halves][count]) {
#pragma unroll
    for (int s = 0; s < columns; ++s) {
      const T above = exp_below<Element>(y[s / count][s % count] - state.largest[s]);
      T& entry = d[s / count][s % count];
      entry = above * state.sum[s] * (entry - state.weighted[s]);
    }
    const std::int64_t to = at.entry * d_x.batch_step + d_x.line(at.head, token);
    put_chunks<Chunk>(d_x, to, first, n, d, add);
  });
}

}  // namespace

void decode_lrpe_sequence(const View& x, const View& d_o, const Grad& d_x, const View& table,
                          const RowTransform& transform, const View& workspace) {
  const std::int64_t n = angles_of(transform.kind, x.size(3));
  const bool packed = has_packed_halves(x, n) && has_packed_halves(d_o, n) &&
                      has_packed_halves(d_x.view, n) && d_x.view.dtype == x.dtype;
  with_chunk_and_kind(
      x.dtype, packed, transform.kind, [&]<class T, class Chunk, class Kind>(Chunk, Kind) {
        const SequencePlan<T> plan(transform, x, Chunk::count, table, true, workspace);
        run_sequence(Queue(x), decode_columns<T, Chunk, Kind::value>, plan, Chunk::count,
                     Chunk::count * halves_of<Kind::value>, RowView(x), RowView(d_o),
                     RowView(d_x.view), d_x.add);
      });
}

}  // namespace quipu::detail::on_cuda
