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
    find_shift(rows, width, row, shift);
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
    for (std::int64_t j = 0; j < width; ++j) sum[j] += part[j];
    if (!weighted) return;
    for (std::int64_t j = 0; j < width; ++j) weighted[j] += weighted_part[j];
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

  static void add_products(T* sums, const T* a, const T* b, std::int64_t n) {
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < n; ++j) sums[j] += a[j] * b[j];
  }

  /// Raises the largest entries to those of the new rows.
  template <class Row>
  void find_shift(std::int64_t rows, std::int64_t width, Row row, T* shift) const {
    T before[widest_strip];
    std::copy_n(largest, width, before);
    for (std::int64_t k = 0; k < rows; ++k) {
      const T* x = row(k);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < width; ++j) largest[j] = x[j] > largest[j] ? x[j] : largest[j];
    }
    for (std::int64_t j = 0; j < width; ++j) {
      shift[j] = finite(largest[j]);
      const T shrink = math::exp_below(before[j] - shift[j]);
      sum[j] *= shrink;
      if (weighted) weighted[j] *= shrink;
    }
  }
};

}  // namespace quipu::detail::on_cpu
