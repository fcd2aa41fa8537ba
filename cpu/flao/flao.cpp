// flao, linear attention with an output gate: forward. A batch entry and head is one piece of work:
// kv, which stays in the second-level cache, is summed over blocks of keys, then blocks of queries
// are multiplied by it, and each part of that by the gate while it is in the first-level cache. Few
// heads are cut further (FlaoPieces). Plain rows of any type are read by the products where they
// lie; rows with an activation or a position encoding pass through a tile. Everything is read once
// and written once, and asked for while the product before it is made.
//
// Bound by the multiply-add units: at 256 tokens of 128 features 0.76 of their peak in f32. Plain
// bf16 goes by pairs in the first product. kv has more digits than bf16 and stays f32 (as bf16 and
// its residual it would take as long), so that the bound is three quarters of the time of f32, of
// which this is 0.73; a fifth of the time is packing, gating and reading what was asked for.
#include "quipu/core/threads/parallel.h"
#include "rows.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
using Next = typename Gemm<T>::Next;

template <class T>
class Queries {
 public:
  Queries(FlaoScratch<T>& scratch, FlaoRows<T>& q, FlaoRows<T>& g, const View& qkv, const View& o)
      : scratch_(scratch), q_(q), g_(g), qkv_(qkv), o_(o) {}

  /// o = g~ * (q~ kv) for tokens from `begin` to `end`. `next` gives what is read after it.
  template <class F>
  void run(std::int64_t b, std::int64_t h, T* kv, std::int64_t begin, std::int64_t end, F next) {
    const std::int64_t n = end - begin, e = o_.size(3);
    const bool in_parts = q_.width() <= scratch_.gemm.depth_at_once(e);
    const std::int64_t q_width = q_.tile_width(), g_width = g_.tile_width();
    const std::int64_t block = std::min(
        even_part(n, most_rows), scratch_.rows_at_once(n, q_width + g_width + (in_parts ? 0 : e)));
    T* const gates = scratch_.tile() + block * q_width;
    T* const product = in_parts ? nullptr : gates + block * g_width;
    for (std::int64_t first = begin; first < end; first += block) {
      const std::int64_t rows = std::min(block, end - first), behind = first + rows;
      const Matrix gate = g_.encoded(first, rows, gates);
      const Matrix o = rows_of(o_, b, h, first, rows), qkv = rows_of(qkv_, b, h, first, rows);
      auto take = [&](const ProductPart<T>& part) {
        if (qkv_.defined) keep(beside(qkv, part.row, part.column), part);
        finish(beside(gate, part.row, part.column), beside(o, part.row, part.column), part);
      };
      const ProductTaker<T> taker(take);
      scratch_.gemm.multiply(q_.encoded(first, rows, scratch_.tile()), dense(kv, q_.width(), e),
                             product, e, false, behind < end ? ahead(b, h, behind) : next(),
                             &taker);
    }
  }

  /// What is read and written first from a token on.
  Next<T> ahead(std::int64_t b, std::int64_t h, std::int64_t first) const {
    const std::int64_t rows = std::min(most_rows, o_.size(2) - first);
    return {q_.ahead(first, rows), g_.ahead(first, rows), rows_of(o_, b, h, first, rows)};
  }

 private:
  static constexpr std::int64_t most_rows = 128;  // what is asked for in advance stays near

  static Matrix rows_of(const View& v, std::int64_t b, std::int64_t h, std::int64_t first,
                        std::int64_t rows) {
    if (!v.defined || v.numel() == 0) return {};
    const std::int64_t offset = b * v.stride(0) + h * v.stride(1) + first * v.stride(2);
    return {at(v, offset), v.dtype, rows, v.size(3), v.stride(2), v.stride(3)};
  }

  static void keep(const Matrix& qkv, const ProductPart<T>& part) {
    for (std::int64_t i = 0; i < part.rows; ++i) {
      store_run(qkv.at(i, 0), qkv.dtype, qkv.column_stride, part.sums + i * part.stride,
                part.columns);
    }
  }

  static void finish(const Matrix& gate, const Matrix& o, const ProductPart<T>& part) {
    for (std::int64_t i = 0; i < part.rows; ++i) {
      T* const sums = part.sums + i * part.stride;
      if constexpr (std::is_same_v<T, float>) {
        if (dense_bf16(gate) && dense_bf16(o)) {
          multiply_bf16(bf16_row(o, i), bf16_row(gate, i), sums, part.columns);
          continue;
        }
      }
      T gates[FlaoScratch<T>::part_width];
      const T* g = gates;
      if (gate.dtype == dtype_of<T> && gate.column_stride == 1) {
        g = static_cast<const T*>(gate.at(i, 0));
      } else {
        load_run(gates, gate.at(i, 0), gate.dtype, gate.column_stride, part.columns);
      }
      const bool direct = o.dtype == dtype_of<T> && o.column_stride == 1;
      T* const to = direct ? static_cast<T*>(o.at(i, 0)) : sums;
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < part.columns; ++j) to[j] = g[j] * sums[j];
      if (!direct) store_run(o.at(i, 0), o.dtype, o.column_stride, to, part.columns);
    }
  }

  static void multiply_bf16(BFloat16* o, const BFloat16* gate, float* sums, std::int64_t n) {
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < n; ++j) sums[j] *= widened(gate[j]);
    narrow_run(o, sums, n);
  }

  FlaoScratch<T>& scratch_;
  FlaoRows<T>&q_, &g_;
  const View &qkv_, &o_;
};

