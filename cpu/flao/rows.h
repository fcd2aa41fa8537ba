#pragma once
// What the two passes of gated linear attention share: a thread's buffers, and the rows of q, k, v
// or g of one batch entry and head, encoded on the way to a product and back.
#include "quipu/cpu/lrpe/row_transform.h"
#include "quipu/cpu/matmul/gemm.h"
#include "quipu/cpu/matmul/register_tiles.h"
#include "quipu/cpu/online_columns.h"
#include "quipu/cpu/simd/bfloat16.h"
#include "quipu/ops/flao/kernels.h"

namespace quipu::detail::on_cpu {

/// What was computed on the way, (rows, columns).
template <class T>
Matrix dense(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, dtype_of<T>, rows, columns, columns, 1};
}

/// A matrix with rows as wide as a part of a product, from the part's place on.
inline Matrix beside(const Matrix& m, std::int64_t row, std::int64_t column) {
  return {m.at(row, column),  m.dtype,      m.rows - row,
          m.columns - column, m.row_stride, m.column_stride};
}

/// Whether the rows lie as bf16 that follow each other, to be converted as they are used.
inline bool dense_bf16(const Matrix& m) {
  return m.dtype == DType::bf16 && m.column_stride == 1;
}
inline BFloat16* bf16_row(const Matrix& m, std::int64_t row) {
  return static_cast<BFloat16*>(m.at(row, 0));
}

/// The scratch memory of a thread: 252 KiB, meant for the stack.
template <class T>
class FlaoScratch {
 public:
  FlaoScratch() : gemm(Gemm<T>::max_tile) {}

  /// A part of the tile that is in use as long as the scratch memory.
  T* take(std::int64_t n) {
    T* const part = gemm.tile() + taken_;
    taken_ += round_up(n, 64 / sizeof(T));
    return part;
  }
  /// The part of the tile that nobody has taken,
  T* tile() { return gemm.tile() + taken_; }
  /// and how many of `rows` rows to put there at a time, if a row takes `elements`.
  std::int64_t rows_at_once(std::int64_t rows, std::int64_t elements) const {
    if (elements == 0) return std::max<std::int64_t>(rows, 1);
    const std::int64_t most = (Gemm<T>::max_tile - taken_) / elements;
    return std::max<std::int64_t>(even_part(rows, most), 1);
  }

  Gemm<T> gemm;
  static constexpr std::int64_t part_width = panel_width<T>;  // of a part of a product
  // One row each.
  static constexpr std::int64_t longest = most_flao_features(dtype_of<T>);
  alignas(64) T x[longest], spare[longest], up[longest];
  alignas(64) T cos[longest], sin[longest];

 private:
  std::int64_t taken_ = 0;
};

/// Pieces of work: a batch entry and head each. Entries of a head follow each other, so that its
/// turns serve them all; small ones go many at a time, by the shape alone.
struct FlaoUnits {
  std::int64_t batch, heads, work;  // multiplications of a unit

  std::int64_t count() const { return batch * heads; }
  std::int64_t grain() const {
    constexpr std::int64_t worth_a_task = 1 << 19;
    return std::clamp<std::int64_t>(worth_a_task / (work + 1), 1,
                                    std::max<std::int64_t>(1, count() / 16));
  }
  std::int64_t entry(std::int64_t unit) const { return unit % batch; }
  std::int64_t head(std::int64_t unit) const { return unit / batch; }
  /// Where a tensor with one matrix for each batch entry and head has it.
  std::int64_t place(std::int64_t unit) const { return entry(unit) * heads + head(unit); }
};

/// Where there are fewer units than many a machine has cores, each is cut, by the shape alone:
/// sums over tokens into some rows of kv or d_kv at a time, so that no sum is cut and none needs
/// memory of its own, and everything else into blocks of tokens.
struct FlaoPieces {
  static constexpr std::int64_t tokens = 128, some_rows = 64;
  FlaoUnits units;
  std::int64_t rows, all_rows;  // of kv, at a time and of all pieces

