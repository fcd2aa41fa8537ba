// The matrix is read once, in blocks that are long in the direction in which it lies, and converted
// on the way into registers (f16 in a buffer before). Every row of `a` meets what has been read
// while it is there. Where the matrix lies by columns, each sum runs in a vector over a part of the
// column, and a few columns are read at once; where it lies by rows, a few rows are added to a
// stretch of c that stays in registers. Pairs of bf16 are multiplied as they lie where the machine
// can, and need no conversion.
//
// Bound by reading the matrix from memory, with many rows by a thread's multiply-adds. By columns,
// as weights of `linear` lie, 1 to 8 rows read it at 0.92 to 1.6 of a copy's bytes per second in
// 768 -> 3072 and at 0.77 to 0.93 in 4096 -> 4096, f32 and bf16 (two threads of a Zen 5).
#include "gemv.h"

#include <cstring>

#include "gemm_slots.h"
#include "quipu/cpu/simd/bfloat16.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/simd.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail::on_cpu {
namespace {

/// Elements of the matrix that are of the type that sums are made in.
template <class T>
struct Same {
  using Type = T;
  static constexpr std::int64_t numbers = 1, bytes = sizeof(T);  // in a lane
  static constexpr bool is_narrow = false;
  using Vector = typename Simd<T>::Vector;
  QUIPU_INLINE static Vector load(const char* from) {
    return *reinterpret_cast<const typename Simd<T>::Loose*>(from);
  }
  /// n elements, fewer than a vector has; zeros follow.
  static void load_few(T* to, const char* from, std::int64_t n) {
    for (std::int64_t i = 0; i < Simd<T>::lanes; ++i) {
      to[i] = i < n ? reinterpret_cast<const T*>(from)[i] : T(0);
    }
  }
  QUIPU_INLINE static void add_products(Vector& sum, const Vector& a, const Vector& b) {
    sum += a * b;
  }
};

/// Elements that become f32 on the way.
struct FromBf16 : Same<float> {
  static constexpr std::int64_t bytes = sizeof(BFloat16);
  static constexpr bool is_narrow = true;
  QUIPU_INLINE static Vector load(const char* from) {
    typedef std::uint16_t Half __attribute__((vector_size(vector_bytes / 2)));
    typedef std::uint32_t Whole __attribute__((vector_size(vector_bytes)));
    Half half;
    std::memcpy(&half, from, sizeof(half));
    return reinterpret_cast<Vector>(__builtin_convertvector(half, Whole) << 16);
  }
  static void load_few(float* to, const char* from, std::int64_t n) {
    for (std::int64_t i = 0; i < Simd<float>::lanes; ++i) {
      to[i] = i < n ? widened(reinterpret_cast<const BFloat16*>(from)[i]) : 0;
    }
  }
};

#if defined(QUIPU_BF16_PAIRS)
/// Two bf16 in a lane.
struct PairsOfBf16 : Same<float> {
  static constexpr std::int64_t numbers = 2;
  static constexpr bool is_narrow = true;
  QUIPU_INLINE static Vector load(const char* from) {
    Vector v;
    std::memcpy(&v, from, sizeof(v));
    return v;
  }
  QUIPU_INLINE static void add_products(Vector& sum, const Vector& a, const Vector& b) {
    Bf16Pairs::add_products(sum, a, b);
  }
};
#endif

/// Lines of a matrix whose elements follow each other; strides in bytes.
struct Lines {
  const char* data;
  std::int64_t stride, lines, n;

  const char* at(std::int64_t line, std::int64_t bytes) const {
    return data + line * stride + bytes;
  }
};

/// `rows` rows of a, padded with zeros to whole vectors, and of c.
template <class T>
struct Rows {
  const T* a;
  std::int64_t a_stride;
  T* c;
  std::int64_t c_stride;

  Rows from(std::int64_t row, std::int64_t column) const {
    return {a + row * a_stride, a_stride, c + row * c_stride + column, c_stride};
  }
};

template <class T>
using Sums = typename Simd<T>::Vector[Simd<T>::lanes];

/// sums, from the `first` on, += the products of a vector of each row and one of each line.
template <int rows, int columns, class Element, class T>
QUIPU_INLINE void add_slots(Sums<T>& sums, int first, const T* a, std::int64_t a_stride,
                            const char* b, std::int64_t b_stride, std::int64_t ahead) {
  using Vector = typename Simd<T>::Vector;
  Vector of_b[columns];
#pragma GCC unroll 4
  for (int j = 0; j < columns; ++j) {
    of_b[j] = Element::load(b + j * b_stride);
    if constexpr (rows > 2 || Element::is_narrow) __builtin_prefetch(b + j * b_stride + ahead);
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    const Vector of_a = *reinterpret_cast<const Vector*>(a + i * a_stride);
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) {
      Element::add_products(sums[first + i * columns + j], of_a, of_b[j]);
    }
  }
}

