// Position encodings with softmax over the sequence, backward; lrpe_sequence.cuh tells how work is
// cut. One pass over x and d_o finds, online, the largest entry of each column, the sum of
// exponentials and the mean of the gradient that is turned back; another one makes the result and
// writes or adds it. Nothing is kept from forward. Bound by memory.
#include "lrpe_sequence.cuh"

namespace quipu::on_cuda {
namespace {

template <class T, class Chunk, LrpeKind kind>
__global__ void __launch_bounds__(block_threads)
    decode_columns(SequencePlan<T> plan, RowView x, RowView d_o, RowView d_x, bool add) {
  constexpr int halves = halves_of<kind>, count = Chunk::count, columns = halves * count;
  constexpr int at_once = SequencePlan<T>::at_once;
  T* const shared = dynamic_shared<T>();
  const SequencePlace at(plan);
  const std::uint32_t first = at.chunk * count, n = plan.angles.count;
  const std::int64_t from = at.entry * x.batch_step, up = at.entry * d_o.batch_step;
  TurnTile<T, count> tile(plan, at, shared);
  const std::uint32_t step = at_once * at.team.members;
  // Calls f(token, k, row, works) for the thread's tokens among those that are turned together.
  const auto each_token = [&](std::uint32_t start, auto f) {
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::uint32_t row = k * at.team.members + at.team.member;
      if (at.has_work && start + row < at.end) f(start + row, k, row);
    }
  };
  const auto load = [&](std::uint32_t start, T(&y)[at_once][halves][count],
                        T(&encoded)[at_once][2][count]) {
    each_token(start, [&](std::uint32_t token, int k, std::uint32_t) {
      load_chunks<Chunk>(x, from + x.line(at.head, token), first, n, y[k]);
      load_chunks<Chunk>(d_o, up + d_o.line(at.head, token), first, n, encoded[k]);
    });
    tile.fill(plan, at, start, false);
    __syncthreads();
  };

  OnlineLines<typename Chunk::Element, columns, true> state;
  const bool finds = plan.pass != SequencePass::result;
  for (std::uint32_t start = at.begin; start < at.end && finds; start += step) {
    T y[at_once][halves][count], encoded[at_once][2][count];
    load(start, y, encoded);
    T entries[at_once][columns], weights[at_once][columns];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
#pragma unroll
      for (int s = 0; s < columns; ++s) {
        entries[k][s] = -std::numeric_limits<T>::infinity();
        weights[k][s] = T(0);
      }
    }
    each_token(start, [&](std::uint32_t, int k, std::uint32_t row) {
      T d[halves][count];
      tile.get(row, at.lane).encode_back(encoded[k], d);
#pragma unroll
      for (int s = 0; s < columns; ++s) {
        entries[k][s] = y[k][s / count][s % count];
        weights[k][s] = d[s / count][s % count];
      }
    });
    state.add(entries, weights);
    __syncthreads();
  }
  if (!settle<halves, count>(plan, at, state, shared)) return;

  for (std::uint32_t start = at.begin; start < at.end; start += step) {
    T y[at_once][halves][count], encoded[at_once][2][count];
    load(start, y, encoded);
    each_token(start, [&](std::uint32_t token, int k, std::uint32_t row) {
      T d[halves][count];
      tile.get(row, at.lane).encode_back(encoded[k], d);
#pragma unroll
      for (int s = 0; s < columns; ++s) {
        const T softmax =
            exp_below<typename Chunk::Element>(y[k][s / count][s % count] - state.largest[s]) *
            state.sum[s];
        T& entry = d[s / count][s % count];
        entry = softmax * (entry - state.weighted[s]);
      }
      const std::int64_t to = at.entry * d_x.batch_step + d_x.line(at.head, token);
      put_chunks<Chunk>(d_x, to, first, n, d, add);
    });
    __syncthreads();
  }
}

}  // namespace

void decode_sequence(const View& x, const View& d_o, const Grad& d_x, const View& table,
                     const RowEncoding& encoding, const View& space) {
  const std::int64_t n = angles_of(encoding.kind, x.size(3));
  const bool packed = has_packed_halves(x, n) && has_packed_halves(d_o, n) &&
                      has_packed_halves(d_x.view, n) && d_x.view.dtype == x.dtype;
  with_chunk_and_kind(x.dtype, packed, encoding.kind,
                      [&]<class T, class Chunk, class Kind>(Chunk, Kind) {
                        const SequencePlan<T> plan(encoding, x, Chunk::count, table, true, space);
                        run_sequence(Queue(x), decode_columns<T, Chunk, Kind::value>, plan,
                                     Chunk::count, Chunk::count * halves_of<Kind::value>,
                                     RowView(x), RowView(d_o), RowView(d_x.view), d_x.add);
                      });
}

}  // namespace quipu::on_cuda
