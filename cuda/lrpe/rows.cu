// Position encodings, forward. A thread has one chunk of a line (head, token) and loops over the
// batch with sin and cos in registers (rows.cuh): x is read once and o written once, 16 bytes at a
// time where rows allow it. Bound by memory. Softmax over the features is reduced by shuffles among
// the threads of a row; a row too long for that is read three times by a warp, each time but the
// first from a cache.
//
// sass encode_rows<.*Packed: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$ STG.E.U16;
//   registers 64
// sass encode_rows<.*Loose: forbid STL LDL LD.E$ ST.E$; registers 64
// sass encode_long_rows: forbid STL LDL LD.E$ ST.E$; registers 128
#include "rows.cuh"

namespace quipu::detail::on_cuda {
namespace {

/// Softmax of a row in place, by all threads of a warp; those without work have -infinity.
template <int halves, class T, int count>
__device__ __forceinline__ void softmax_row(const RowPlan<T>& plan, T (&y)[halves][count]) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma unroll
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int j = 0; j < count; ++j) largest = larger(largest, y[half][j]);
  }
  largest = plan.fold(largest, larger<T>);
  T sum(0);
#pragma unroll
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      y[half][j] = std::exp(y[half][j] - largest);
      sum += y[half][j];
    }
  }
  const T inverse = T(1) / plan.fold(sum, plus<T>);
#pragma unroll
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int j = 0; j < count; ++j) y[half][j] *= inverse;
  }
}

template <class T, class Chunk, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, 4)
    encode_rows(RowPlan<T> plan, RowView x, RowView o) {
  constexpr int halves = halves_of<kind>, count = Chunk::count;
  const auto at = plan.template chunk_position<count>();
  const SinCosChunk<T, count> sincos = plan.template sincos<Chunk>(at, blockIdx.y == 0);
  const std::int64_t from = x.line(at.head, at.token), to = o.line(at.head, at.token);
  const std::int64_t last = plan.batch_part(blockIdx.y + 1);
  for (std::int64_t b = plan.batch_part(blockIdx.y); b < last; ++b) {
    T y[halves][count], encoded[2][count];
#pragma unroll
    for (int half = 0; half < halves; ++half) {
#pragma unroll
      for (int j = 0; j < count; ++j) y[half][j] = -std::numeric_limits<T>::infinity();
    }
    if (at.has_work) {
      load_chunks<Chunk>(x, from + b * x.batch_step, at.first, plan.angles.count, y);
    }
    if (plan.act == Act::softmax) {
      softmax_row(plan, y);
    } else {
#pragma unroll
      for (int half = 0; half < halves; ++half) activate(plan.act, y[half]);
    }
    sincos.encode(y, encoded);
    if (at.has_work) {
      put_chunks<Chunk>(o, to + b * o.batch_step, at.first, plan.angles.count, encoded, false);
    }
  }
}

/// Softmax over the features of rows that have more chunks than a warp has lanes.
template <class T, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, 2)
    encode_long_rows(RowPlan<T> plan, RowView x, RowView o) {
  constexpr int halves = halves_of<kind>;
  const Team<warp_size> self;
  if (self.line >= plan.lines) return;  // a whole warp
  const auto at = plan.line_position(self.line);
  const std::uint32_t n = plan.angles.count, features = n * halves;
  const std::int64_t last = plan.batch_part(blockIdx.y + 1);
  for (std::int64_t b = plan.batch_part(blockIdx.y); b < last; ++b) {
    const std::int64_t from = x.line(at.head, at.token) + b * x.batch_step;
    const std::int64_t to = o.line(at.head, at.token) + b * o.batch_step;
    const auto entry = [&](std::uint32_t i) {
      return load_element<T>(x.data, x.dtype, from + i * x.feature_step);
    };
    T largest = -std::numeric_limits<T>::infinity();
    for (std::uint32_t i = self.thread; i < features; i += warp_size) {
      largest = larger(largest, entry(i));
    }
    largest = fold_warp(largest, larger<T>);
    T sum(0);
    for (std::uint32_t i = self.thread; i < features; i += warp_size) {
      sum += std::exp(entry(i) - largest);
    }
    const T inverse = T(1) / fold_warp(sum, plus<T>);
    for (std::uint32_t i = self.thread; i < n; i += warp_size) {
      const SinCosChunk<T, 1> sincos = plan.template sincos<Loose<T>>(at.with(i), b == 0);
      T y[halves][1], encoded[2][1];
      load_chunks<Loose<T>>(x, from, i, n, y);
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        y[half][0] = std::exp(y[half][0] - largest) * inverse;
      }
      sincos.encode(y, encoded);
      put_chunks<Loose<T>>(o, to, i, n, encoded, false);
    }
  }
}

}  // namespace

void encode_lrpe_rows(const View& x, const View& o, const View& table,
                      const RowTransform& transform) {
  const std::int64_t n = angles_of(transform.kind, x.size(3));
  const bool packed = has_packed_halves(x, n) && has_packed_halves(o, n);
  const Queue queue(x);
  with_chunk_and_kind(
      x.dtype, packed, transform.kind, [&]<class T, class Chunk, class Kind>(Chunk, Kind) {
        const RowPlan<T> plan(transform, x, x.size(3), Chunk::count, table, false);
        if (plan.folds_in_warp()) {
          return run(queue, encode_rows<T, Chunk, Kind::value>, plan.grid(), block_threads, 0, plan,
                     RowView(x), RowView(o));
        }
        const dim3 grid(blocks_for(plan.lines, Team<warp_size>::per_block), plan.grid().y);
        run(queue, encode_long_rows<T, Kind::value>, grid, block_threads, 0, plan, RowView(x),
            RowView(o));
      });
}

}  // namespace quipu::detail::on_cuda
