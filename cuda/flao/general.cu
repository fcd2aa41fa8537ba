// Gated linear attention, forward, for all types, sizes, strides and encodings. kv = k~^T v~ is
// split-K over tokens: a block has a part of a sequence and accumulates a slice of kv in registers,
// tile by tile of k~ and v~; a second kernel adds the parts in order. o = g~ * (q~ kv): a block has
// a tile of queries and multiplies it by kv, which comes from L2; the gate is applied in shared
// memory. Every input is read once, as often as there are slices of 128 features (64 in f64) for k
// and v. Bound by the multiply-add units, not by memory.
//
// sass multiply_keys: need LDG.E.128 STS.128 LDS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
// registers 128
// sass multiply_queries: need LDG.E.128 STS.128 LDS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
// registers 128
#include "quipu/cuda/runtime/run.h"
#include "tiles.cuh"

namespace quipu::detail {
namespace on_cuda {
using namespace gated;
namespace {

template <class T>
struct Keys {
  FlaoRows<T> inputs[2];  // k, v
  std::uint32_t heads, parts, length;
  unsigned tile_rows, slices;  // slices of a row of kv
  T* kv;                       // (units, parts, width, e)
};

/// A block has one slice of kv and one part of the tokens of a unit.
template <class T>
__global__ void __launch_bounds__(block_threads, 2)
    multiply_keys(const __grid_constant__ Keys<T> c) {
  T* const shared = dynamic_shared<T>();
  const unsigned width = c.inputs[0].width, e = c.inputs[1].width;
  const unsigned slices = c.slices * slices_of<T>(width);
  const unsigned slice = blockIdx.x % slices, part = blockIdx.x / slices % c.parts;
  const FlaoUnit unit(blockIdx.x / slices / c.parts, c.heads);
  Tile<T> k{shared, pitch_of<T>(width), c.tile_rows, 0, 0};
  Tile<T> v{shared + c.tile_rows * k.pitch, pitch_of<T>(e), c.tile_rows, 0, 0};
  ColumnProduct<T> product;
  product.first_row = slice / c.slices * slice_width<T>;
  product.first_column = slice % c.slices * slice_width<T>;
  product.rows = width;
  product.columns = e;
  const std::uint32_t begin = min(part * c.length, c.inputs[0].tokens);
  const std::uint32_t end = min(begin + c.length, c.inputs[0].tokens);
  for (std::uint32_t first = begin; first < end; first += c.tile_rows) {
    k.first = v.first = first;
    k.valid = v.valid = min(c.tile_rows, end - first);
    __syncthreads();
#pragma unroll 1
    for (unsigned i = 0; i < 2; ++i) {
      encode_rows(c.inputs[i], unit, select_tile(i == 0, k, v));
    }
    __syncthreads();
    product.add(k, v);
  }
  product.store(c.kv + (static_cast<std::int64_t>(unit.index) * c.parts + part) * width * e);
}

template <class T>
struct Queries {
  FlaoRows<T> q, g;
  FlaoView o, qkv;
  std::uint32_t heads, tiles;
  const T* kv;
};

/// Epilogue: o = g~ * z and qkv = z, with z in a tile. A warp loads the rows of g that it uses.
template <class T>
__device__ __forceinline__ void apply_gate(const Queries<T>& c, const FlaoUnit& unit,
                                           const Tile<T>& gate, const Tile<T>& z) {
  constexpr unsigned step = vector_width<T>;
  encode_rows(c.g, unit, gate);
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned r = warp; r < z.valid; r += block_warps) {
    for (unsigned i = lane * step; i < c.g.features; i += warp_size * step) {
      Vector<T> o = load_vector(gate.row(r), i);
      const Vector<T> factor = load_vector(z.row(r), i);
#pragma unroll
      for (unsigned j = 0; j < step; ++j) o[j] *= factor[j];
      c.o.put(c.o.start(unit, z.first + r), i, o, false);
      if (c.qkv.data != nullptr) c.qkv.put(c.qkv.start(unit, z.first + r), i, factor, false);
    }
  }
}

/// A block has a tile of queries of a unit.
template <class Shape, class T = typename Shape::T>
__global__ void __launch_bounds__(block_threads, 2)
    multiply_queries(const __grid_constant__ Queries<T> c) {
  T* const shared = dynamic_shared<T>();
  const unsigned width = c.q.width, e = c.g.width;
  const FlaoUnit unit(blockIdx.x / c.tiles, c.heads);
  const std::uint32_t first = blockIdx.x % c.tiles * Shape::rows;
  const std::uint32_t valid = min(Shape::rows, c.q.tokens - first);
  const Tile<T> q{shared, pitch_of<T>(max(width, e)), Shape::rows, first, valid};
  const Tile<T> z{q.row(Shape::rows), pitch_of<T>(e), Shape::rows, first, valid};
  T* const slab = z.row(Shape::rows);
  encode_rows(c.q, unit, q);
  const std::int64_t size = static_cast<std::int64_t>(width) * e;
  const FlaoMatrix<T> kv{c.kv + unit.index * size, width, e, false};
  for (unsigned column = 0; column < e; column += slice_width<T>) {
    RowProduct<Shape> product;
    multiply_rows(q, kv, column, slab, product);
    product.store(z, column, e);
  }
  __syncthreads();
  apply_gate(c, unit, q, z);
}

// ---- on the host ----

template <class T>
void forward_as(const View& q, const View& k, const View& v, const View& g, const View& kv,
                const View& qkv, const View& o, const FlaoTransforms& transforms,
                const FlaoWorkspace& workspace, const FlaoSizes& s) {
  compute_flao_kv(k, v, transforms, workspace, s, kv);
  if (o.numel() == 0) return;
  with_row_shape<T>(std::max(s.width, s.e), s.e, [&]<class Shape>(Shape) {
    const std::int64_t tiles = (s.n + Shape::rows - 1) / Shape::rows;
    const Queries<T> c{FlaoRows<T>(q, transforms.q, s.d, s.n, workspace.q),
                       FlaoRows<T>(g, transforms.g, s.e, s.n, workspace.g),
                       FlaoView(o),
                       FlaoView(qkv),
                       static_cast<std::uint32_t>(q.size(1)),
                       static_cast<std::uint32_t>(tiles),
                       kv.as<T>()};
    run(Queue(q), multiply_queries<Shape>, static_cast<unsigned>(s.units * tiles), block_threads,
        flao_shared_bytes<T>(Shape::rows, std::max(s.width, s.e), s.e), c);
  });
}

template <class T>
void multiply_keys_as(const View& k, const View& v, const FlaoTransforms& transforms,
                      const FlaoWorkspace& workspace, const FlaoSizes& s, const View& kv) {
  const FlaoParts parts(s.m, s.units);
  const unsigned rows_of_slices = slices_of<T>(static_cast<unsigned>(s.width));
  const unsigned columns_of_slices = slices_of<T>(static_cast<unsigned>(s.e));
  with_row_shape<T>(s.width, s.e, [&]<class Shape>(Shape) {
    const Keys<T> c{{FlaoRows<T>(k, transforms.k, s.d, s.m, workspace.k),
                     FlaoRows<T>(v, transforms.v, s.e, s.m, workspace.v)},
                    static_cast<std::uint32_t>(k.size(1)),
                    static_cast<std::uint32_t>(parts.count),
                    static_cast<std::uint32_t>(parts.length),
                    Shape::rows,
                    columns_of_slices,
                    parts.count > 1 ? workspace.sums.as<T>() : kv.as<T>()};
    const std::int64_t blocks = s.units * parts.count * rows_of_slices * columns_of_slices;
    run(Queue(k), multiply_keys<T>, static_cast<unsigned>(blocks), block_threads,
        flao_shared_bytes<T>(Shape::rows, s.width, s.e), c);
  });
  if (parts.count > 1) reduce_flao_parts(workspace.sums, parts.count, kv);
}

}  // namespace

void compute_flao_kv(const View& k, const View& v, const FlaoTransforms& transforms,
                     const FlaoWorkspace& workspace, const FlaoSizes& sizes, const View& kv) {
  if (kv.numel() == 0) return;
  (kv.dtype == f64 ? multiply_keys_as<double> : multiply_keys_as<float>)(k, v, transforms,
                                                                         workspace, sizes, kv);
}

void flao_forward_general(const View& q, const View& k, const View& v, const View& g,
                          const View& kv, const View& qkv, const View& o,
                          const FlaoTransforms& transforms, const FlaoWorkspace& workspace,
                          const FlaoSizes& sizes) {
  (q.dtype == f64 ? forward_as<double> : forward_as<float>)(q, k, v, g, kv, qkv, o, transforms,
                                                            workspace, sizes);
}

}  // namespace on_cuda
}  // namespace quipu::detail
