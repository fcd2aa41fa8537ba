// Gated linear attention, forward. A batch entry and head is one piece of work: kv, which stays in
// the second-level cache, is summed over blocks of keys, then blocks of queries are multiplied by
// it and by the gate. Plain rows of any type are read by the products where they lie; rows with an
// activation or a position encoding pass through a tile. Everything is read once and written once;
// bound by the multiply-add units.
#include "flao_rows.h"
#include "quipu/core/parallel.h"

namespace quipu {
namespace on_cpu {
namespace {

template <class T>
class Queries {
 public:
  Queries(FlaoBench<T>& bench, FlaoRows<T>& q, FlaoRows<T>& g, const View& qkv, const View& o)
      : bench_(bench), q_(q), g_(g), qkv_(qkv), o_(Grad::write_to(o)) {}

  /// o = g~ * (q~ kv)
  void run(std::int64_t b, std::int64_t h, T* kv) {
    const std::int64_t n = o_.view.size(2), e = o_.view.size(3);
    const std::int64_t block = bench_.rows_at_once(n, q_.tile_width() + e);
    T* const product = bench_.tile() + block * q_.tile_width();
    for (std::int64_t first = 0; first < n; first += block) {
      const std::int64_t rows = std::min(block, n - first);
      bench_.gemm.multiply(q_.encoded(first, rows, bench_.tile()), matrix_of_kv(kv, q_.width(), e),
                           product, e, false);
      for (std::int64_t i = 0; i < rows; ++i) finish(b, h, first + i, product + i * e);
    }
  }

 private:
  void finish(std::int64_t b, std::int64_t h, std::int64_t token, T* product) {
    const auto offset = [&](const View& v) {
      return b * v.stride(0) + h * v.stride(1) + token * v.stride(2);
    };
    const std::int64_t e = o_.view.size(3);
    if (qkv_.defined) {
      store_run(at(qkv_, offset(qkv_)), qkv_.dtype, qkv_.stride(3), product, e);
    }
    const T* gate = g_.activated(token, bench_.spare);
    const std::int64_t to = offset(o_.view), stride = o_.view.stride(3);
    T* const o = place_of_row(product, o_, to, stride, e);
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < e; ++j) o[j] = gate[j] * product[j];
    finish_row(o_, to, stride, o, e);
  }

  FlaoBench<T>& bench_;
  FlaoRows<T>&q_, &g_;
  const View& qkv_;
  Grad o_;
};

template <class T>
void forward_as(const View& q, const View& k, const View& v, const View& g, const View& kv,
                const View& qkv, const View& o, const FlaoEncodings& encodings) {
  const std::int64_t d = q.size(3), e = v.size(3), size = kv.size(2) * e;
  const FlaoUnits units{q.size(0), q.size(1), (q.size(2) + k.size(2)) * size};
  parallel_for(units.count(), units.grain(), [&](std::int64_t begin, std::int64_t end) {
    FlaoBench<T> bench;
    FlaoRows<T> q_rows(bench, q, encodings.q, d), k_rows(bench, k, encodings.k, d);
    FlaoRows<T> v_rows(bench, v, encodings.v, e), g_rows(bench, g, encodings.g, e);
    Queries<T> queries(bench, q_rows, g_rows, qkv, o);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t b = units.entry(unit), h = units.head(unit);
      for (FlaoRows<T>* rows : {&q_rows, &k_rows, &v_rows, &g_rows}) rows->begin(b, h);
      T* const product = kv.as<T>() + units.place(unit) * size;
      multiply_keys(bench, k_rows, v_rows, product);
      queries.run(b, h, product);
    }
  });
}

void forward(View q, View k, View v, View g, View kv, View qkv, View o, View /*space*/,
             const FlaoEncodings& encodings) {
  (q.dtype == f64 ? forward_as<double> : forward_as<float>)(q, k, v, g, kv, qkv, o, encodings);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_flao() {
  flao_forward.provide(DeviceKind::cpu, on_cpu::forward);
}

}  // namespace quipu