/// c += the products of the rows with `columns` lines. A single sum would wait for itself and runs
/// in several chains.
template <int rows, int columns, class Element, class T>
void add_columns_at(const Rows<T>& x, const Lines& b, std::int64_t ahead) {
  constexpr int lanes = Simd<T>::lanes, chain = rows * columns;
  constexpr int chains = std::max(1, std::min(4, lanes) / chain);
  static_assert(chain * chains <= lanes);
  constexpr std::int64_t step = lanes * Element::numbers;
  Sums<T> sums = {};
  std::int64_t p = 0, slot = 0;
  for (; p + chains * step <= b.n; p += chains * step, slot += chains * lanes) {
#pragma GCC unroll 4
    for (int k = 0; k < chains; ++k) {
      add_slots<rows, columns, Element>(sums, k * chain, x.a + slot + k * lanes, x.a_stride,
                                        b.data + (slot + k * lanes) * Element::bytes, b.stride,
                                        ahead);
    }
  }
  for (; p + step <= b.n; p += step, slot += lanes) {
    add_slots<rows, columns, Element>(sums, 0, x.a + slot, x.a_stride,
                                      b.data + slot * Element::bytes, b.stride, ahead);
  }
  if (p < b.n) {
    char rest[columns][vector_bytes] = {};
    const std::int64_t bytes = Element::bytes / Element::numbers * (b.n - p);
    for (int j = 0; j < columns; ++j) {
      std::memcpy(rest[j], b.at(j, slot * Element::bytes), static_cast<std::size_t>(bytes));
    }
    add_slots<rows, columns, Element>(sums, 0, x.a + slot, x.a_stride, rest[0], vector_bytes, 0);
  }
#pragma GCC unroll 4
  for (int k = 1; k < chains; ++k) {
#pragma GCC unroll 4
    for (int i = 0; i < chain; ++i) {
      sums[i] += sums[k * chain + i];
      sums[k * chain + i] = typename Simd<T>::Vector{};
    }
  }
  const typename Simd<T>::Vector totals = sums_of_lanes<T>(sums);
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) x.c[i * x.c_stride + j] += totals[i * columns + j];
  }
}

/// c += a b, where b lies by columns. One or two rows meet one column after the other, which is how
/// they lie in memory. Where more is multiplied, or a column is short, columns are asked for when
/// those before them are read: a processor that is busy looks ahead too little to do so itself.
template <int rows, class Element, class T>
void add_columns(const Rows<T>& x, const Lines& b) {
  constexpr int lanes = Simd<T>::lanes;
  constexpr int at_once = rows <= 2 ? 1 : std::min(4, std::max(1, lanes / rows));
  const auto part = [&](std::int64_t j) { return Lines{b.at(j, 0), b.stride, 1, b.n}; };
  std::int64_t j = 0;
  for (; j + at_once <= b.lines; j += at_once) {
    const std::int64_t next = std::min<std::int64_t>(at_once, b.lines - j - at_once);
    add_columns_at<rows, at_once, Element>(x.from(0, j), part(j), next * b.stride);
  }
  for (; j < b.lines; ++j) add_columns_at<rows, 1, Element>(x.from(0, j), part(j), 0);
}

/// c += the products with `lines` lines, for some vectors of columns.
template <int rows, int vectors, class Element, class T>
QUIPU_INLINE void add_rows_at(const Rows<T>& x, const char* b, std::int64_t b_stride,
                              std::int64_t lines, std::int64_t ahead) {
  using Loose = typename Simd<T>::Loose;
  constexpr std::int64_t lanes = Simd<T>::lanes;
  typename Simd<T>::Vector sums[rows][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      sums[i][v] = *reinterpret_cast<const Loose*>(x.c + i * x.c_stride + v * lanes);
    }
  }
  for (std::int64_t p = 0; p < lines; ++p) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      const char* const from = b + p * b_stride + v * lanes * Element::bytes;
      const auto of_b = Element::load(from);
      if constexpr (rows > 2) __builtin_prefetch(from + ahead);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) sums[i][v] += x.a[i * x.a_stride + p] * of_b;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      *reinterpret_cast<Loose*>(x.c + i * x.c_stride + v * lanes) = sums[i][v];
    }
  }
}

