// flao, linear attention with an output gate: forward. A batch entry and head is one piece of work:
// kv, which stays in the second-level cache, is summed over blocks of keys, then blocks of queries
// are multiplied by it and by the gate. Plain rows of any type are read by the products where they
// lie; rows with an activation or a position encoding pass through a tile. Everything is read once
// and written once, and asked for while the product before it is made; bound by the multiply-add
// units. Plain bf16 goes by pairs in the first product. kv has more digits than bf16 and stays f32:
// as bf16 and its residual it would take as long.
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
      : scratch_(scratch), q_(q), g_(g), qkv_(qkv), o_(Target::write_to(o)) {}

  /// o = g~ * (q~ kv). `next` gives what is read after it.
  template <class F>
  void run(std::int64_t b, std::int64_t h, T* kv, F next) {
    const std::int64_t n = o_.view.size(2), e = o_.view.size(3);
    const std::int64_t block = scratch_.rows_at_once(n, q_.tile_width() + e);
    T* const product = scratch_.tile() + block * q_.tile_width();
    for (std::int64_t first = 0; first < n; first += block) {
      const std::int64_t rows = std::min(block, n - first);
      const std::int64_t end = first + rows;
      const auto after = end < n ? Next<T>{q_.ahead(end, block)} : next();
      scratch_.gemm.multiply(
          q_.encoded(first, rows, scratch_.tile()), dense(kv, q_.width(), e), product, e, false,
          {g_.ahead(first, rows), place_of(b, h, first, rows), after[0], after[1]});
      for (std::int64_t i = 0; i < rows; ++i) finish(b, h, first + i, product + i * e);
    }
  }

 private:
  Matrix place_of(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows) const {
    const View& o = o_.view;
    const std::int64_t offset = b * o.stride(0) + h * o.stride(1) + first * o.stride(2);
    return {at(o, offset), o.dtype, rows, o.size(3), o.stride(2), o.stride(3)};
  }
  void finish(std::int64_t b, std::int64_t h, std::int64_t token, T* product) {
    const auto offset = [&](const View& v) {
      return b * v.stride(0) + h * v.stride(1) + token * v.stride(2);
    };
    const std::int64_t e = o_.view.size(3);
    if (qkv_.defined) {
      store_run(at(qkv_, offset(qkv_)), qkv_.dtype, qkv_.stride(3), product, e);
    }
    const std::int64_t to = offset(o_.view), stride = o_.view.stride(3);
    if (const BFloat16* plain = g_.plain_bf16(token); plain && stride == 1) {
      auto* o = reinterpret_cast<BFloat16*>(at(o_.view, to));
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < e; ++j)
        o[j] = narrowed(widened(plain[j]) * static_cast<float>(product[j]));
      return;
    }
    const T* gate = g_.activated(token, scratch_.spare);
    T* const o = place_of_row(product, o_, to, stride, e);
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < e; ++j) o[j] = gate[j] * product[j];
    finish_row(o_, to, stride, o, e);
  }

  FlaoScratch<T>& scratch_;
  FlaoRows<T>&q_, &g_;
  const View& qkv_;
  Grad o_;
};

template <class T>
void forward_as(const View& q, const View& k, const View& v, const View& g, const View& kv,
                const View& qkv, const View& o, const FlaoTransforms& transforms,
                const FlaoSizes& s) {
  const std::int64_t d = s.d, e = s.e, size = s.width * e;
  const FlaoUnits units{q.size(0), q.size(1), (s.n + s.m) * size};
  parallel_for(units.count(), units.grain(), [&](std::int64_t begin, std::int64_t end) {
    FlaoScratch<T> scratch;
    FlaoRows<T> q_rows(scratch, q, transforms.q, d), k_rows(scratch, k, transforms.k, d);
    FlaoRows<T> v_rows(scratch, v, transforms.v, e), g_rows(scratch, g, transforms.g, e);
    Queries<T> queries(scratch, q_rows, g_rows, qkv, o);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t b = units.entry(unit), h = units.head(unit);
      for (FlaoRows<T>* rows : {&q_rows, &k_rows, &v_rows, &g_rows}) rows->begin(b, h);
      T* const product = kv.as<T>() + units.place(unit) * size;
      multiply_keys(scratch, k_rows, v_rows, product, {q_rows.ahead(0, s.n)});
      queries.run(b, h, product, [&]() -> Next<T> {
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