  FlaoPieces(const FlaoUnits& of, const FlaoTransforms& transforms, std::int64_t width)
      : units(of), rows(std::max<std::int64_t>(width, 1)), all_rows(rows) {
    // Pieces with other than plain rows would all encode the same ones.
    bool plain = true;
    for (const RowTransform* x : {&transforms.q, &transforms.k, &transforms.v, &transforms.g}) {
      plain = plain && x->kind == LrpeKind::none && x->act == Act::none;
      over_sequence_ = over_sequence_ || x->softmax_over_sequence();
    }
    if (plain) rows = std::min(rows, some_rows);
  }

  /// Whether it is worth it. Softmax over the sequence needs all tokens first.
  bool wanted() const {
    constexpr std::int64_t enough_units = 32, least_work = 1 << 21;
    return units.count() < enough_units && units.work >= least_work && !over_sequence_;
  }
  std::int64_t parts() const { return (all_rows - 1) / rows + 1; }
  static std::int64_t blocks(std::int64_t n) { return (n + tokens - 1) / tokens; }

  /// Calls f(unit, first row of kv) for `begin` to `end` of units.count() * parts() pieces.
  template <class F>
  void for_each_part(std::int64_t begin, std::int64_t end, F f) const {
    for (std::int64_t i = begin; i < end; ++i) f(i / parts(), i % parts() * rows);
  }
  /// Calls f(unit, first token) for `begin` to `end` of units.count() * blocks(n) pieces.
  template <class F>
  static void for_each_block(std::int64_t begin, std::int64_t end, std::int64_t n, F f) {
    for (std::int64_t i = begin; i < end; ++i) f(i / blocks(n), i % blocks(n) * tokens);
  }

 private:
  bool over_sequence_ = false;
};

/// One of q, k, v, g; the values may be missing where only gradients go through.
template <class T>
class FlaoRows {
 public:
  FlaoRows(FlaoScratch<T>& scratch, const View& x, const RowTransform& transform,
           std::int64_t features)
      : scratch_(scratch), x_(x), transform_(transform), encoder_(transform, features) {
    if (transform.kind != LrpeKind::none && x.defined) {
      const std::int64_t turns = 2 * tokens() * encoder_.angles();
      if (turns <= most_kept) kept_ = scratch.take(turns);
    }
    if (!softmax_over_sequence()) return;
    T* const columns = scratch.take(3 * features);
    state_ = {columns, columns + features, columns + 2 * features};
    columns_ = {state_.largest, state_.sum, state_.weighted};
  }

  bool plain() const { return transform_.kind == LrpeKind::none && !encoder_.has_act(); }
  bool softmax_over_sequence() const { return transform_.softmax_over_sequence(); }
  std::int64_t tokens() const { return x_.size(2); }
  std::int64_t width() const { return encoder_.width(); }
  /// What an encoded row takes of a tile: plain ones are read where they are.
  std::int64_t tile_width() const { return plain() ? 0 : width(); }

  /// Goes to a batch entry and head.
  void begin(std::int64_t b, std::int64_t h) {
    if (kept_ && h != h_) keep_turns(h);
    b_ = b;
    h_ = h;
    if (softmax_over_sequence() && x_.defined) find_columns();
  }

  /// Rows of x~: where they are or encoded in `tile`.
  Matrix encoded(std::int64_t first, std::int64_t n, T* tile) {
    if (plain()) {
      return {at(x_, offset(x_, first)), x_.dtype, n, x_.size(3), x_.stride(2), x_.stride(3)};
    }
    for (std::int64_t i = 0; i < n; ++i) {
      T* const out = tile + i * width();
      if (transform_.kind == LrpeKind::none) {
        activated(first + i, out);
        continue;
      }
      find_turns_of(first + i);
      const T* y = activated(first + i, scratch_.spare);
      encoder_.encode(y, cos_, sin_, out);
    }
    return dense(tile, n, width());
  }

