// Position encodings with softmax over the sequence, forward; sequence.cuh tells how work is split.
// x is read for the statistics of its columns and again for the result, the second time from L2
// where it fits; o is written once. Bound by memory.
//
// sass encode_columns<float,.*Packed: need LDG.E.128 STG.E.128 LDS.128; forbid STL LDL LD.E$ ST.E$;
//   registers 128
// sass encode_columns<double: forbid STL LDL LD.E$ ST.E$; registers 160
// sass encode_columns<float,.*Loose: forbid STL LDL LD.E$ ST.E$; registers 128
#include "sequence.cuh"

namespace quipu::detail::on_cuda {
namespace {

template <class T, class Chunk, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, sizeof(T) == 8 ? 1 : 2)
    encode_columns(SequencePlan<T> plan, RowView x, RowView o) {
  constexpr int halves = halves_of<kind>, count = Chunk::count, columns = halves * count;
  constexpr int at_once = SequencePlan<T>::at_once;
  T* const shared = dynamic_shared<T>();
  const SequenceThread at(plan);
  const std::uint32_t first = at.chunk * count, n = plan.angles.count;
  const std::int64_t from = at.entry * x.batch_step, to = at.entry * o.batch_step;
  OnlineLines<typename Chunk::Element, columns> state;
  if (plan.pass != SequencePass::result && at.has_work) {
    state.template take<4>(at.begin + at.team.member, at.end, at.team.members,
                           [&](std::int64_t token, T(&flat)[columns]) {
                             T values[halves][count];
                             const auto t = static_cast<std::uint32_t>(token);
                             load_chunks<Chunk>(x, from + x.line(at.head, t), first, n, values);
#pragma unroll
                             for (int s = 0; s < columns; ++s)
                               flat[s] = values[s / count][s % count];
                           });
  }
  if (!finish_statistics<halves, count>(plan, at, state, shared)) return;

  SinCosTile<T, count> tile(plan, at, shared);
  const std::uint32_t step = at_once * at.team.members;
  for (std::uint32_t start = at.begin; start < at.end; start += step) {
    typename Chunk::Raw raw[at_once][halves];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::uint32_t token = start + k * at.team.members + at.team.member;
      if (!at.has_work || token >= at.end) continue;
      fetch_chunks<Chunk>(x, from + x.line(at.head, token), first, n, raw[k]);
    }
    tile.fill(plan, at, start, at.first_entry == 0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::uint32_t row = k * at.team.members + at.team.member;
      if (!at.has_work || start + row >= at.end) continue;
      T y[halves][count], encoded[2][count];
      unpack_chunks<Chunk>(raw[k], y);
#pragma unroll
      for (int s = 0; s < columns; ++s) {
        T& entry = y[s / count][s % count];
        entry = exp_below<typename Chunk::Element>(entry - state.largest[s]) * state.sum[s];
      }
      tile.get(row, at.lane).encode(y, encoded);
      put_chunks<Chunk>(o, to + o.line(at.head, start + row), first, n, encoded, false);
    }
    __syncthreads();
  }
}

}  // namespace

void encode_lrpe_sequence(const View& x, const View& o, const View& table,
                          const RowTransform& transform, const View& workspace) {
  const std::int64_t n = angles_of(transform.kind, x.size(3));
  const bool packed = has_packed_halves(x, n) && has_packed_halves(o, n);
  with_chunk_and_kind(
      x.dtype, packed, transform.kind, [&]<class T, class Chunk, class Kind>(Chunk, Kind) {
        const SequencePlan<T> plan(transform, x, Chunk::count, table, false, workspace);
        run_sequence(Queue(x), encode_columns<T, Chunk, Kind::value>, plan, Chunk::count,
                     Chunk::count * halves_of<Kind::value>, RowView(x), RowView(o));
      });
}

}  // namespace quipu::detail::on_cuda
