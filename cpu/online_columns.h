#pragma once
// Running softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) down the columns of a strip of
// rows that come in blocks: the largest entry of each column so far, and the sum of e^(x -
// largest). A block that raises the largest entry shrinks what was summed before it. Sums are taken
// block by block, which keeps long ones accurate.
#include "rows.h"

namespace quipu::detail::on_cpu {

inline constexpr std::int64_t widest_strip = 512;

template <class T>
struct OnlineColumns {
  T* largest;             // of each column; must start at -infinity
  T* sum;                 // must start at 0
  T* weighted = nullptr;  // further sums with e^(x - largest) as weight, if wanted; start at 0

  void start(std::int64_t width) const {
    std::fill_n(largest, width, -std::numeric_limits<T>::infinity());
    std::fill_n(sum, width, T(0));
    if (weighted) std::fill_n(weighted, width, T(0));
  }

  /// Those of the columns from `first` on.
  OnlineColumns from(std::int64_t first) const {
    return {largest + first, sum + first, weighted ? weighted + first : nullptr};
  }

  /// Takes in further rows. row(k) gives row k, width of them at most `widest_strip`; place(k) says
  /// where to put e^(x - largest), which may be that row itself; weight(k) is asked for if there
  /// are weighted sums.
  template <class Row, class Place, class Weight>
  void add(std::int64_t rows, std::int64_t width, Row row, Place place, Weight weight) const {
    T shift[widest_strip], part[widest_strip];
    raise(rows, width, row, shift);
    std::fill_n(part, width, T(0));
    T weighted_part[widest_strip];
    if (weighted) std::fill_n(weighted_part, width, T(0));
    for (std::int64_t k = 0; k < rows; ++k) {
      const T* x = row(k);
      T* e = place(k);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < width; ++j) {
        e[j] = math::exp_below(x[j] - shift[j]);
        part[j] += e[j];
      }
      if (weighted) add_products(weighted_part, e, weight(k), width);
    }
    add_sums(part, weighted_part, width);
  }
  template <class Row, class Place>
  void add(std::int64_t rows, std::int64_t width, Row row, Place place) const {
    add(rows, width, row, place, [](std::int64_t) -> const T* { return nullptr; });
  }

  /// The same for rows that row(k) perhaps had to convert into place(k).
  template <class Row, class Place>
  void add_converted(std::int64_t rows, std::int64_t width, Row row, Place place) const {
    if (row(0) != place(0)) return add(rows, width, row, place);
    for (std::int64_t k = 1; k < rows; ++k) row(k);
    add(rows, width, place, place);
  }

  /// The steps of `add`, for any width. Raises the largest entries to those of new rows, and leaves
  /// what is to be taken from their entries in `shift`.
  template <class Row>
  void raise(std::int64_t rows, std::int64_t width, Row row, T* shift) const {
    std::copy_n(largest, width, shift);
    for (std::int64_t k = 0; k < rows; ++k) {
      const T* x = row(k);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < width; ++j) largest[j] = x[j] > largest[j] ? x[j] : largest[j];
    }
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < width; ++j) {
      const T before = shift[j];
      shift[j] = finite(largest[j]);
      const T shrink = math::exp_below(before - shift[j]);
      sum[j] *= shrink;
      if (weighted) weighted[j] *= shrink;
    }
  }

  /// Adds the exponentials of a row to `sums`, and their products with the weights to `products` if
  /// there are any.
  static void add_row(const T* x, const T* shift, const T* weights, T* sums, T* products,
                      std::int64_t width) {
    if (weights) {
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < width; ++j) {
        const T e = math::exp_below(x[j] - shift[j]);
        sums[j] += e;
        products[j] += e * weights[j];
      }
    } else {
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < width; ++j) sums[j] += math::exp_below(x[j] - shift[j]);
    }
  }

  void add_sums(const T* sums, const T* products, std::int64_t width) const {
    for (std::int64_t j = 0; j < width; ++j) sum[j] += sums[j];
    if (!weighted) return;
    for (std::int64_t j = 0; j < width; ++j) weighted[j] += products[j];
  }

  /// Takes in what was found of other rows.
  void join(const OnlineColumns& other, std::int64_t width) const {
    for (std::int64_t first = 0; first < width; first += widest_strip) {
      const OnlineColumns to = from(first), more = other.from(first);
      const std::int64_t n = std::min(widest_strip, width - first);
      T mine[widest_strip], others[widest_strip];
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < n; ++j) {
        const T x = to.largest[j], y = more.largest[j], raised = x > y ? x : y;
        mine[j] = math::exp_below(x - finite(raised));
        others[j] = math::exp_below(y - finite(raised));
        to.largest[j] = raised;
      }
      add_scaled(to.sum, mine, more.sum, others, n);
      if (weighted) add_scaled(to.weighted, mine, more.weighted, others, n);
    }
  }

  /// Turns sums into their inverses, and weighted sums into means.
  void finish(std::int64_t width) const {
    for (std::int64_t j = 0; j < width; ++j) {
      largest[j] = finite(largest[j]);
      sum[j] = T(1) / sum[j];
      if (weighted) weighted[j] *= sum[j];
    }
  }

 private:
  /// -infinity minus itself would be no number.
  static T finite(T x) { return x == -std::numeric_limits<T>::infinity() ? T(0) : x; }

  /// a = a x + b y
  static void add_scaled(T* a, const T* x, const T* b, const T* y, std::int64_t n) {
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < n; ++j) a[j] = a[j] * x[j] + b[j] * y[j];
  }

  static void add_products(T* sums, const T* a, const T* b, std::int64_t n) {
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < n; ++j) sums[j] += a[j] * b[j];
  }
};

}  // namespace quipu::detail::on_cpu