  /// Some rows of x from `first` on as they lie, to be asked for in advance.
  Matrix ahead(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows) const {
    constexpr std::int64_t most_bytes = 64 << 10;
    if (!x_.defined || x_.numel() == 0 || first >= tokens()) return {};
    const std::int64_t features = x_.size(3);
    const std::int64_t most =
        most_bytes / (features * static_cast<std::int64_t>(size_of(x_.dtype)));
    const std::int64_t offset = b * x_.stride(0) + h * x_.stride(1) + first * x_.stride(2);
    return {at(x_, offset), x_.dtype,     std::min({rows, most, tokens() - first}),
            features,       x_.stride(2), x_.stride(3)};
  }
  Matrix ahead(std::int64_t first, std::int64_t rows) const { return ahead(b_, h_, first, rows); }

  /// A row with its activation: where it is, in the scratch's x, or in `y`.
  const T* activated(std::int64_t token, T* y) {
    return encoder_.activate(values(token), columns_, y);
  }

  /// Whether a product can leave gradients of x~ straight in those of x.
  bool direct(const Grad& d_x) const {
    return plain() && is_dense<T>(d_x.view, d_x.view.stride(3), d_x.view.size(3));
  }
  /// Where gradients of some rows go.
  Matrix target(const Grad& d_x, std::int64_t b, std::int64_t h, std::int64_t first,
                std::int64_t n) const {
    const View& v = d_x.view;
    if (v.numel() == 0) return {};
    const std::int64_t offset = b * v.stride(0) + h * v.stride(1) + first * v.stride(2);
    return {at(v, offset), v.dtype, n, v.size(3), v.stride(2), v.stride(3)};
  }
  Matrix target(const Grad& d_x, std::int64_t first, std::int64_t n) const {
    return target(d_x, b_, h_, first, n);
  }
  T* place(const Grad& d_x, std::int64_t token) const {
    return reinterpret_cast<T*>(at(d_x.view, offset(d_x.view, token)));
  }

  /// From gradients of rows of x~, which are spent, to those of x.
  void back(const Grad& d_x, std::int64_t first, std::int64_t n, T* d) {
    const std::int64_t features = encoder_.features();
    for (std::int64_t i = 0; i < n; ++i) {
      T* const row = d + i * width();
      decode(first + i, row);
      if (encoder_.has_act()) {
        encoder_.activate_back(values(first + i), row, columns_, scratch_.spare, row);
      }
      finish_row(d_x, offset(d_x.view, first + i), d_x.view.stride(3), row, features);
    }
  }

