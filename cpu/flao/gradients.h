#pragma once
// Backward of gated linear attention on one thread: gradients of q and g from blocks of queries,
// and what they add to d_kv; those of k and v from blocks of keys, multiplied by it.
#include "rows.h"

namespace quipu::detail::on_cpu {

/// Softmax over the sequence needs means over all tokens before its first gradient: one pass finds
/// them, the next one writes gradients.
enum class Stage { means, gradients };

template <class T>
using Next = typename Gemm<T>::Next;
constexpr std::int64_t some_rows = 128;  // to begin with

struct Range {
  std::int64_t begin = 0, end = 0;
};

/// One of q, k, v, g and where its gradient goes.
template <class T>
struct InputGradient {
  FlaoRows<T>& rows;
  const Grad& grad;

  bool wanted(Stage stage) const {
    return grad.wanted() && (stage == Stage::gradients || rows.softmax_over_sequence());
  }
  bool direct() const { return rows.direct(grad); }
  /// What a row of gradients takes of a tile, if they are sums of `depth` products: those of plain
  /// rows are given away part by part.
  std::int64_t tile_width(const FlaoScratch<T>& scratch, std::int64_t depth) const {
    const bool in_parts = rows.plain() && depth <= scratch.gemm.depth_at_once(rows.width());
    return grad.wanted() && !direct() && !in_parts ? rows.width() : 0;
  }

  void take(Stage stage, std::int64_t first, std::int64_t n, T* d) const {
    if (stage == Stage::means) return rows.add_to_means(first, n, d);
    rows.back(grad, first, n, d);
  }
  /// The gradients of rows of x~ are a b; `tile` is for those that can't be left in their place.
  void take_product(Stage stage, FlaoScratch<T>& scratch, const Matrix& a, const Matrix& b,
                    std::int64_t first, T* tile, const Next<T>& next) const {
    if (direct()) {
      const std::int64_t stride = grad.view.stride(2);
      return scratch.gemm.multiply(a, b, rows.place(grad, first), stride, grad.add, next);
    }
    if (!rows.plain()) {
      scratch.gemm.multiply(a, b, tile, b.columns, false, next);
      return take(stage, first, a.rows, tile);
    }
    const Matrix place = rows.target(grad, first, a.rows);
    auto give = [&](const ProductPart<T>& part) {
      for (std::int64_t i = 0; i < part.rows; ++i) {
        (grad.add ? add_run<T> : store_run<T>)(place.at(part.row + i, part.column), place.dtype,
                                               place.column_stride, part.sums + i * part.stride,
                                               part.columns);
      }
    };
    const ProductTaker<T> taker(give);
    T* const sums = tile_width(scratch, a.columns) > 0 ? tile : nullptr;
    scratch.gemm.multiply(a, b, sums, b.columns, false, next, &taker);
  }
  /// Where gradients of some rows are, to be asked for in advance.
  Matrix ahead(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t n) const {
    return grad.wanted() ? rows.target(grad, b, h, first, n) : Matrix();
  }
};

template <class F>
void for_each_stage(bool needs_means, F f) {
  if (needs_means) f(Stage::means);
  f(Stage::gradients);
}

template <class T>
class QueryGradients {
 public:
  QueryGradients(FlaoScratch<T>& scratch, const View& d_o, const View& qkv,
                 const InputGradient<T>& q, const InputGradient<T>& g)
      : scratch_(scratch), d_o_(d_o), qkv_(qkv), q_(q), g_(g) {}

  /// d_q, d_g, and d_kv unless it is null; kv may be null where it is not needed.
  /// `next` is what is read after it.
  void run(std::int64_t b, std::int64_t h, T* kv, T* d_kv, const Next<T>& next) {
    b_ = b;
    h_ = h;
    kv_ = kv;
    d_kv_ = d_kv;
    if (d_kv && d_o_.size(2) == 0) std::fill_n(d_kv, q_.rows.width() * d_o_.size(3), T(0));
    for_each_stage(q_.wanted(Stage::means) || g_.wanted(Stage::means), [&](Stage stage) {
      run_stage(stage, q_.wanted(stage), g_.wanted(stage), stage == Stage::gradients && d_kv,
                {0, d_o_.size(2)}, {0, q_.rows.width()}, next);
    });
  }
  /// d_q and d_g of some tokens.
  void run_tokens(std::int64_t b, std::int64_t h, T* kv, Range tokens) {
    b_ = b;
    h_ = h;
    kv_ = kv;
    const Stage stage = Stage::gradients;
    run_stage(stage, q_.wanted(stage), g_.wanted(stage), false, tokens, {},
              ahead(b, h, tokens.end, some_rows));
  }
  /// Some rows of d_kv.
  void run_rows(std::int64_t b, std::int64_t h, T* d_kv, Range rows) {
    b_ = b;
    h_ = h;
    d_kv_ = d_kv;
    if (d_o_.size(2) == 0) {
      std::fill_n(d_kv + rows.begin * d_o_.size(3), (rows.end - rows.begin) * d_o_.size(3), T(0));
    }
    run_stage(Stage::gradients, false, false, true, {0, d_o_.size(2)}, rows, {});
  }

