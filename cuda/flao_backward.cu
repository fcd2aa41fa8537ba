// Gated linear attention, backward, for all types, sizes, strides and encodings: the pass over
// queries. A block has a part of them. Tiles of q~ are multiplied by kv, pass the gate, which gives
// d_g and turns the product into its own gradient, are summed into d_kv in registers, and go back
// through kv to d_q; parts of d_kv are added in order. What lies between the products exists in
// shared memory only. Inputs are read once, and once more where softmax goes over the sequence:
// that needs a mean over all tokens before the first gradient can go back. Bound by the
// multiply-add units.
//
// sass differentiate_queries: need LDG.E.128 STS.128 LDS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
// registers 255
#include "flao_back.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
using namespace gated;
namespace {

template <class T>
struct Queries {
  FlaoWay<T> q, g;
  FlaoPlace d_o, qkv;
  std::uint32_t heads, parts, length;
  unsigned slices;  // of a row of d_kv
  bool multiply;    // q~ kv is to be made
  const T* kv;      // (units, width, e)
  T* d_kv;          // (units, parts, width, e), null where nobody needs it
};

/// z = q~ kv gives the gradient of g and becomes its own one, row by row of the tile. Where only
/// means are wanted of g, its products with that gradient take the place of z.
template <class T>
__device__ __forceinline__ void pass_gate(const Queries<T>& c, const FlaoUnit& unit,
                                          const Tile<T>& z, bool to_gate, bool to_product) {
  const FlaoRows<T>& g = c.g.rows;
  const FlaoTarget& target = c.g.target;
  const bool measure = to_gate && target.measure;
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
    const std::int64_t from = c.d_o.start(unit, token), to = target.place.start(unit, token);
    Vector<T> up;
    activate_row_back(
        g, unit, token, to_product || g.act != Act::none, to_gate && !measure,
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
          if (to_gate && !measure) target.place.put(to, i, d, target.add);
          Vector<T> product;
#pragma unroll
          for (unsigned j = 0; j < vector_width<T>; ++j) {
            product[j] = i + j < g.features ? up[j] * gate[j] : T(0);
          }
          if (measure || to_product) store_vector(row, i, measure ? d : product);
        });
  }
}

/// Block: a slice of d_kv of a part of a unit; the first slice also delivers the rows.
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
  const bool measure_gate = to_g && c.g.target.measure;
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
  if (to_q && c.q.target.measure) clear_columns(c.q.rows.features, c.q.means_of(part_of_unit));
  if (measure_gate) clear_columns(c.g.rows.features, c.g.means_of(part_of_unit));
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
      const bool there = step == 0;  // from q~ to z, and back to the gradient of q~
      const FlaoMatrix<T> matrix{kv, there ? width : e, there ? e : width, !there};
      const bool needed = there ? to_g && c.multiply : to_q;
      for (unsigned column = 0; needed && column < matrix.columns; column += slice_width<T>) {
        RowProduct<Shape> product;
        multiply_rows(chosen(there, q, z), matrix, column, slab, product);
        product.store(chosen(there, z, q), column, matrix.columns);
      }
      __syncthreads();
      if (!there) continue;
      pass_gate(c, unit, z, to_g, to_q || to_kv);
      __syncthreads();
      if (measure_gate) add_columns(z, c.g.rows.features, c.g.means_of(part_of_unit));
      if (to_kv) d_kv.add(q, z);
      __syncthreads();
    }
    if (to_q) c.q.deliver(unit, q, part_of_unit);
  }
  if (to_kv) d_kv.store(c.d_kv + part_of_unit * size);
}

// ---- on the host ----

template <class T>
void run_queries(const FlaoBackward& a, FlaoStage stage, bool to_q, bool to_g) {
  const FlaoSizes& s = a.s;
  const FlaoParts parts(s.n, s.units);
  const bool to_kv = stage == FlaoStage::deliver && a.d_kv.defined && a.d_kv.numel() > 0;
  with_row_shape<T>(std::max(s.width, s.e), s.e, [&]<class Shape>(Shape) {
    Queries<T> c{way_of<T>(a.saved.q, a.encodings.q, s.d, s.n, a.space.q, a.grads.q, stage),
                 way_of<T>(a.saved.g, a.encodings.g, s.e, s.n, a.space.g, a.grads.g, stage),
                 FlaoPlace(a.d_o),
                 FlaoPlace(a.saved.qkv),
                 static_cast<std::uint32_t>(a.d_o.size(1)),
                 static_cast<std::uint32_t>(parts.count),
                 static_cast<std::uint32_t>(parts.length),
                 slices_of<T>(static_cast<unsigned>(s.e)),
                 !a.saved.qkv.defined,
                 a.saved.kv.defined ? a.saved.kv.as<T>() : nullptr,
                 !to_kv            ? nullptr
                 : parts.count > 1 ? a.space.sums.as<T>()
                                   : a.d_kv.as<T>()};
    c.q.wanted = c.q.wanted && to_q;
    c.g.wanted = c.g.wanted && to_g;
    if (!c.q.wanted && !c.g.wanted && !to_kv) return;
    const unsigned slices = to_kv ? c.slices * slices_of<T>(static_cast<unsigned>(s.width)) : 1;
    run(Queue(a.d_o), differentiate_queries<Shape>,
        static_cast<unsigned>(s.units * parts.count * slices), block_threads,
        flao_shared_bytes<T>(Shape::rows, std::max(s.width, s.e), s.e), c);
    if (stage == FlaoStage::measure && c.q.wanted) add_flao_means(a.space.q);
    if (stage == FlaoStage::measure && c.g.wanted) add_flao_means(a.space.g);
  });
  if (to_kv && parts.count > 1) add_flao_parts(a.space.sums, parts.count, a.d_kv);
}

template <class T>
void backward_as(const FlaoBackward& a) {
  if (a.saved.fill_kv) {
    multiply_flao_keys(a.saved.k, a.saved.v, a.encodings, a.space, a.s, a.saved.kv);
  }
  if (a.s.units == 0) return;
  run_queries<T>(a, FlaoStage::measure, true, false);
  run_queries<T>(a, FlaoStage::measure, false, true);
  run_queries<T>(a, FlaoStage::deliver, true, true);
}

void backward(View d_o, const FlaoSaved& saved, View d_kv, const FlaoGrads& grads, View space,
              const FlaoEncodings& encodings) {
  const FlaoSpace parts(saved.sizes, encodings, space, d_kv.defined, saved.fill_kv);
  find_flao_columns(saved.q, encodings.q, parts.q);
  find_flao_columns(saved.k, encodings.k, parts.k);
  find_flao_columns(saved.v, encodings.v, parts.v);
  find_flao_columns(saved.g, encodings.g, parts.g);
  if (flao_backward_by_tensor_cores(d_o, saved, d_kv, grads, encodings, parts)) return;
  const FlaoBackward a{d_o, saved, d_kv, grads, encodings, parts, saved.sizes};
  d_o.dtype == f64 ? backward_as<double>(a) : backward_as<float>(a);
  differentiate_flao_keys(a);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_flao_backward() {
  flao_backward_kernel.provide(DeviceKind::cuda, on_cuda::backward);
}

}  // namespace quipu
