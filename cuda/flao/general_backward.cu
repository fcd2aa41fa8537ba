// Gated linear attention, backward, for all types, sizes, strides and encodings: the pass over
// queries. Split-K over tokens: a block has a part of the queries of one (batch, head). For each
// tile, z = q~ kv; d_g~ = d_o * z and d_z = d_o * g~ replace it in shared memory; d_kv += q~^T d_z
// in registers; d_q~ = d_z kv^T. A second kernel adds the parts of d_kv in order. Inputs are read
// once, and once more where softmax goes over the sequence: its gradient needs a mean over all
// tokens first. Bound by the multiply-add units.
//
// sass differentiate_queries: need LDG.E.128 STS.128 LDS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
// registers 255
#include "general_backward.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
using namespace gated;
namespace {

template <class T>
struct Queries {
  FlaoInputGrad<T> q, g;
  FlaoView d_o, qkv;
  std::uint32_t heads, parts, length;
  unsigned slices;  // of a row of d_kv
  bool multiply;    // z = q~ kv was not saved
  const T* kv;      // (units, width, e)
  T* d_kv;          // (units, parts, width, e), null where nobody needs it
};

/// Replaces z = q~ kv by its gradient d_z = d_o * g~, row by row, and stores d_g. In the pass for
/// the means of g, z is replaced by g~ * d_g~ instead.
template <class T>
__device__ __forceinline__ void gate_gradient(const Queries<T>& c, const FlaoUnit& unit,
                                              const Tile<T>& z, bool to_gate, bool to_product) {
  const FlaoRows<T>& g = c.g.rows;
  const FlaoGradTarget& target = c.g.target;
  const bool for_means = to_gate && target.for_means;
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned r = warp; r < z.rows; r += block_warps) {
    T* const row = z.row(r);
    const std::uint32_t token = z.first + r;
    if (r >= z.valid) {
      for (unsigned i = lane; i < rounded_up(g.features, vector_width<T>); i += warp_size) {
        row[i] = T(0);
      }
      continue;
    }
    const std::int64_t from = c.d_o.start(unit, token), to = target.view.start(unit, token);
    Vector<T> up;
    activation_gradient_of_row(
        g, unit, token, to_product || g.act != Act::none, to_gate && !for_means,
        [&](unsigned i) {
          up = c.d_o.template load<T>(from, i);
          Vector<T> d{};
          if (!to_gate) return d;
          d = c.multiply ? load_vector(row, i)
                         : c.qkv.template load<T>(c.qkv.start(unit, token), i);
#pragma unroll
          for (unsigned j = 0; j < vector_width<T>; ++j) d[j] *= up[j];
          return d;
        },
        [&](unsigned i, const Vector<T>& d, const Vector<T>& gate) {
          if (to_gate && !for_means) target.view.put(to, i, d, target.add);
          Vector<T> out;
#pragma unroll
          for (unsigned j = 0; j < vector_width<T>; ++j) {
            const T product = i + j < g.features ? up[j] * gate[j] : T(0);
            out[j] = for_means ? d[j] : product;
          }
          if (for_means || to_product) store_vector(row, i, out);
        });
  }
}