  /// What is read first of some tokens.
  Next<T> ahead(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows) const {
    rows = std::min(rows, d_o_.size(2) - first);
    return {rows_of(d_o_, b, h, first, rows), g_.rows.ahead(b, h, first, rows),
            rows_of(qkv_, b, h, first, rows), g_.ahead(b, h, first, rows)};
  }

 private:
  void run_stage(Stage stage, bool to_q, bool to_g, bool to_kv, Range tokens, Range kv_rows,
                 const Next<T>& next) {
    if (!to_q && !to_g && !to_kv) return;
    const std::int64_t n = tokens.end - tokens.begin, e = d_o_.size(3), width = q_.rows.width();
    const bool multiply = to_g && !qkv_.defined, encode = multiply || to_kv;
    const std::int64_t q_width =
        std::max(encode ? q_.rows.tile_width() : 0, to_q ? q_.tile_width(scratch_, e) : 0);
    const std::int64_t block = scratch_.rows_at_once(n, q_width + e);
    T *const q_tile = scratch_.tile(), *const product = q_tile + block * q_width;
    for (std::int64_t first = tokens.begin; first < tokens.end; first += block) {
      const std::int64_t rows = std::min(block, tokens.end - first), end = first + rows;
      const Next<T> after = end < tokens.end ? ahead(b_, h_, end, block) : next;
      const Matrix q = encode ? q_.rows.encoded(first, rows, q_tile) : Matrix();
      if (multiply) scratch_.gemm.multiply(q, dense(kv_, width, e), product, e, false);
      gate(stage, to_g, to_q || to_kv, first, rows, product);
      const Matrix d_product = dense(product, rows, e);
      if (to_kv) {
        const Next<T> soon = to_q ? Next<T>{q_.ahead(b_, h_, first, rows)} : after;
        const Matrix some =
            q.transposed().block(kv_rows.begin, 0, kv_rows.end - kv_rows.begin, rows);
        scratch_.gemm.multiply(some, d_product, d_kv_ + kv_rows.begin * e, e, first > 0, soon);
      }
      if (to_q) {
        q_.take_product(stage, scratch_, d_product, dense(kv_, width, e).transposed(), first,
                        q_tile, after);
      }
    }
  }

  Matrix rows_of(const View& v, std::int64_t first, std::int64_t rows) const {
    return rows_of(v, b_, h_, first, rows);
  }
  static Matrix rows_of(const View& v, std::int64_t b, std::int64_t h, std::int64_t first,
                        std::int64_t rows) {
    if (!v.defined || v.numel() == 0) return {};
    const std::int64_t offset = b * v.stride(0) + h * v.stride(1) + first * v.stride(2);
    return {at(v, offset), v.dtype, rows, v.size(3), v.stride(2), v.stride(3)};
  }

  /// Rows of q~ kv become their own gradients, and give those of g~.
  void gate(Stage stage, bool to_g, bool to_product, std::int64_t first, std::int64_t rows,
            T* product) {
    const std::int64_t e = d_o_.size(3);
    if constexpr (std::is_same_v<T, float>) {
      if (to_g && to_product && g_.rows.plain()) {
        const Matrix up = rows_of(d_o_, first, rows), qkv = rows_of(qkv_, first, rows);
        const Matrix g = g_.rows.encoded(first, rows, nullptr);
        const Matrix d_g = g_.rows.target(g_.grad, first, rows);
        if (dense_bf16(up) && dense_bf16(g) && dense_bf16(d_g) &&
            (!qkv_.defined || dense_bf16(qkv))) {
          for (std::int64_t i = 0; i < rows; ++i) {
            through_bf16(bf16_row(up, i), bf16_row(g, i), qkv_.defined ? bf16_row(qkv, i) : nullptr,
                         bf16_row(d_g, i), product + i * e, e);
          }
          return;
        }
      }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      through_gate(stage, to_g, to_product, first + i, product + i * e);
    }
  }

