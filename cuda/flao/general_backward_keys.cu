// Gated linear attention, backward, for all types, sizes, strides and encodings: the pass over
// keys. A block has a tile of keys: d_v~ = k~ d_kv and d_k~ = v~ d_kv^T, where d_kv comes from L2.
// Inputs are read once, and once more where softmax goes over the sequence. Bound by the
// multiply-add units.
//
// sass differentiate_keys: need LDG.E.128 STS.128 LDS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
// registers 128
#include "general_backward.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
using namespace gated;
namespace {

template <class T>
struct Keys {
  FlaoInputGrad<T> inputs[2];  // k, v
  std::uint32_t heads, parts, length, tokens;
  const T* d_kv;  // (units, width, e)
};

/// A block has a part of the keys of a unit; one tile unless means are summed.
template <class Shape, class T = typename Shape::T>
__global__ void __launch_bounds__(block_threads, 2)
    differentiate_keys(const __grid_constant__ Keys<T> c) {
  T* const shared = dynamic_shared<T>();
  const unsigned width = c.inputs[0].rows.width, e = c.inputs[1].rows.width;
  const FlaoUnit unit(blockIdx.x / c.parts, c.heads);
  Tile<T> in{shared, pitch_of<T>(max(width, e)), Shape::rows, 0, 0};
  Tile<T> out{in.row(Shape::rows), in.pitch, Shape::rows, 0, 0};
  T* const slab = out.row(Shape::rows);
  const T* const d_kv = c.d_kv + unit.index * static_cast<std::int64_t>(width) * e;
  for (const FlaoInputGrad<T>& input : c.inputs) {
    if (input.wanted && input.target.for_means)
      clear_columns(input.rows.features, input.means_of(blockIdx.x));
  }
  const std::uint32_t begin = min(blockIdx.x % c.parts * c.length, c.tokens);
  const std::uint32_t end = min(begin + c.length, c.tokens);
  for (std::uint32_t first = begin; first < end; first += Shape::rows) {
    in.first = out.first = first;
    in.valid = out.valid = min(Shape::rows, end - first);
#pragma unroll 1
    for (unsigned to = 0; to < 2; ++to) {
      const FlaoMatrix<T> matrix{d_kv, to == 0 ? e : width, to == 0 ? width : e, to == 0};
      if (!c.inputs[to].wanted) continue;
      __syncthreads();
      encode_rows(c.inputs[1 - to].rows, unit, in);
      for (unsigned column = 0; column < matrix.columns; column += slice_width<T>) {
        RowProduct<Shape> product;
        multiply_rows(in, matrix, column, slab, product);
        product.store(out, column, matrix.columns);
      }
      __syncthreads();
      c.inputs[to].store_gradients(unit, out, blockIdx.x);
    }
  }
}

// ---- on the host ----

template <class T>
void run_keys(const FlaoBackward& a, FlaoStage stage) {
  const FlaoSizes& s = a.s;
  const std::int64_t widest = std::max(s.width, s.e);
  with_row_shape<T>(widest, widest, [&]<class Shape>(Shape) {
    // Partial sums fit the parts of the workspace; without them a part is one tile.
    const FlaoParts long_parts(s.m, s.units);
    const std::int64_t length = stage == FlaoStage::means ? long_parts.length : Shape::rows;
    const std::int64_t parts =
        stage == FlaoStage::means ? long_parts.count : (s.m + length - 1) / length;
    const Keys<T> c{
        {input_grad_of<T>(a.saved.k, a.transforms.k, s.d, s.m, a.workspace.k, a.grads.k, stage),
         input_grad_of<T>(a.saved.v, a.transforms.v, s.e, s.m, a.workspace.v, a.grads.v, stage)},
        static_cast<std::uint32_t>(a.d_o.size(1)),
        static_cast<std::uint32_t>(parts),
        static_cast<std::uint32_t>(length),
        static_cast<std::uint32_t>(s.m),
        a.d_kv.as<T>()};
    if (!c.inputs[0].wanted && !c.inputs[1].wanted) return;
    run(Queue(a.d_o), differentiate_keys<Shape>, static_cast<unsigned>(s.units * parts),
        block_threads, flao_shared_bytes<T>(Shape::rows, widest, widest), c);
    if (stage == FlaoStage::means && c.inputs[0].wanted) reduce_flao_means(a.workspace.k);
    if (stage == FlaoStage::means && c.inputs[1].wanted) reduce_flao_means(a.workspace.v);
  });
}

}  // namespace

void gated::differentiate_flao_keys(const FlaoBackward& a) {
  if (a.s.units * a.s.m == 0 || !a.d_kv.defined) return;
  for (const FlaoStage stage : {FlaoStage::means, FlaoStage::gradients}) {
    a.d_o.dtype == f64 ? run_keys<double>(a, stage) : run_keys<float>(a, stage);
  }
}

}  // namespace on_cuda
}  // namespace quipu::detail