/// A block has one slice of d_kv and one part of the tokens of a unit; that of the first slice also
/// stores d_q and d_g.
template <class Shape, class T = typename Shape::T>
__global__ void __launch_bounds__(block_threads, 1)
    differentiate_queries(const __grid_constant__ Queries<T> c) {
  T* const shared = dynamic_shared<T>();
  const unsigned width = c.q.rows.width, e = c.g.rows.width;
  const unsigned slices = c.d_kv != nullptr ? c.slices * slices_of<T>(width) : 1;
  const unsigned slice = blockIdx.x % slices, part_of_unit = blockIdx.x / slices;
  const FlaoUnit unit(part_of_unit / c.parts, c.heads);
  const bool to_q = c.q.wanted && slice == 0, to_g = c.g.wanted && slice == 0;
  const bool to_kv = c.d_kv != nullptr;
  const bool gate_means = to_g && c.g.target.for_means;
  Tile<T> q{shared, pitch_of<T>(max(width, e)), Shape::rows, 0, 0};
  Tile<T> z{q.row(Shape::rows), pitch_of<T>(e), Shape::rows, 0, 0};
  T* const slab = z.row(Shape::rows);
  const std::int64_t size = static_cast<std::int64_t>(width) * e;
  const T* const kv = c.kv + unit.index * size;
  ColumnProduct<T> d_kv;
  d_kv.first_row = slice / c.slices * slice_width<T>;
  d_kv.first_column = slice % c.slices * slice_width<T>;
  d_kv.rows = width;
  d_kv.columns = e;
  if (to_q && c.q.target.for_means) clear_columns(c.q.rows.features, c.q.means_of(part_of_unit));
  if (gate_means) clear_columns(c.g.rows.features, c.g.means_of(part_of_unit));
  const std::uint32_t tokens = c.g.rows.tokens;
  const std::uint32_t begin = min(part_of_unit % c.parts * c.length, tokens);
  const std::uint32_t end = min(begin + c.length, tokens);
  for (std::uint32_t first = begin; first < end; first += Shape::rows) {
    q.first = z.first = first;
    q.valid = z.valid = min(Shape::rows, end - first);
    __syncthreads();
    if (to_kv || (to_g && c.multiply)) encode_rows(c.q.rows, unit, q);
#pragma unroll 1
    for (unsigned step = 0; step < 2; ++step) {
      const bool there = step == 0;  // z = q~ kv, then d_q~ = d_z kv^T
      const FlaoMatrix<T> matrix{kv, there ? width : e, there ? e : width, !there};
      const bool needed = there ? to_g && c.multiply : to_q;
      for (unsigned column = 0; needed && column < matrix.columns; column += slice_width<T>) {
        RowProduct<Shape> product;
        multiply_rows(select_tile(there, q, z), matrix, column, slab, product);
        product.store(select_tile(there, z, q), column, matrix.columns);
      }
      __syncthreads();
      if (!there) continue;
      gate_gradient(c, unit, z, to_g, to_q || to_kv);
      __syncthreads();
      if (gate_means) add_columns(z, c.g.rows.features, c.g.means_of(part_of_unit));
      if (to_kv) d_kv.add(q, z);
      __syncthreads();
    }
    if (to_q) c.q.store_gradients(unit, q, part_of_unit);
  }
  if (to_kv) d_kv.store(c.d_kv + part_of_unit * size);
}

// ---- on the host ----

template <class T>
void run_queries(const FlaoBackward& a, FlaoStage stage, bool to_q, bool to_g) {
  const FlaoSizes& s = a.s;
  const FlaoParts parts(s.n, s.units);
  const bool to_kv = stage == FlaoStage::gradients && a.d_kv.defined && a.d_kv.numel() > 0;
  with_row_shape<T>(std::max(s.width, s.e), s.e, [&]<class Shape>(Shape) {
    Queries<T> c{
        input_grad_of<T>(a.saved.q, a.transforms.q, s.d, s.n, a.workspace.q, a.grads.q, stage),
        input_grad_of<T>(a.saved.g, a.transforms.g, s.e, s.n, a.workspace.g, a.grads.g, stage),
        FlaoView(a.d_o),
        FlaoView(a.saved.qkv),
        static_cast<std::uint32_t>(a.d_o.size(1)),
        static_cast<std::uint32_t>(parts.count),
        static_cast<std::uint32_t>(parts.length),
        slices_of<T>(static_cast<unsigned>(s.e)),
        !a.saved.qkv.defined,
        a.saved.kv.defined ? a.saved.kv.as<T>() : nullptr,
        !to_kv            ? nullptr
        : parts.count > 1 ? a.workspace.sums.as<T>()
                          : a.d_kv.as<T>()};
    c.q.wanted = c.q.wanted && to_q;
    c.g.wanted = c.g.wanted && to_g;
    if (!c.q.wanted && !c.g.wanted && !to_kv) return;
    const unsigned slices = to_kv ? c.slices * slices_of<T>(static_cast<unsigned>(s.width)) : 1;
    run(Queue(a.d_o), differentiate_queries<Shape>,
        static_cast<unsigned>(s.units * parts.count * slices), block_threads,
        flao_shared_bytes<T>(Shape::rows, std::max(s.width, s.e), s.e), c);
    if (stage == FlaoStage::means && c.q.wanted) reduce_flao_means(a.workspace.q);
    if (stage == FlaoStage::means && c.g.wanted) reduce_flao_means(a.workspace.g);
  });
  if (to_kv && parts.count > 1) reduce_flao_parts(a.workspace.sums, parts.count, a.d_kv);
}

template <class T>
void backward_as(const FlaoBackward& a) {
  if (a.saved.fill_kv) {
    compute_flao_kv(a.saved.k, a.saved.v, a.transforms, a.workspace, a.s, a.saved.kv);
  }
  if (a.s.units == 0) return;
  run_queries<T>(a, FlaoStage::means, true, false);
  run_queries<T>(a, FlaoStage::means, false, true);
  run_queries<T>(a, FlaoStage::gradients, true, true);
}

}  // namespace

void flao_backward_general(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoTransforms& transforms,
                           const FlaoWorkspace& workspace) {
  const FlaoBackward a{d_o, saved, d_kv, grads, transforms, workspace, saved.sizes};
  d_o.dtype == f64 ? backward_as<double>(a) : backward_as<float>(a);
  differentiate_flao_keys(a);
}

}  // namespace on_cuda
}  // namespace quipu::detail
