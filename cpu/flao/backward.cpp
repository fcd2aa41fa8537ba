// flao, linear attention with an output gate: backward. As forward, a batch entry and head is one
// piece of work. Blocks of queries give d_g and d_q and are summed into d_kv; then blocks of keys,
// multiplied by it, give d_k and d_v. What lies between the products, q~ kv and its gradient,
// exists for one block only. Inputs are read once, and once more where softmax goes over the
// sequence: that needs a mean over all tokens before the first gradient can go back. Bound by the
// multiply-add units.
#include "quipu/core/threads/parallel.h"
#include "rows.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// Softmax over the sequence needs means over all tokens before its first gradient: one pass finds
/// them, the next one writes gradients.
enum class Stage { means, gradients };

/// One of q, k, v, g and where its gradient goes.
template <class T>
struct InputGradient {
  FlaoRows<T>& rows;
  const Grad& grad;

  bool wanted(Stage stage) const {
    return grad.wanted() && (stage == Stage::gradients || rows.softmax_over_sequence());
  }
  bool direct() const { return rows.direct(grad); }
  /// What a row of gradients takes of a tile.
  std::int64_t tile_width() const { return grad.wanted() && !direct() ? rows.width() : 0; }

  void take(Stage stage, std::int64_t first, std::int64_t n, T* d) const {
    if (stage == Stage::means) return rows.add_to_means(first, n, d);
    rows.back(grad, first, n, d);
  }
  /// The gradients of rows of x~ are a b; `tile` is for those that can't be left in their place.
  void take_product(Stage stage, FlaoScratch<T>& scratch, const Matrix& a, const Matrix& b,
                    std::int64_t first, T* tile) const {
    if (direct()) {
      const std::int64_t stride = grad.view.stride(2);
      return scratch.gemm.multiply(a, b, rows.place(grad, first), stride, grad.add);
    }
    scratch.gemm.multiply(a, b, tile, b.columns, false);
    take(stage, first, a.rows, tile);
  }
};

template <class F>
void for_each_stage(bool needs_means, F f) {
  if (needs_means) f(Stage::means);
  f(Stage::gradients);
}

template <class T>
class Queries {
 public:
  Queries(FlaoScratch<T>& scratch, const View& d_o, const View& qkv, const InputGradient<T>& q,
          const InputGradient<T>& g)
      : scratch_(scratch), d_o_(d_o), qkv_(qkv), q_(q), g_(g) {}

  /// d_q, d_g, and d_kv unless it is null; kv may be null where it is not needed.
  void run(std::int64_t b, std::int64_t h, T* kv, T* d_kv) {
    b_ = b;
    h_ = h;
    kv_ = kv;
    d_kv_ = d_kv;
    if (d_kv && d_o_.size(2) == 0) std::fill_n(d_kv, q_.rows.width() * d_o_.size(3), T(0));
    for_each_stage(q_.wanted(Stage::means) || g_.wanted(Stage::means), [&](Stage stage) {
      run_stage(stage, q_.wanted(stage), g_.wanted(stage), stage == Stage::gradients && d_kv);
    });
  }

 private:
  void run_stage(Stage stage, bool to_q, bool to_g, bool to_kv) {
    const std::int64_t n = d_o_.size(2), e = d_o_.size(3), width = q_.rows.width();
    const bool multiply = to_g && !qkv_.defined, encode = multiply || to_kv;
    const std::int64_t q_width =
        std::max(encode ? q_.rows.tile_width() : 0, to_q ? q_.tile_width() : 0);
    const std::int64_t block = scratch_.rows_at_once(n, q_width + e);
    T *const q_tile = scratch_.tile(), *const product = q_tile + block * q_width;
    for (std::int64_t first = 0; first < n; first += block) {
      const std::int64_t rows = std::min(block, n - first);
      const Matrix q = encode ? q_.rows.encoded(first, rows, q_tile) : Matrix();
      if (multiply) scratch_.gemm.multiply(q, dense(kv_, width, e), product, e, false);
      for (std::int64_t i = 0; i < rows; ++i) {
        through_gate(stage, to_g, to_q || to_kv, first + i, product + i * e);
      }
      const Matrix d_product = dense(product, rows, e);
      if (to_kv) scratch_.gemm.multiply(q.transposed(), d_product, d_kv_, e, first > 0);
      if (to_q) {
        q_.take_product(stage, scratch_, d_product, dense(kv_, width, e).transposed(), first,
                        q_tile);
      }
    }
  }