  /// The same for a row of bf16, in pieces that stay in the first-level cache.
  void through_bf16(const BFloat16* up, const BFloat16* g, const BFloat16* qkv, BFloat16* d_g,
                    float* product, std::int64_t e) const {
    constexpr std::int64_t piece = 128;
    alignas(64) float d[piece];
    for (std::int64_t first = 0; first < e; first += piece) {
      const std::int64_t n = std::min(piece, e - first);
      if (qkv) {
        QUIPU_VECTORIZE
        for (std::int64_t j = 0; j < n; ++j) product[first + j] = widened(qkv[first + j]);
      }
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < n; ++j) {
        const float u = widened(up[first + j]);
        d[j] = u * product[first + j];
        product[first + j] = u * widened(g[first + j]);
      }
      if (g_.grad.add) {
        QUIPU_VECTORIZE
        for (std::int64_t j = 0; j < n; ++j) d[j] += widened(d_g[first + j]);
      }
      narrow_run(d_g + first, d, n);
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
class KeyGradients {
 public:
  KeyGradients(FlaoScratch<T>& scratch, const InputGradient<T>& k, const InputGradient<T>& v,
               std::int64_t m)
      : scratch_(scratch), k_(k), v_(v), m_(m) {}

  /// `next` is what is read after it.
  void run(std::int64_t b, std::int64_t h, T* d_kv, const Next<T>& next) {
    if (m_ == 0) return;
    for_each_stage(k_.wanted(Stage::means) || v_.wanted(Stage::means), [&](Stage stage) {
      run_stage(stage, b, h, d_kv, {0, m_}, next);
    });
  }
  void run_tokens(std::int64_t b, std::int64_t h, T* d_kv, Range tokens) {
    run_stage(Stage::gradients, b, h, d_kv, tokens, ahead(b, h, tokens.end));
  }
  /// What is read first from a token on.
  Next<T> ahead(std::int64_t b, std::int64_t h, std::int64_t first) const {
    if (first >= m_) return {};
    const std::int64_t rows = std::min(most_rows, m_ - first);
    return {k_.rows.ahead(b, h, first, rows), v_.ahead(b, h, first, rows)};
  }

 private:
  static constexpr std::int64_t most_rows = 128;  // what is asked for in advance stays near

  void run_stage(Stage stage, std::int64_t b, std::int64_t h, T* d_kv, Range tokens,
                 const Next<T>& next) {
    const std::int64_t width = k_.rows.width(), e = v_.rows.width();
    const bool to_k = k_.wanted(stage), to_v = v_.wanted(stage);
    const std::int64_t k_width = to_v ? k_.rows.tile_width() : 0;
    const std::int64_t v_width = to_k ? v_.rows.tile_width() : 0;
    const std::int64_t out_width =
        std::max(to_k ? k_.tile_width(scratch_, e) : 0, to_v ? v_.tile_width(scratch_, width) : 0);
    const std::int64_t m = tokens.end - tokens.begin;
    const std::int64_t fitting = scratch_.rows_at_once(m, k_width + v_width + out_width);
    const std::int64_t block = std::min(fitting, even_part(m, 2 * most_rows));
    T *const k_tile = scratch_.tile(), *const v_tile = k_tile + block * k_width;
    T* const out = v_tile + block * v_width;
    const Matrix d_product = dense(d_kv, width, e);
    for (std::int64_t first = tokens.begin; first < tokens.end; first += block) {
      const std::int64_t n = std::min(block, tokens.end - first);
      const Next<T> after = first + n < tokens.end ? ahead(b, h, first + n) : next;
      if (to_v) {
        const Matrix rows = k_.rows.encoded(first, n, k_tile);
        const Next<T> soon = {v_.rows.ahead(b, h, first, n), k_.ahead(b, h, first, n)};
        v_.take_product(stage, scratch_, rows, d_product, first, out, to_k ? soon : after);
      }
      if (to_k) {
        const Matrix rows = v_.rows.encoded(first, n, v_tile);
        k_.take_product(stage, scratch_, rows, d_product.transposed(), first, out, after);
      }
    }
  }

  FlaoScratch<T>& scratch_;
  InputGradient<T> k_, v_;
  std::int64_t m_;
};

}  // namespace quipu::detail::on_cpu
