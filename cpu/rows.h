#pragma once
// Rows of any element type and stride as dense rows of a compute type, and sums along them. A sum
// runs in a fixed number of lanes that are put together in a fixed order, so that it becomes vector
// instructions and its bits depend on the length alone.
#include <cstring>
#include <type_traits>

#include "layout.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/vector_acts.h"

namespace quipu::detail::on_cpu {

template <class T>
bool is_dense(const View& v, std::int64_t stride, std::int64_t n) {
  return v.dtype == dtype_of<T> && (stride == 1 || n == 1);
}

/// n elements of a view: where they are if they lie densely in type T, else converted into
/// `buffer`.
template <class T>
const T* read_row(T* buffer, const View& v, std::int64_t offset, std::int64_t stride,
                  std::int64_t n) {
  if (is_dense<T>(v, stride, n)) return reinterpret_cast<const T*>(at(v, offset));
  load_run(buffer, at(v, offset), v.dtype, stride, n);
  return buffer;
}

/// Where to put n results for `finish_row`: their place if they can be written there, else
/// `buffer`.
template <class T>
T* place_of_row(T* buffer, const Grad& g, std::int64_t offset, std::int64_t stride,
                std::int64_t n) {
  return !g.add && is_dense<T>(g.view, stride, n) ? reinterpret_cast<T*>(at(g.view, offset))
                                                  : buffer;
}

/// Writes or adds n results, rounded once, unless they are in their place.
template <class T>
void finish_row(const Grad& g, std::int64_t offset, std::int64_t stride, const T* results,
                std::int64_t n) {
  char* place = at(g.view, offset);
  if (reinterpret_cast<const char*>(results) == place) return;
  (g.add ? add_run<T> : store_run<T>)(place, g.view.dtype, stride, results, n);
}

/// Asks the memory for n elements that will be read a little later, while there is something to
/// compute. Inlined, because GCC leaves out calls of functions that do no more.
QUIPU_INLINE void ask_for(const View& v, std::int64_t offset, std::int64_t stride, std::int64_t n) {
  if (stride != 1) return;
  constexpr std::int64_t line = 64;
  const char* const first = at(v, offset);
  const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(v.dtype));
  for (std::int64_t i = 0; i < bytes; i += line) __builtin_prefetch(first + i);
}

/// What a sum runs in: a vector of 32 bytes, whatever the registers are; four of them side by side.
template <class T>
struct Lanes {
  typedef T Whole __attribute__((vector_size(32)));
};

/// Its lanes joined by halves.
template <class T, class Join>
QUIPU_INLINE T fold_lanes(const typename Lanes<T>::Whole& lanes, Join join) {
  typedef T Half __attribute__((vector_size(16)));
  Half a, b;
  std::memcpy(&a, &lanes, sizeof(a));
  std::memcpy(&b, reinterpret_cast<const char*>(&lanes) + sizeof(a), sizeof(b));
  join(a, b);
  if constexpr (sizeof(T) == 4) {
    b = __builtin_shufflevector(a, a, 2, 3, 2, 3);
    join(a, b);
  }
  T first = a[0];
  join(first, a[1]);
  return first;
}

/// Folds n terms from `start` on. load(lanes, i) sets lanes, or one number, to the terms from i on;
/// join(a, b) puts b into a.
template <class T, class Load, class Join>
QUIPU_INLINE T fold_row(std::int64_t n, T start, Load load, Join join) {
  using Whole = typename Lanes<T>::Whole;
  constexpr std::int64_t width = 32 / sizeof(T), count = 4;
  Whole sums[count], term;
  for (Whole& sum : sums) sum = Whole{} + start;
  std::int64_t i = 0;
  for (; i + count * width <= n; i += count * width) {
    for (std::int64_t v = 0; v < count; ++v) {
      load(term, i + v * width);
      join(sums[v], term);
    }
  }
  T rest = start;
  for (; i < n; ++i) {
    T one;
    load(one, i);
    join(rest, one);
  }
  join(sums[0], sums[2]);
  join(sums[1], sums[3]);
  join(sums[0], sums[1]);
  T result = fold_lanes<T>(sums[0], join);
  join(result, rest);
  return result;
}

/// The largest of n entries. NaN may be passed over: it will show in the sum.
template <class T>
T row_maximum(const T* x, std::int64_t n) {
  return fold_row(
      n, -std::numeric_limits<T>::infinity(),
      [x](auto& lanes, std::int64_t i) { std::memcpy(&lanes, x + i, sizeof(lanes)); },
      [](auto& a, const auto& b) { a = a > b ? a : b; });
}

template <class T>
T row_sum(const T* x, std::int64_t n) {
  return fold_row(
      n, T(0), [x](auto& lanes, std::int64_t i) { std::memcpy(&lanes, x + i, sizeof(lanes)); },
      [](auto& a, const auto& b) { a += b; });
}

/// The sum of a[i] b[i].
template <class T>
T row_product(const T* a, const T* b, std::int64_t n) {
  return fold_row(
      n, T(0),
      [a, b](auto& lanes, std::int64_t i) {
        std::remove_reference_t<decltype(lanes)> factor;
        std::memcpy(&lanes, a + i, sizeof(lanes));
        std::memcpy(&factor, b + i, sizeof(factor));
        lanes *= factor;
      },
      [](auto& s, const auto& t) { s += t; });
}

/// Combines term(0), ..., term(n - 1) by `join`, from `start` on, where terms are more than a load.
template <class T, class Term, class Join>
QUIPU_INLINE T reduce_row(std::int64_t n, T start, Term term, Join join) {
  constexpr std::int64_t lanes = 128 / sizeof(T);
  T lane[lanes];
  for (std::int64_t j = 0; j < lanes; ++j) lane[j] = start;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) lane[j] = join(lane[j], term(i + j));
  }
  for (std::int64_t j = 0; i + j < n; ++j) lane[j] = join(lane[j], term(i + j));
  for (std::int64_t half = lanes / 2; half > 0; half /= 2) {
    for (std::int64_t j = 0; j < half; ++j) lane[j] = join(lane[j], lane[j + half]);
  }
  return lane[0];
}

/// Each y = softmax of its x, for up to `few_rows` rows of n; a y may be its x. What several rows
/// wait for, the largest entry and the sum, is found side by side.
inline constexpr int few_rows = 4;
template <class T>
void softmax_rows(const T* const* x, T* const* y, int rows, std::int64_t n) {
  T found[few_rows];
  for (int r = 0; r < rows; ++r) found[r] = row_maximum(x[r], n);
  for (int r = 0; r < rows; ++r) {
    const T* from = x[r];
    T* to = y[r];
    const T largest = found[r];
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) to[i] = math::exp_below(from[i] - largest);
  }
  for (int r = 0; r < rows; ++r) found[r] = T(1) / row_sum(y[r], n);
  for (int r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < n; ++i) y[r][i] *= found[r];
  }
}
template <class T>
void softmax_row(const T* x, T* y, std::int64_t n) {
  softmax_rows(&x, &y, 1, n);
}

/// d_x from the softmax y of a row and its gradient d_y; d_x may be one of them.
template <class T>
void softmax_row_gradient(const T* y, const T* d_y, T* d_x, std::int64_t n) {
  const T mean = row_product(y, d_y, n);
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) d_x[i] = y[i] * (d_y[i] - mean);
}

}  // namespace quipu::detail::on_cpu
