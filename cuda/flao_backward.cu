// Gated linear attention, backward, for all types, sizes, strides and encodings. Pass 1: a block
// has a part of the queries. Tiles of q~ are multiplied by kv, pass the gate, which gives d_g and
// turns the product into its own gradient, are summed into d_kv in registers, and go back through
// kv to d_q; parts of d_kv are added in order. Pass 2: a block has a tile of keys and multiplies it
// by d_kv, which gives d_v and d_k. What lies between the products exists in shared memory only.
// Inputs are read once by each pass, and once more where softmax goes over the sequence: that needs
// a mean over all tokens before the first gradient can go back. Bound by the multiply-add units.
#include "flao_tiles.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace {

/// The sums over the tokens of a tile, added to those of the tiles before; a thread has the same
/// columns every time.
template <class T>
__device__ __forceinline__ void add_columns(const Tile<T>& tile, unsigned features, T* sums) {
  for (unsigned c = threadIdx.x; c < features; c += block_threads) {
    T sum(0);
    for (unsigned r = 0; r < tile.valid; ++r) sum += tile.row(r)[c];
    sums[c] += sum;
  }
}
template <class T>
__device__ __forceinline__ void clear_columns(unsigned features, T* sums) {
  for (unsigned c = threadIdx.x; c < features; c += block_threads) sums[c] = T(0);
}

/// Gradients of one of q, k, v, g.
template <class T>
struct Way {
  FlaoRows<T> rows;
  FlaoTarget target;
  bool wanted;
  T* means;  // (units, parts, features): sums of parts, if `target.measure`

  __device__ __forceinline__ T* means_of(std::uint32_t part_of_unit) const {
    return means + static_cast<std::int64_t>(part_of_unit) * rows.features;
  }
  /// The gradients of rows of x~ in a tile that all threads filled.
  __device__ __forceinline__ void deliver(const FlaoUnit& unit, const Tile<T>& tile,
                                          std::uint32_t part_of_unit) const {
    deliver_rows(rows, unit, tile, target);
    if (!target.measure) return;
    __syncthreads();
    add_columns(tile, rows.features, means_of(part_of_unit));
  }
};

template <class T>
struct Queries {
  Way<T> q, g;
  FlaoPlace d_o, qkv;
  std::uint32_t heads, parts, length;
  unsigned slices;  // of a row of d_kv
  bool multiply;    // q~ kv is to be made
  const T* kv;      // (units, width, e)
  T* d_kv;          // (units, parts, width, e), null where nobody needs it
};

/// z = q~ kv gives the gradient of g and becomes its own one, row by row of the tile; either may be
/// all that is wanted.
template <class T>
__device__ __forceinline__ void pass_gate(const Queries<T>& c, const FlaoUnit& unit,
                                          const Tile<T>& z, bool to_gate, bool to_product) {
  constexpr unsigned step = vector_width<T>;
  const FlaoRows<T>& g = c.g.rows;
  const FlaoTarget& target = c.g.target;
  const bool needs_g = to_product || g.act != Act::none;
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned r = warp; r < z.rows; r += block_warps) {
    T* const row = z.row(r);
    const std::uint32_t token = z.first + r;
    const bool valid = r < z.valid;
    const std::int64_t from = g.place.start(unit, token), up_from = c.d_o.start(unit, token);
    const auto gate = [&](unsigned i) { return g.place.template load<T>(from, i); };
    const auto product = [&](unsigned i) {
      return c.multiply ? load_vector(row, i) : c.qkv.template load<T>(c.qkv.start(unit, token), i);
    };
    Softmax<T> of_row;
    if (valid && g.over_features) {
      of_row = g.row_softmax(lane, gate);
      T dot(0);
      for (unsigned i = lane * step; to_gate && i < g.features; i += warp_size * step) {
        const Vector<T> x = gate(i), up = c.d_o.template load<T>(up_from, i), p = product(i);
#pragma unroll
        for (unsigned j = 0; j < step; ++j) {
          if (i + j < g.features) dot += of_row.of(x[j]) * (up[j] * p[j]);
        }
      }
      of_row.mean = fold_warp(dot, [](T a, T b) { return a + b; });
    }
    for (unsigned i = lane * step; i < g.features; i += warp_size * step) {
      Vector<T> x{}, d{}, up{};
      if (valid) {
        up = c.d_o.template load<T>(up_from, i);
        if (needs_g) x = gate(i);
        if (to_gate) d = product(i);
#pragma unroll
        for (unsigned j = 0; j < step; ++j) {
          const Softmax<T> softmax = g.softmax(unit, i + j, of_row, to_gate && !target.measure);
          if (to_gate) d[j] = activated_back(g.act, x[j], up[j] * d[j], softmax);
          const T y = activated(g.act, x[j], softmax);
          up[j] = i + j < g.features ? up[j] * y : T(0);
        }
        if (to_gate && !target.measure) {
          target.place.put(target.place.start(unit, token), i, d, target.add);
        }
      }
      if (to_product) store_vector(row, i, up);
      if (to_gate && target.measure && !to_product) store_vector(row, i, d);
    }
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
  ColumnProduct<T> d_kv(slice / c.slices * slice_width<T>, slice % c.slices * slice_width<T>, width,
                        e);
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
    for (unsigned column = 0; to_g && c.multiply && column < e; column += slice_width<T>) {
      RowProduct<Shape> product;
      multiply_rows(q, FlaoMatrix<T, false>{kv, width, e}, column, slab, product);
      product.store(z, column, e);
    }
    __syncthreads();
    pass_gate(c, unit, z, to_g, !measure_gate && (to_q || to_kv));
    __syncthreads();
    if (measure_gate) {
      add_columns(z, c.g.rows.features, c.g.means_of(part_of_unit));
      __syncthreads();
      if (to_q) pass_gate(c, unit, z, false, true);
      __syncthreads();
    }
    if (to_kv) d_kv.add(q, z);
    if (!to_q) continue;
    __syncthreads();
    for (unsigned column = 0; column < width; column += slice_width<T>) {
      RowProduct<Shape> product;
      multiply_rows(z, FlaoMatrix<T, true>{kv, e, width}, column, slab, product);
      product.store(q, column, width);
    }
    __syncthreads();
    c.q.deliver(unit, q, part_of_unit);
  }
  if (to_kv) d_kv.store(c.d_kv + part_of_unit * size);
}