/// c += a b, where b lies by rows.
template <int rows, class Element, class T>
void add_rows(const Rows<T>& x, const Lines& b) {
  constexpr std::int64_t lanes = Simd<T>::lanes, at_once = rows == 1 ? 4 : 8;
  constexpr int vectors = rows > 4 ? 1 : rows > 2 ? 2 : 4;
  const std::int64_t whole = b.n / lanes * lanes, rest = b.n - whole;
  for (std::int64_t p = 0; p < b.lines; p += at_once) {
    const std::int64_t lines = std::min(at_once, b.lines - p);
    const std::int64_t ahead = std::min(at_once, b.lines - p - lines) * b.stride;
    const Rows<T> part{x.a + p, x.a_stride, x.c, x.c_stride};
    std::int64_t j = 0;
    for (; j + vectors * lanes <= whole; j += vectors * lanes) {
      add_rows_at<rows, vectors, Element>(part.from(0, j), b.at(p, j * Element::bytes), b.stride,
                                          lines, ahead);
    }
    for (; j < whole; j += lanes) {
      add_rows_at<rows, 1, Element>(part.from(0, j), b.at(p, j * Element::bytes), b.stride, lines,
                                    ahead);
    }
    if (rest == 0) continue;
    T of_b[at_once][lanes], of_c[rows][lanes] = {};
    for (std::int64_t q = 0; q < lines; ++q) {
      Element::load_few(of_b[q], b.at(p + q, whole * Element::bytes), rest);
    }
    for (int i = 0; i < rows; ++i) std::copy_n(x.c + i * x.c_stride + whole, rest, of_c[i]);
    const Rows<T> end{part.a, part.a_stride, of_c[0], lanes};
    add_rows_at<rows, 1, Same<T>>(end, reinterpret_cast<const char*>(of_b[0]), vector_bytes, lines,
                                  0);
    for (int i = 0; i < rows; ++i) std::copy_n(of_c[i], rest, x.c + i * x.c_stride + whole);
  }
}

template <class Element, class T, int... index>
void add_lines(const Rows<T>& x, std::int64_t rows, const Lines& b, bool by_columns,
               std::integer_sequence<int, index...>) {
  using Add = void (*)(const Rows<T>&, const Lines&);
  static constexpr Add columns[] = {add_columns<index + 1, Element, T>...};
  if constexpr (Element::numbers > 1) return columns[rows - 1](x, b);
  static constexpr Add along[] = {add_rows<index + 1, Element, T>...};
  (by_columns ? columns : along)[rows - 1](x, b);
}

}  // namespace

/// Some columns of a, padded with zeros to whole vectors.
template <class T>
void Gemv<T>::pack_a(const Matrix& a, std::int64_t first, std::int64_t count, bool pairs) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    T* const row = a_ + i * a_stride;
    std::int64_t filled = count;
#if defined(QUIPU_BF16_PAIRS)
    if constexpr (std::is_same_v<T, float>) {
      if (pairs) {
        Bf16Pairs::along(row, 0, a.block(i, first, 1, count));
        filled = slots<Bf16Pairs>(count);
      }
    }
#endif
    if (!pairs) load_run(row, a.at(i, first), a.dtype, a.column_stride, count);
    std::fill(row + filled, row + round_up(filled, Simd<T>::lanes), T(0));
  }
}

template <class T>
template <class Element>
void Gemv<T>::multiply_as(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride) {
  const bool columns = by_columns(b);
  constexpr std::int64_t bytes = Element::bytes / Element::numbers;  // of a number
  const bool converts = static_cast<std::int64_t>(size_of(b.dtype)) != bytes ||
                        (columns ? b.row_stride : b.column_stride) != 1;
  const std::int64_t depth = columns ? long_side : short_side;
  const std::int64_t width = columns ? (converts ? short_side : b.columns) : long_side;
  // As many rows at once as there are sums in a vector of totals.
  constexpr int at_once = std::min<int>(max_rows, Simd<T>::lanes);
  for (std::int64_t p = 0; p < b.rows; p += depth) {
    const std::int64_t count = std::min(depth, b.rows - p);
    pack_a(a, p, count, Element::numbers == 2);
    for (std::int64_t j = 0; j < b.columns; j += width) {
      Matrix block = b.block(p, j, count, width);
      if (columns) block = block.transposed();
      Lines lines{static_cast<const char*>(block.data), block.row_stride * bytes, block.rows,
                  block.columns};
      if (converts) {
        load_lines(block_, block.columns, block.data, block.dtype, block.row_stride,
                   block.column_stride, block.rows, block.columns);
        lines.data = reinterpret_cast<const char*>(block_);
        lines.stride = block.columns * bytes;
      }
      for (std::int64_t i = 0; i < a.rows; i += at_once) {
        const Rows<T> rows{a_ + i * a_stride, a_stride, c + i * c_stride + j, c_stride};
        add_lines<Element>(rows, std::min<std::int64_t>(at_once, a.rows - i), lines, columns,
                           std::make_integer_sequence<int, at_once>());
      }
    }
  }
}

template <class T>
void Gemv<T>::multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add) {
  if (!add) {
    for (std::int64_t i = 0; i < a.rows; ++i) std::fill_n(c + i * c_stride, b.columns, T(0));
  }
  if constexpr (std::is_same_v<T, float>) {
    const bool dense = (by_columns(b) ? b.row_stride : b.column_stride) == 1;
#if defined(QUIPU_BF16_PAIRS)
    if (by_columns(b) && dense && b.dtype == DType::bf16 && a.dtype == DType::bf16 &&
        a.column_stride == 1) {
      return multiply_as<PairsOfBf16>(a, b, c, c_stride);
    }
#endif
    if (dense && b.dtype == DType::bf16) return multiply_as<FromBf16>(a, b, c, c_stride);
  }
  multiply_as<Same<T>>(a, b, c, c_stride);
}

template class Gemv<float>;
template class Gemv<double>;

}  // namespace quipu::detail::on_cpu
