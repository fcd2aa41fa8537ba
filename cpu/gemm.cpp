// Blocks of k are taken one after the other. For each, `b` is packed into panels a few vectors wide
// (second-level cache) and `a` into blocks of 48 rows; the inner loop keeps a part of c of 6 rows
// by one panel in registers and runs over k. Packing reads each operand as it lies, converts and
// transposes it, so reduced types and transposed operands run at nearly the same speed. An element
// of `a` is packed once for every 128 columns of c and one of `b` once for every call, which costs
// a few per cent; the rest is bound by the multiply-add units.
#include "gemm.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "convert.h"
#include "simd.h"

namespace quipu::on_cpu {
namespace {

// As many sums as registers allow, with room for a row of the panel.
constexpr int panel_vectors = vector_bytes == 64 ? 4 : 2;
constexpr int rows_at_once = 6;
template <class T>
constexpr int panel_width = panel_vectors* Simd<T>::lanes;

/// How `a` was packed: row i, position p is at i * row_stride + p * depth_stride.
template <class T>
struct ByRows {
  static constexpr std::int64_t row_stride = Gemm<T>::a_stride, depth_stride = 1;
};
template <class T>
struct ByColumns {
  static constexpr std::int64_t row_stride = 1, depth_stride = Gemm<T>::a_rows;
};

/// c (=|+=) a b for `rows` rows and `vectors` vectors of columns, all sums in registers. `b` is a
/// panel of that width.
template <class T, class Packing, int rows, int vectors>
void multiply_in_registers(std::int64_t depth, const T* a, const T* b, T* c, std::int64_t c_stride,
                           bool add) {
  using Vector = typename Simd<T>::Vector;
  constexpr int lanes = Simd<T>::lanes;
  Vector sums[rows][vectors] = {};
  for (std::int64_t p = 0; p < depth; ++p) {
    Vector row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      row[v] = *reinterpret_cast<const Vector*>(b + (p * vectors + v) * lanes);
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const T factor = a[i * Packing::row_stride + p * Packing::depth_stride];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[i][v] += factor * row[v];
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

template <class T>
using InRegisters = void (*)(std::int64_t, const T*, const T*, T*, std::int64_t, bool);

template <class T, class Packing, int... index>
constexpr auto every_size(std::integer_sequence<int, index...>) {
  return std::array{
      &multiply_in_registers<T, Packing, index / panel_vectors + 1, index % panel_vectors + 1>...};
}

/// The function for 1 to 6 rows and 1 to 4 vectors of columns.
template <class T, class Packing>
InRegisters<T> for_size(std::int64_t rows, std::int64_t vectors) {
  static constexpr auto table =
      every_size<T, Packing>(std::make_integer_sequence<int, rows_at_once * panel_vectors>());
  return table[static_cast<std::size_t>((rows - 1) * panel_vectors + vectors - 1)];
}

/// The rows of a packed block of `a` times one panel; `columns` of it exist.
template <class T, class Packing>
void multiply_panel(std::int64_t rows, std::int64_t depth, std::int64_t columns, const T* a,
                    const T* b, T* c, std::int64_t c_stride, bool add) {
  constexpr int lanes = Simd<T>::lanes;
  const std::int64_t vectors = (columns + lanes - 1) / lanes;
  for (std::int64_t i = 0; i < rows; i += rows_at_once) {
    const std::int64_t count = std::min<std::int64_t>(rows_at_once, rows - i);
    const InRegisters<T> function = for_size<T, Packing>(count, vectors);
    const T* a_part = a + i * Packing::row_stride;
    T* c_part = c + i * c_stride;
    if (columns == vectors * lanes) {
      function(depth, a_part, b, c_part, c_stride, add);
      continue;
    }
    // The last vector is wider than c: through a buffer.
    alignas(64) T whole[rows_at_once * panel_width<T>];
    function(depth, a_part, b, whole, panel_width<T>, false);
    for (std::int64_t r = 0; r < count; ++r) {
      const T* from = whole + r * panel_width<T>;
      T* to = c_part + r * c_stride;
      for (std::int64_t j = 0; j < columns; ++j) to[j] = add ? to[j] + from[j] : from[j];
    }
  }
}

/// One step of a transposition: elements of a and b in turn, from the front or from the back half.
template <bool back, class Vector, int... index>
Vector interleaved(const Vector& a, const Vector& b, std::integer_sequence<int, index...>) {
  constexpr int count = sizeof...(index);
  return __builtin_shufflevector(a, b, (index / 2 + index % 2 * count + (back ? count / 2 : 0))...);
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

}  // namespace

/// True if the block lies by rows now, false if by columns.
template <class T>
bool Gemm<T>::pack_a(const Matrix& a) {
  const bool by_rows = a.row_stride != 1 || a.column_stride == 1;
  if (by_rows) {
    for (std::int64_t i = 0; i < a.rows; ++i) {
      load_run(a_ + i * a_stride, a.at(i, 0), a.dtype, a.column_stride, a.columns);
    }
  } else {
    for (std::int64_t p = 0; p < a.columns; ++p) {
      load_run(a_ + p * a_rows, a.at(0, p), a.dtype, 1, a.rows);
    }
  }
  return by_rows;
}

/// A panel whose columns are dense: vectors full of them are laid out by rows in the buffer of `a`,
/// which is free at that time, and transposed from there.
template <class T>
void Gemm<T>::transpose_into_panel(const Matrix& panel, T* out, std::int64_t width) {
  constexpr int lanes = Simd<T>::lanes;
  for (std::int64_t j = 0; j < width; j += lanes) {
    for (std::int64_t i = 0; i < lanes; ++i) {
      T* column = a_ + i * a_stride;
      if (j + i < panel.columns) {
        load_run(column, panel.at(0, j + i), panel.dtype, panel.row_stride, panel.rows);
      } else {
        std::fill_n(column, panel.rows, T(0));
      }
    }
    for (std::int64_t p = 0; p < panel.rows; p += lanes) {
      transpose_square(out + p * width + j, width, a_ + p, a_stride, panel.rows - p);
    }
  }
}

template <class T>
void Gemm<T>::pack_b(const Matrix& b) {
  const bool transpose = b.column_stride != 1 && b.row_stride == 1;
  const auto for_each_panel = [&](auto f) {
    for (std::int64_t j = 0; j < b.columns; j += panel_width<T>) {
      const std::int64_t columns = std::min<std::int64_t>(panel_width<T>, b.columns - j);
      f(j, columns, round_up(columns, Simd<T>::lanes));
    }
  };
  if (transpose) {
    for_each_panel([&](std::int64_t j, std::int64_t columns, std::int64_t width) {
      transpose_into_panel(b.block(0, j, b.rows, columns), b_ + j * b.rows, width);
    });
    return;
  }
  // Whole rows, because short pieces of many rows are slow to read.
  for (std::int64_t p = 0; p < b.rows; ++p) {
    for_each_panel([&](std::int64_t j, std::int64_t columns, std::int64_t width) {
      T* row = b_ + j * b.rows + p * width;
      load_run(row, b.at(p, j), b.dtype, b.column_stride, columns);
      std::fill(row + columns, row + width, T(0));
    });
  }
}

template <class T>
void Gemm<T>::multiply_packed(const Matrix& a, std::int64_t b_columns, T* c, std::int64_t c_stride,
                              bool add) {
  const auto function = pack_a(a) ? multiply_panel<T, ByRows<T>> : multiply_panel<T, ByColumns<T>>;
  for (std::int64_t j = 0; j < b_columns; j += panel_width<T>) {
    const std::int64_t columns = std::min<std::int64_t>(panel_width<T>, b_columns - j);
    function(a.rows, a.columns, columns, a_, b_ + j * a.columns, c + j, c_stride, add);
  }
}

template <class T>
void Gemm<T>::multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add) {
  if (a.columns == 0 && !add) {
    for (std::int64_t i = 0; i < a.rows; ++i) std::fill_n(c + i * c_stride, b.columns, T(0));
  }
  const std::int64_t width = round_up(even_part(b.columns, max_columns), panel_width<T>);
  const std::int64_t most =
      std::min<std::int64_t>(max_depth, b_size_ / std::max<std::int64_t>(1, width));
  const std::int64_t depth = even_part(a.columns, most);
  for (std::int64_t j = 0; j < b.columns; j += width) {
    const std::int64_t columns = std::min(width, b.columns - j);
    for (std::int64_t p = 0; p < a.columns; p += depth) {
      const std::int64_t count = std::min(depth, a.columns - p);
      pack_b(b.block(p, j, count, columns));
      for (std::int64_t i = 0; i < a.rows; i += a_rows) {
        const std::int64_t rows = std::min(a_rows, a.rows - i);
        multiply_packed(a.block(i, p, rows, count), columns, c + i * c_stride + j, c_stride,
                        add || p > 0);
      }
    }
  }
}

template class Gemm<float>;
template class Gemm<double>;

}  // namespace quipu::on_cpu