  /// Takes gradients of rows of x~, which are spent, into the means that softmax over the sequence
  /// needs before any of them can go back.
  void add_to_means(std::int64_t first, std::int64_t n, T* d) {
    const std::int64_t features = encoder_.features();
    for (std::int64_t i = 0; i < n; ++i) decode(first + i, d + i * width());
    T* const part = scratch_.cos;
    std::fill_n(part, features, T(0));
    for (std::int64_t i = 0; i < n; ++i) {
      const T *y = activated(first + i, scratch_.spare), *row = d + i * width();
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < features; ++j) part[j] += y[j] * row[j];
    }
    for (std::int64_t j = 0; j < features; ++j) state_.weighted[j] += part[j];
  }

 private:
  std::int64_t offset(const View& v, std::int64_t token) const {
    return b_ * v.stride(0) + h_ * v.stride(1) + token * v.stride(2);
  }

  const T* values(std::int64_t token) {
    return read_row(scratch_.x, x_, offset(x_, token), x_.stride(3), encoder_.features());
  }

  /// Sets cos_ and sin_.
  void find_turns_of(std::int64_t token) {
    const std::int64_t n = encoder_.angles();
    if (kept_) {
      cos_ = kept_ + 2 * token * n;
      sin_ = cos_ + n;
      return;
    }
    find_turns_of(h_, token, scratch_.cos, scratch_.sin);
    cos_ = scratch_.cos;
    sin_ = scratch_.sin;
  }
  void find_turns_of(std::int64_t head, std::int64_t token, T* cos, T* sin) {
    encoder_.find_angles(head, token, scratch_.x);
    find_turns(scratch_.x, cos, sin, encoder_.angles());
  }
  void keep_turns(std::int64_t head) {
    const std::int64_t n = encoder_.angles();
    for (std::int64_t t = 0; t < tokens(); ++t) {
      find_turns_of(head, t, kept_ + 2 * t * n, kept_ + (2 * t + 1) * n);
    }
  }

  void decode(std::int64_t token, T* row) {
    if (transform_.kind == LrpeKind::none) return;
    find_turns_of(token);
    encoder_.encode_back(row, cos_, sin_, row);
  }

  /// What softmax over the sequence knows of the columns, the means being 0.
  void find_columns() {
    const std::int64_t features = encoder_.features();
    T* const buffer = scratch_.tile();
    for (std::int64_t c = 0; c < features; c += widest_strip) {
      const std::int64_t strip = std::min(widest_strip, features - c);
      const std::int64_t block = std::min<std::int64_t>(scratch_.rows_at_once(tokens(), strip), 32);
      const OnlineColumns<T> found{state_.largest + c, state_.sum + c};
      found.start(strip);
      for (std::int64_t t = 0; t < tokens(); t += block) {
        const auto place = [&](std::int64_t i) { return buffer + i * strip; };
        const auto row = [&](std::int64_t i) {
          const std::int64_t from = offset(x_, t + i) + c * x_.stride(3);
          return read_row(place(i), x_, from, x_.stride(3), strip);
        };
        found.add_converted(std::min(block, tokens() - t), strip, row, place);
      }
      found.finish(strip);
    }
    std::fill_n(state_.weighted, features, T(0));
  }

  FlaoScratch<T>& scratch_;
  const View& x_;
  const RowTransform& transform_;
  RowEncoder<T> encoder_;
  OnlineColumns<T> state_{};
  ColumnRow<T> columns_;
  static constexpr std::int64_t most_kept = Gemm<T>::max_tile / 8;
  T* kept_ = nullptr;  // cos and sin of all tokens of a head
  const T *cos_ = nullptr, *sin_ = nullptr;
  std::int64_t b_ = 0, h_ = -1;
};

/// kv = k~^T v~ of one batch entry and head, or `rows` of its rows from `row` on. `next` is what is
/// read after it.
template <class T>
void multiply_keys(FlaoScratch<T>& scratch, FlaoRows<T>& k, FlaoRows<T>& v, T* kv,
                   const typename Gemm<T>::Next& next, std::int64_t row, std::int64_t rows) {
  const std::int64_t m = k.tokens(), e = v.width();
  const std::int64_t block = scratch.rows_at_once(m, k.tile_width() + v.tile_width());
  T* const out = kv + row * e;
  if (m == 0) std::fill_n(out, rows * e, T(0));
  for (std::int64_t first = 0; first < m; first += block) {
    const std::int64_t n = std::min(block, m - first);
    const Matrix a = k.encoded(first, n, scratch.tile());
    const Matrix b = v.encoded(first, n, scratch.tile() + block * k.tile_width());
    scratch.gemm.multiply(a.transposed().block(row, 0, rows, n), b, out, e, first > 0,
                          first + n == m ? next : typename Gemm<T>::Next{});
  }
}
template <class T>
void multiply_keys(FlaoScratch<T>& scratch, FlaoRows<T>& k, FlaoRows<T>& v, T* kv,
                   const typename Gemm<T>::Next& next) {
  multiply_keys(scratch, k, v, kv, next, 0, k.width());
}

}  // namespace quipu::detail::on_cpu
