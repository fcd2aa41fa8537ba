// Gated linear attention, backward, for all types, sizes, strides and encodings: the pass over
// keys. A block has a tile of keys and multiplies it by d_kv, which comes from the second-level
// cache and gives d_v and d_k. Inputs are read once, and once more where softmax goes over the
// sequence. Bound by the multiply-add units.
//
// sass differentiate_keys: need LDG.E.128 STS.128 LDS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
// registers 128
#include "flao_back.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
using namespace gated;
namespace {

template <class T>
struct Keys {
  FlaoWay<T> ways[2];  // k, v
  std::uint32_t heads, parts, length, tokens;
  const T* d_kv;  // (units, width, e)
};

/// Block: a part of the keys of a unit, perhaps of one tile only.
template <class Shape, class T = typename Shape::T>
__global__ void __launch_bounds__(block_threads, 2)
    differentiate_keys(const __grid_constant__ Keys<T> c) {
  T* const shared = dynamic_shared<T>();
  const unsigned width = c.ways[0].rows.width, e = c.ways[1].rows.width;
  const FlaoUnit unit(blockIdx.x / c.parts, c.heads);
  Tile<T> in{shared, pitch_of<T>(max(width, e)), Shape::rows, 0, 0};
  Tile<T> out{in.row(Shape::rows), in.pitch, Shape::rows, 0, 0};
  T* const slab = out.row(Shape::rows);
  const T* const d_kv = c.d_kv + unit.index * static_cast<std::int64_t>(width) * e;
  for (const FlaoWay<T>& way : c.ways) {
    if (way.wanted && way.target.measure)
      clear_columns(way.rows.features, way.means_of(blockIdx.x));
  }
  const std::uint32_t begin = min(blockIdx.x % c.parts * c.length, c.tokens);
  const std::uint32_t end = min(begin + c.length, c.tokens);
  for (std::uint32_t first = begin; first < end; first += Shape::rows) {
    in.first = out.first = first;
    in.valid = out.valid = min(Shape::rows, end - first);
#pragma unroll 1
    for (unsigned to = 0; to < 2; ++to) {
      const FlaoMatrix<T> matrix{d_kv, to == 0 ? e : width, to == 0 ? width : e, to == 0};
      if (!c.ways[to].wanted) continue;
      __syncthreads();
      encode_rows(c.ways[1 - to].rows, unit, in);
      for (unsigned column = 0; column < matrix.columns; column += slice_width<T>) {
        RowProduct<Shape> product;
        multiply_rows(in, matrix, column, slab, product);
        product.store(out, column, matrix.columns);
      }
      __syncthreads();
      c.ways[to].deliver(unit, out, blockIdx.x);
    }
  }
}

// ---- on the host ----

template <class T>
void run_keys(const FlaoBackward& a, FlaoStage stage) {
  const FlaoSizes& s = a.s;
  const std::int64_t widest = std::max(s.width, s.e);
  with_row_shape<T>(widest, widest, [&]<class Shape>(Shape) {
    // Sums need the parts of the workspace; otherwise a tile is a part.
    const FlaoParts long_parts(s.m, s.units);
    const std::int64_t length = stage == FlaoStage::measure ? long_parts.length : Shape::rows;
    const std::int64_t parts =
        stage == FlaoStage::measure ? long_parts.count : (s.m + length - 1) / length;
    const Keys<T> c{{way_of<T>(a.saved.k, a.encodings.k, s.d, s.m, a.space.k, a.grads.k, stage),
                     way_of<T>(a.saved.v, a.encodings.v, s.e, s.m, a.space.v, a.grads.v, stage)},
                    static_cast<std::uint32_t>(a.d_o.size(1)),
                    static_cast<std::uint32_t>(parts),
                    static_cast<std::uint32_t>(length),
                    static_cast<std::uint32_t>(s.m),
                    a.d_kv.as<T>()};
    if (!c.ways[0].wanted && !c.ways[1].wanted) return;
    run(Queue(a.d_o), differentiate_keys<Shape>, static_cast<unsigned>(s.units * parts),
        block_threads, flao_shared_bytes<T>(Shape::rows, widest, widest), c);
    if (stage == FlaoStage::measure && c.ways[0].wanted) add_flao_means(a.space.k);
    if (stage == FlaoStage::measure && c.ways[1].wanted) add_flao_means(a.space.v);
  });
}

}  // namespace

void gated::differentiate_flao_keys(const FlaoBackward& a) {
  if (a.s.units * a.s.m == 0 || !a.d_kv.defined) return;
  for (const FlaoStage stage : {FlaoStage::measure, FlaoStage::deliver}) {
    a.d_o.dtype == f64 ? run_keys<double>(a, stage) : run_keys<float>(a, stage);
  }
}

}  // namespace on_cuda

void register_cuda_flao_backward_keys() {}

}  // namespace quipu