template <class T>
struct Keys {
  Way<T> k, v;
  std::uint32_t heads, parts, length, tokens;
  const T* d_kv;  // (units, width, e)
};

/// Block: a part of the keys of a unit, perhaps of one tile only.
template <class Shape, class T = typename Shape::T>
__global__ void __launch_bounds__(block_threads, 2)
    differentiate_keys(const __grid_constant__ Keys<T> c) {
  T* const shared = dynamic_shared<T>();
  const unsigned width = c.k.rows.width, e = c.v.rows.width;
  const FlaoUnit unit(blockIdx.x / c.parts, c.heads);
  Tile<T> in{shared, pitch_of<T>(max(width, e)), Shape::rows, 0, 0};
  Tile<T> out{in.row(Shape::rows), in.pitch, Shape::rows, 0, 0};
  T* const slab = out.row(Shape::rows);
  const T* const d_kv = c.d_kv + unit.index * static_cast<std::int64_t>(width) * e;
  if (c.k.wanted && c.k.target.measure) clear_columns(c.k.rows.features, c.k.means_of(blockIdx.x));
  if (c.v.wanted && c.v.target.measure) clear_columns(c.v.rows.features, c.v.means_of(blockIdx.x));
  const std::uint32_t begin = min(blockIdx.x % c.parts * c.length, c.tokens);
  const std::uint32_t end = min(begin + c.length, c.tokens);
  for (std::uint32_t first = begin; first < end; first += Shape::rows) {
    in.first = out.first = first;
    in.valid = out.valid = min(Shape::rows, end - first);
    const auto pass = [&](const Way<T>& from, const Way<T>& to, auto matrix) {
      if (!to.wanted) return;
      __syncthreads();
      encode_rows(from.rows, unit, in);
      for (unsigned column = 0; column < matrix.columns; column += slice_width<T>) {
        RowProduct<Shape> product;
        multiply_rows(in, matrix, column, slab, product);
        product.store(out, column, matrix.columns);
      }
      __syncthreads();
      to.deliver(unit, out, blockIdx.x);
    };
    pass(c.k, c.v, FlaoMatrix<T, false>{d_kv, width, e});
    pass(c.v, c.k, FlaoMatrix<T, true>{d_kv, e, width});
  }
}

// ---- on the host ----

/// The means of softmax over the sequence come first.
enum class Stage { measure, deliver };

struct Call {
  const View& d_o;
  const FlaoSaved& saved;
  const View& d_kv;
  const FlaoGrads& grads;
  const FlaoEncodings& encodings;
  const FlaoSpace& space;
  const FlaoSizes& s;
};

bool is_wanted(const Grad& grad, const RowEncoding& encoding, Stage stage) {
  return grad.wanted() && (stage == Stage::deliver || encoding.has_columns());
}