  /// A row of q~ kv becomes its own gradient, and gives that of g~.
  void through_gate(Stage stage, bool to_g, bool to_product, std::int64_t token, T* product) {
    const auto offset = [&](const View& v) {
      return b_ * v.stride(0) + h_ * v.stride(1) + token * v.stride(2);
    };
    const std::int64_t e = d_o_.size(3);
    const T* up = read_row(scratch_.up, d_o_, offset(d_o_), d_o_.stride(3), e);
    if (to_g) {
      if (qkv_.defined) load_run(product, at(qkv_, offset(qkv_)), qkv_.dtype, qkv_.stride(3), e);
      // A plain one may lie in its place already.
      T* const d_g = g_.direct() && !g_.grad.add ? g_.rows.place(g_.grad, token) : scratch_.sin;
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < e; ++j) d_g[j] = up[j] * product[j];
      g_.take(stage, token, 1, d_g);
    }
    if (!to_product) return;
    const T* gate = g_.rows.activated(token, scratch_.spare);
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < e; ++j) product[j] = up[j] * gate[j];
  }

  FlaoScratch<T>& scratch_;
  const View &d_o_, &qkv_;
  InputGradient<T> q_, g_;
  std::int64_t b_ = 0, h_ = 0;
  T *kv_ = nullptr, *d_kv_ = nullptr;
};

/// d_k = v~ d_kv^T and d_v = k~ d_kv of one batch entry and head.
template <class T>
void key_gradients(FlaoScratch<T>& scratch, Stage stage, const InputGradient<T>& k,
                   const InputGradient<T>& v, T* d_kv, std::int64_t m) {
  const std::int64_t width = k.rows.width(), e = v.rows.width();
  const bool to_k = k.wanted(stage), to_v = v.wanted(stage);
  const std::int64_t k_width = to_v ? k.rows.tile_width() : 0;
  const std::int64_t v_width = to_k ? v.rows.tile_width() : 0;
  const std::int64_t out_width = std::max(to_k ? k.tile_width() : 0, to_v ? v.tile_width() : 0);
  const std::int64_t block = scratch.rows_at_once(m, k_width + v_width + out_width);
  T *const k_tile = scratch.tile(), *const v_tile = k_tile + block * k_width;
  T* const out = v_tile + block * v_width;
  const Matrix d_product = dense(d_kv, width, e);
  for (std::int64_t first = 0; first < m; first += block) {
    const std::int64_t n = std::min(block, m - first);
    if (to_v) {
      v.take_product(stage, scratch, k.rows.encoded(first, n, k_tile), d_product, first, out);
    }
    if (to_k) {
      const Matrix rows = v.rows.encoded(first, n, v_tile);
      k.take_product(stage, scratch, rows, d_product.transposed(), first, out);
    }
  }
}

template <class T>
void backward_as(const View& d_o, const FlaoSaved& saved, const View& d_kv, const FlaoGrads& grads,
                 const FlaoTransforms& transforms) {
  const std::int64_t d = saved.sizes.d, width = saved.sizes.width, e = saved.sizes.e;
  const auto part = [&](const View& v, std::int64_t place) {
    return v.defined ? v.as<T>() + place * width * e : nullptr;
  };
  const FlaoUnits units{d_o.size(0), d_o.size(1),
                        4 * saved.sizes.n * std::max<std::int64_t>(width, 1) * e};
  parallel_for(units.count(), units.grain(), [&](std::int64_t begin, std::int64_t end) {
    FlaoScratch<T> scratch;
    FlaoRows<T> q(scratch, saved.q, transforms.q, d), k(scratch, saved.k, transforms.k, d);
    FlaoRows<T> v(scratch, saved.v, transforms.v, e), g(scratch, saved.g, transforms.g, e);
    Queries<T> queries(scratch, d_o, saved.qkv, {q, grads.q}, {g, grads.g});
    const InputGradient<T> d_k{k, grads.k}, d_v{v, grads.v};
    const bool means = d_k.wanted(Stage::means) || d_v.wanted(Stage::means);
    const std::int64_t m = grads.k.wanted() || grads.v.wanted() ? saved.sizes.m : 0;
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t b = units.entry(unit), h = units.head(unit), place = units.place(unit);
      for (FlaoRows<T>* rows : {&q, &k, &v, &g}) rows->begin(b, h);
      if (saved.fill_kv)
        multiply_keys(scratch, k, v, part(saved.kv, place), {q.ahead(0, saved.sizes.n)});
      queries.run(b, h, part(saved.kv, place), part(d_kv, place));
      if (m == 0) continue;
      for_each_stage(means, [&](Stage stage) {
        key_gradients(scratch, stage, d_k, d_v, part(d_kv, place), m);
      });
    }
  });
}

void backward(View d_o, const FlaoSaved& saved, View d_kv, const FlaoGrads& d, View /*space*/,
              const FlaoTransforms& transforms) {
  (d_o.dtype == f64 ? backward_as<double> : backward_as<float>)(d_o, saved, d_kv, d, transforms);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_flao_backward() {
  flao_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
