// Position encodings, backward: the gradient of an encoded row is rotated back, multiplied by the
// derivative of the activation, for which x is read if there is one, and stored (=|+=). Work is
// split as in forward (rows.cuh): everything is read once and written once. Bound by memory.
//
// sass decode_rows<.*Packed: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$ STG.E.U16;
//   registers 80
// sass decode_rows<.*Loose: forbid STL LDL LD.E$ ST.E$; registers 80
// sass decode_long_rows: forbid STL LDL LD.E$ ST.E$; registers 128
#include "rows.cuh"

namespace quipu::detail::on_cuda {
namespace {

/// The gradient of a softmax from that of its result, in place, by all threads of a warp;
/// those without work have -infinity in x and 0 in d.
template <int halves, class T, int count>
__device__ __forceinline__ void softmax_row_gradient(const RowPlan<T>& plan, T (&x)[halves][count],
                                                     T (&d)[halves][count]) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma unroll
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int j = 0; j < count; ++j) largest = larger(largest, x[half][j]);
  }
  largest = plan.fold(largest, larger<T>);
  T sum(0), weighted(0);
#pragma unroll
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      x[half][j] = std::exp(x[half][j] - largest);
      sum += x[half][j];
      weighted += x[half][j] * d[half][j];
    }
  }
  const T inverse = T(1) / plan.fold(sum, plus<T>);
  const T mean = plan.fold(weighted, plus<T>) * inverse;
#pragma unroll
  for (int half = 0; half < halves; ++half) {
#pragma unroll
    for (int j = 0; j < count; ++j) d[half][j] = x[half][j] * inverse * (d[half][j] - mean);
  }
}

template <class T, class Chunk, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, 3)
    decode_rows(RowPlan<T> plan, RowView x, RowView d_o, RowView d_x, bool add) {
  constexpr int halves = halves_of<kind>, count = Chunk::count;
  const auto at = plan.template chunk_position<count>();
  const SinCosChunk<T, count> sincos = plan.template sincos<Chunk>(at, false);
  const std::uint32_t n = plan.angles.count;
  const std::int64_t last = plan.batch_part(blockIdx.y + 1);
  for (std::int64_t b = plan.batch_part(blockIdx.y); b < last; ++b) {
    T encoded[2][count] = {}, y[halves][count], d[halves][count];
#pragma unroll
    for (int half = 0; half < halves; ++half) {
#pragma unroll
      for (int j = 0; j < count; ++j) y[half][j] = -std::numeric_limits<T>::infinity();
    }
    if (at.has_work) {
      load_chunks<Chunk>(d_o, d_o.line(at.head, at.token) + b * d_o.batch_step, at.first, n,
                         encoded);
      if (plan.act != Act::none) {
        load_chunks<Chunk>(x, x.line(at.head, at.token) + b * x.batch_step, at.first, n, y);
      }
    }
    sincos.encode_gradient(encoded, d);
    if (plan.act == Act::softmax) {
      softmax_row_gradient(plan, y, d);
    } else {
#pragma unroll
      for (int half = 0; half < halves; ++half) activation_gradient(plan.act, y[half], d[half]);
    }
    if (at.has_work) {
      put_chunks<Chunk>(d_x, d_x.line(at.head, at.token) + b * d_x.batch_step, at.first, n, d, add);
    }
  }
}

/// Softmax over the features of rows that have more chunks than a warp has lanes.
template <class T, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, 2)
    decode_long_rows(RowPlan<T> plan, RowView x, RowView d_o, RowView d_x, bool add) {
  constexpr int halves = halves_of<kind>;
  const Team<warp_size> self;
  if (self.line >= plan.lines) return;  // a whole warp
  const auto at = plan.line_position(self.line);
  const std::uint32_t n = plan.angles.count;
  const std::int64_t last = plan.batch_part(blockIdx.y + 1);
  for (std::int64_t b = plan.batch_part(blockIdx.y); b < last; ++b) {
    const std::int64_t from = x.line(at.head, at.token) + b * x.batch_step;
    const std::int64_t up = d_o.line(at.head, at.token) + b * d_o.batch_step;
    const std::int64_t to = d_x.line(at.head, at.token) + b * d_x.batch_step;
    T largest = -std::numeric_limits<T>::infinity();
    for (std::uint32_t i = self.thread; i < n * halves; i += warp_size) {
      largest = larger(largest, load_element<T>(x.data, x.dtype, from + i * x.feature_step));
    }
    largest = fold_warp(largest, larger<T>);
    const auto load = [&](std::uint32_t i, T(&y)[halves][1], T(&d)[halves][1]) {
      T encoded[2][1];
      load_chunks<Loose<T>>(d_o, up, i, n, encoded);
      plan.template sincos<Loose<T>>(at.with(i), false).encode_gradient(encoded, d);
      load_chunks<Loose<T>>(x, from, i, n, y);
#pragma unroll
      for (int half = 0; half < halves; ++half) y[half][0] = std::exp(y[half][0] - largest);
    };
    T sum(0), weighted(0), y[halves][1], d[halves][1];
    for (std::uint32_t i = self.thread; i < n; i += warp_size) {
      load(i, y, d);
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        sum += y[half][0];
        weighted += y[half][0] * d[half][0];
      }
    }
    const T inverse = T(1) / fold_warp(sum, plus<T>);
    const T mean = fold_warp(weighted, plus<T>) * inverse;
    for (std::uint32_t i = self.thread; i < n; i += warp_size) {
      load(i, y, d);
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        d[half][0] = y[half][0] * inverse * (d[half][0] - mean);
      }
      put_chunks<Loose<T>>(d_x, to, i, n, d, add);
    }
  }
}

}  // namespace

void decode_lrpe_rows(const View& x, const View& d_o, const Grad& d_x, const View& table,
                      const RowTransform& transform) {
  const std::int64_t features = d_x.view.size(3), n = angles_of(transform.kind, features);
  const bool packed = has_packed_halves(d_o, n) && has_packed_halves(d_x.view, n) &&
                      d_x.view.dtype == d_o.dtype && (!x.defined || has_packed_halves(x, n));
  const Queue queue(d_o);
  with_chunk_and_kind(
      d_o.dtype, packed, transform.kind, [&]<class T, class Chunk, class Kind>(Chunk, Kind) {
        const RowPlan<T> plan(transform, d_o, features, Chunk::count, table, true);
        const RowView from = x.defined ? RowView(x) : RowView();
        if (plan.folds_in_warp()) {
          return run(queue, decode_rows<T, Chunk, Kind::value>, plan.grid(), block_threads, 0, plan,
                     from, RowView(d_o), RowView(d_x.view), d_x.add);
        }
        const dim3 grid(blocks_for(plan.lines, Team<warp_size>::per_block), plan.grid().y);
        run(queue, decode_long_rows<T, Kind::value>, grid, block_threads, 0, plan, from,
            RowView(d_o), RowView(d_x.view), d_x.add);
      });
}

}  // namespace quipu::detail::on_cuda
