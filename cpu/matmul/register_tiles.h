#pragma once
// What products of matrices are made of: a product whose sums stay in registers, and the
// transposition of a square of vectors.
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "quipu/cpu/simd/simd.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail::on_cpu {

// As many sums as registers allow, with room for a row of the panel.
inline constexpr int panel_vectors = vector_bytes == 64 ? 4 : 2;
inline constexpr int rows_at_once = 6;
template <class T>
inline constexpr int panel_width = (vector_bytes / static_cast<int>(sizeof(T))) * panel_vectors;

/// What happens to one number of `a` and a vector of `b`.
template <class T>
struct MultiplyAdd {
  static void add_product(typename Simd<T>::Vector& sum, T factor,
                          const typename Simd<T>::Vector& row) {
    sum += factor * row;
  }
};

/// c (=|+=) a b for `rows` rows and `vectors` vectors of columns, all sums in registers. `b` is a
/// panel of that width. Packing says where things are: row i, position p of `a` at
/// i * row_stride + p * depth_stride, and how far apart the rows of `b` lie. It hears of each step.
template <class T, class Packing, class Product, int rows, int vectors>
void multiply_in_registers(Packing packing, std::int64_t depth, const T* a, const T* b, T* c,
                           std::int64_t c_stride, bool add) {
  using Vector = typename Simd<T>::Vector;
  constexpr int lanes = Simd<T>::lanes;
  // c may be far away, and arrives while the sums are made.
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) __builtin_prefetch(c + i * c_stride + v * lanes, 1);
  }
  const std::int64_t b_stride = packing.b_stride(vectors * lanes);
  Vector sums[rows][vectors] = {};
  for (std::int64_t p = 0; p < depth; ++p) {
    packing.at_step(p);
    Vector row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      row[v] = *reinterpret_cast<const Vector*>(b + p * b_stride + v * lanes);
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const T factor = a[i * packing.row_stride + p * packing.depth_stride];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) Product::add_product(sums[i][v], factor, row[v]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      auto* out = reinterpret_cast<typename Simd<T>::Loose*>(c + i * c_stride + v * lanes);
      *out = add ? *out + sums[i][v] : sums[i][v];
    }
  }
}

template <class T, class Packing>
using InRegisters = void (*)(Packing, std::int64_t, const T*, const T*, T*, std::int64_t, bool);

template <class T, class Packing, class Product, int... index>
constexpr auto every_size(std::integer_sequence<int, index...>) {
  return std::array{&multiply_in_registers<T, Packing, Product, index / panel_vectors + 1,
                                           index % panel_vectors + 1>...};
}

/// The function for 1 to 6 rows and 1 to 4 vectors of columns.
template <class T, class Packing, class Product = MultiplyAdd<T>>
InRegisters<T, Packing> in_registers(std::int64_t rows, std::int64_t vectors) {
  static constexpr auto table = every_size<T, Packing, Product>(
      std::make_integer_sequence<int, rows_at_once * panel_vectors>());
  return table[static_cast<std::size_t>((rows - 1) * panel_vectors + vectors - 1)];
}

/// One step of a transposition: elements of a and b in turn, from the front or from the back half.
template <bool back, class Vector, int... index>
Vector interleaved(const Vector& a, const Vector& b, std::integer_sequence<int, index...>) {
  constexpr int count = sizeof...(index);
  return __builtin_shufflevector(a, b, (index / 2 + index % 2 * count + (back ? count / 2 : 0))...);
}

/// As many vectors as a vector has lanes become one, of the sum of each, in their order; half of
/// them and the others are folded first.
template <class T, int half = Simd<T>::lanes / 2>
QUIPU_INLINE typename Simd<T>::Vector sums_of_lanes(
    typename Simd<T>::Vector (&sums)[Simd<T>::lanes]) {
  constexpr auto lanes = std::make_integer_sequence<int, Simd<T>::lanes>();
#pragma GCC unroll 8
  for (int i = 0; i < half; ++i) {
    sums[i] = interleaved<false>(sums[i], sums[i + half], lanes) +
              interleaved<true>(sums[i], sums[i + half], lanes);
  }
  if constexpr (half > 1) return sums_of_lanes<T, half / 2>(sums);
  return sums[0];
}

/// out[j * out_stride + i] = in[i * in_stride + j] for a square of vectors; writes `rows` rows.
template <class T>
void transpose_square(T* out, std::int64_t out_stride, const T* in, std::int64_t in_stride,
                      std::int64_t rows) {
  using Vector = typename Simd<T>::Vector;
  constexpr int n = Simd<T>::lanes;
  constexpr auto lanes = std::make_integer_sequence<int, n>();
  Vector now[n], next[n];
  for (int i = 0; i < n; ++i) now[i] = *reinterpret_cast<const Vector*>(in + i * in_stride);
#pragma GCC unroll 4
  for (int step = 1; step < n; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = interleaved<false>(now[i], now[i + n / 2], lanes);
      next[2 * i + 1] = interleaved<true>(now[i], now[i + n / 2], lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) now[i] = next[i];
  }
  for (int i = 0; i < n && i < rows; ++i) *reinterpret_cast<Vector*>(out + i * out_stride) = now[i];
}

}  // namespace quipu::detail::on_cpu