template <class T>
Way<T> way_of(const View& x, const RowEncoding& encoding, std::int64_t features,
              std::int64_t tokens, const FlaoColumns& columns, const Grad& grad, Stage stage) {
  return {FlaoRows<T>(x, encoding, features, tokens, columns),
          {FlaoPlace(grad.view), grad.add, stage == Stage::measure},
          is_wanted(grad, encoding, stage),
          encoding.has_columns() ? columns.parts.as<T>() : nullptr};
}

template <class T>
void run_queries(const Call& a, Stage stage) {
  const FlaoSizes& s = a.s;
  const FlaoParts parts(s.n, s.units);
  const bool to_kv = stage == Stage::deliver && a.d_kv.defined && a.d_kv.numel() > 0;
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
    if (!c.q.wanted && !c.g.wanted && !to_kv) return;
    const unsigned slices = to_kv ? c.slices * slices_of<T>(static_cast<unsigned>(s.width)) : 1;
    run(Queue(a.d_o), differentiate_queries<Shape>,
        static_cast<unsigned>(s.units * parts.count * slices), block_threads,
        flao_shared_bytes<T>(Shape::rows, std::max(s.width, s.e), s.e), c);
    if (stage == Stage::measure && c.q.wanted) add_flao_means(a.space.q);
    if (stage == Stage::measure && c.g.wanted) add_flao_means(a.space.g);
  });
  if (to_kv && parts.count > 1) add_flao_parts(a.space.sums, parts.count, a.d_kv);
}

template <class T>
void run_keys(const Call& a, Stage stage) {
  const FlaoSizes& s = a.s;
  const std::int64_t widest = std::max(s.width, s.e);
  with_row_shape<T>(widest, widest, [&]<class Shape>(Shape) {
    // Sums need the parts of the workspace; otherwise a tile is a part.
    const FlaoParts long_parts(s.m, s.units);
    const std::int64_t length = stage == Stage::measure ? long_parts.length : Shape::rows;
    const std::int64_t parts =
        stage == Stage::measure ? long_parts.count : (s.m + length - 1) / length;
    const Keys<T> c{way_of<T>(a.saved.k, a.encodings.k, s.d, s.m, a.space.k, a.grads.k, stage),
                    way_of<T>(a.saved.v, a.encodings.v, s.e, s.m, a.space.v, a.grads.v, stage),
                    static_cast<std::uint32_t>(a.d_o.size(1)),
                    static_cast<std::uint32_t>(parts),
                    static_cast<std::uint32_t>(length),
                    static_cast<std::uint32_t>(s.m),
                    a.d_kv.as<T>()};
    if (!c.k.wanted && !c.v.wanted) return;
    run(Queue(a.d_o), differentiate_keys<Shape>, static_cast<unsigned>(s.units * parts),
        block_threads, flao_shared_bytes<T>(Shape::rows, widest, widest), c);
    if (stage == Stage::measure && c.k.wanted) add_flao_means(a.space.k);
    if (stage == Stage::measure && c.v.wanted) add_flao_means(a.space.v);
  });
}

template <class T>
void backward_as(const Call& a) {
  if (a.saved.fill_kv) {
    multiply_flao_keys(a.saved.k, a.saved.v, a.encodings, a.space, a.s, a.saved.kv);
  }
  if (a.s.units == 0) return;
  for (const Stage stage : {Stage::measure, Stage::deliver}) run_queries<T>(a, stage);
  if (a.s.m == 0 || !a.d_kv.defined) return;
  for (const Stage stage : {Stage::measure, Stage::deliver}) run_keys<T>(a, stage);
}

void backward(View d_o, const FlaoSaved& saved, View d_kv, const FlaoGrads& grads, View space,
              const FlaoEncodings& encodings) {
  const FlaoSpace parts(saved.sizes, encodings, space, d_kv.defined, saved.fill_kv);
  find_flao_columns(saved.q, encodings.q, parts.q);
  find_flao_columns(saved.k, encodings.k, parts.k);
  find_flao_columns(saved.v, encodings.v, parts.v);
  find_flao_columns(saved.g, encodings.g, parts.g);
  if (flao_backward_by_tensor_cores(d_o, saved, d_kv, grads, encodings, parts)) return;
  const Call a{d_o, saved, d_kv, grads, encodings, parts, saved.sizes};
  d_o.dtype == f64 ? backward_as<double>(a) : backward_as<float>(a);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_flao_backward() {
  flao_backward_kernel.provide(DeviceKind::cuda, on_cuda::backward);
}

}  // namespace quipu