/// First kv of all units, then what is multiplied by it.
template <class T>
void forward_in_pieces(const FlaoPieces& pieces, const View& q, const View& k, const View& v,
                       const View& g, const View& kv, const View& qkv, const View& o,
                       const FlaoTransforms& transforms, const FlaoSizes& s) {
  const FlaoUnits& units = pieces.units;
  const auto product = [&](std::int64_t unit) {
    return kv.as<T>() + units.place(unit) * s.width * s.e;
  };
  parallel_for(units.count() * pieces.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
    FlaoScratch<T> scratch;
    FlaoRows<T> k_rows(scratch, k, transforms.k, s.d), v_rows(scratch, v, transforms.v, s.e);
    pieces.for_each_part(begin, end, [&](std::int64_t unit, std::int64_t row) {
      for (FlaoRows<T>* rows : {&k_rows, &v_rows}) rows->begin(units.entry(unit), units.head(unit));
      const std::int64_t rows = std::min(pieces.rows, s.width - row);
      multiply_keys(scratch, k_rows, v_rows, product(unit), {}, row, rows);
    });
  });
  parallel_for(units.count() * pieces.blocks(s.n), 1, [&](std::int64_t begin, std::int64_t end) {
    FlaoScratch<T> scratch;
    FlaoRows<T> q_rows(scratch, q, transforms.q, s.d), g_rows(scratch, g, transforms.g, s.e);
    Queries<T> queries(scratch, q_rows, g_rows, qkv, o);
    pieces.for_each_block(begin, end, s.n, [&](std::int64_t unit, std::int64_t first) {
      const std::int64_t b = units.entry(unit), h = units.head(unit);
      for (FlaoRows<T>* rows : {&q_rows, &g_rows}) rows->begin(b, h);
      const std::int64_t behind = std::min(first + pieces.tokens, s.n);
      queries.run(b, h, product(unit), first, behind,
                  [&] { return behind < s.n ? queries.ahead(b, h, behind) : Next<T>{}; });
    });
  });
}

template <class T>
void forward_as(const View& q, const View& k, const View& v, const View& g, const View& kv,
                const View& qkv, const View& o, const FlaoTransforms& transforms,
                const FlaoSizes& s) {
  const std::int64_t d = s.d, e = s.e, size = s.width * e;
  const FlaoUnits units{q.size(0), q.size(1), (s.n + s.m) * size};
  const FlaoPieces pieces(units, transforms, s.width);
  if (pieces.wanted()) {
    return forward_in_pieces<T>(pieces, q, k, v, g, kv, qkv, o, transforms, s);
  }
  parallel_for(units.count(), units.grain(), [&](std::int64_t begin, std::int64_t end) {
    FlaoScratch<T> scratch;
    FlaoRows<T> q_rows(scratch, q, transforms.q, d), k_rows(scratch, k, transforms.k, d);
    FlaoRows<T> v_rows(scratch, v, transforms.v, e), g_rows(scratch, g, transforms.g, e);
    Queries<T> queries(scratch, q_rows, g_rows, qkv, o);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t b = units.entry(unit), h = units.head(unit);
      for (FlaoRows<T>* rows : {&q_rows, &k_rows, &v_rows, &g_rows}) rows->begin(b, h);
      T* const product = kv.as<T>() + units.place(unit) * size;
      multiply_keys(scratch, k_rows, v_rows, product, queries.ahead(b, h, 0));
      queries.run(b, h, product, 0, s.n, [&]() -> Next<T> {
        const std::int64_t next = unit + 1;  // most likely this thread's, too
        if (next == units.count()) return {};
        return {k_rows.ahead(units.entry(next), units.head(next), 0, s.m),
                v_rows.ahead(units.entry(next), units.head(next), 0, s.m)};
      });
    }
  });
}

void forward(View q, View k, View v, View g, View kv, View qkv, View o, View /*space*/,
             const FlaoTransforms& transforms, const FlaoSizes& sizes) {
  (q.dtype == f64 ? forward_as<double> : forward_as<float>)(q, k, v, g, kv, qkv, o, transforms,
                                                            sizes);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_flao() {
  flao_forward_kernel.provide(Variant::cpu, on_cpu::forward);
}

}  // namespace quipu::detail
