// Matrix products in the blocking of Goto and van de Geijn (2008, ACM TOMS 34). Blocks of k are
// taken one after the other. For each, `b` is packed into panels a few vectors wide (second-level
// cache) and `a` into blocks of a few dozen rows; the inner loop keeps a part of c of 6 rows by one
// panel in registers and runs over k. Packing reads each operand as it lies, converts and
// transposes it, so reduced types and transposed operands run at nearly the same speed. An element
// of `a` is packed once for every 1 KiB of columns of c, unless its rows can be read where they
// lie, and one of `b` once for every call, which costs a few per cent. Where operands come from
// far, what is packed next, what the caller reads next and the part of c that comes next are asked
// for in advance, line by line between the steps of the inner loop (requests.h; without that, flao
// takes up to a tenth more); large products find theirs in a cache, and requests would take a
// twentieth of them.
//
// It is bound by the multiply-add units. Shares of their peak in f32 on one thread and on two (AMD
// Zen 5): 88 and 81 % at 128, 88 and 87 % at 256, 86 and 86 % at 512, 87 and 87 % at 1024. Where
// both operands are bf16 and the machine multiplies pairs of them, they are packed as pairs (`a` is
// read where it lies) and reach 1.3 to 1.7 times the peak of f32; without pairs, bf16 has 0.95 of
// the speed of f32. Small and narrow products have less to do for each element that is packed: 19 %
// in a batch of 16 x 16, 52 % of 32 x 32, 56 % of 64 x 65536 x 64. A caller may take each part of c
// when it is complete instead of a whole c.
#include "gemm.h"

#include <algorithm>

#include "gemm_slots.h"
#include "requests.h"

namespace quipu::detail::on_cpu {
namespace {

/// Where `a` is: row i, position p at i * row_stride + p * depth_stride. It was packed by rows or
/// by columns, or has dense rows of the right type and is read where it lies.
struct ByRows {
  static constexpr std::int64_t depth_stride = 1;
  static std::int64_t b_stride(std::int64_t width) { return width; }
  QUIPU_INLINE void at_step(std::int64_t step) const { request.send(step); }
  std::int64_t row_stride;
  Request request{};
};
template <class T>
struct ByColumns {
  static constexpr std::int64_t row_stride = 1, depth_stride = Gemm<T>::a_rows;
  static std::int64_t b_stride(std::int64_t width) { return width; }
  QUIPU_INLINE void at_step(std::int64_t step) const { request.send(step); }
  Request request{};
};

/// A packed block of `a` and the packed panels of `b`.
template <class T>
struct Packed {
  const T *a, *b;
  std::int64_t rows, depth, columns;
};

/// c (=|+=) a b for at most 6 rows and one panel, of which `columns` columns exist.
template <class Slot, class Packing, class T>
void multiply_panel(const Packed<T>& x, const Packing& packing, std::int64_t rows,
                    std::int64_t columns, T* c, std::int64_t c_stride, bool add) {
  constexpr int lanes = Simd<T>::lanes;
  const std::int64_t vectors = (columns + lanes - 1) / lanes;
  const auto multiply = in_registers<T, Packing, Slot>(rows, vectors);
  if (columns == vectors * lanes) return multiply(packing, x.depth, x.a, x.b, c, c_stride, add);
  // The last vector is wider than c: through a buffer.
  alignas(64) T whole[rows_at_once * panel_width<T>];
  multiply(packing, x.depth, x.a, x.b, whole, panel_width<T>, false);
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* from = whole + i * panel_width<T>;
    T* to = c + i * c_stride;
    for (std::int64_t j = 0; j < columns; ++j) to[j] = add ? to[j] + from[j] : from[j];
  }
}

/// Where a block of a product goes, and who takes its parts when they are complete.
template <class T>
struct Output {
  T* c;
  std::int64_t c_stride;
  bool add;
  std::int64_t row = 0, column = 0;  // of the block
  const ProductTaker<T>* taker = nullptr;
  bool in_parts = false;  // there is no c: a part exists for the taker alone
};

template <class Slot, class Packing, class T = typename Slot::Type>
void multiply_packed(const Packed<T>& x, Packing packing, const Output<T>& out,
                     Requests& requests) {
  alignas(64) T own[rows_at_once * panel_width<T>];
  for (std::int64_t j = 0; j < x.columns; j += panel_width<T>) {
    const std::int64_t columns = std::min<std::int64_t>(panel_width<T>, x.columns - j);
    Packed<T> part = x;
    part.b = x.b + j * x.depth;
    for (std::int64_t i = 0; i < x.rows; i += rows_at_once) {
      const std::int64_t rows = std::min<std::int64_t>(rows_at_once, x.rows - i);
      part.a = x.a + i * packing.row_stride;
      packing.request = requests.take(x.depth);
      const std::int64_t row = out.row + i, column = out.column + j;
      T* const to = out.in_parts ? own : out.c + row * out.c_stride + column;
      const std::int64_t stride = out.in_parts ? panel_width<T> : out.c_stride;
      multiply_panel<Slot>(part, packing, rows, columns, to, stride, out.add);
      if (out.taker) (*out.taker)({row, column, rows, columns, to, stride});
    }
  }
}

}  // namespace

/// True if the block lies by rows now, false if by columns.
template <class T>
template <class Slot>
bool Gemm<T>::pack_a(const Matrix& a) {
  const bool by_rows = a.row_stride != 1 || a.column_stride == 1;
  if (by_rows) {
    Slot::along(a_, a_stride, a);
  } else {
    Slot::across(a_, a_rows, a.transposed());
  }
  return by_rows;
}

/// A panel whose columns are dense: vectors full of them are laid out by rows in the buffer of `a`,
/// which is free at that time, and transposed from there.
template <class T>
template <class Slot>
void Gemm<T>::transpose_into_panel(const Matrix& panel, T* out, std::int64_t width) {
  constexpr int lanes = Simd<T>::lanes;
  static_assert(lanes <= a_rows);
  const std::int64_t depth = slots<Slot>(panel.rows);
  const Matrix columns = panel.transposed();
  for (std::int64_t j = 0; j < width; j += lanes) {
    const std::int64_t there = std::min<std::int64_t>(lanes, panel.columns - j);
    Slot::along(a_, a_stride, columns.block(j, 0, there, panel.rows));
    for (std::int64_t i = there; i < lanes; ++i) std::fill_n(a_ + i * a_stride, depth, T(0));
    for (std::int64_t p = 0; p < depth; p += lanes) {
      transpose_square(out + p * width + j, width, a_ + p, a_stride, depth - p);
    }
  }
}

template <class T>
template <class Slot>
void Gemm<T>::pack_b(const Matrix& b) {
  const bool transpose = b.column_stride != 1 && b.row_stride == 1;
  const std::int64_t depth = slots<Slot>(b.rows);
  const auto for_each_panel = [&](auto f) {
    for (std::int64_t j = 0; j < b.columns; j += panel_width<T>) {
      const std::int64_t columns = std::min<std::int64_t>(panel_width<T>, b.columns - j);
      f(j, columns, round_up(columns, Simd<T>::lanes));
    }
  };
  if (transpose) {
    for_each_panel([&](std::int64_t j, std::int64_t columns, std::int64_t width) {
      transpose_into_panel<Slot>(b.block(0, j, b.rows, columns), b_ + j * depth, width);
    });
    return;
  }
  // A few rows at a time, because short pieces of many rows are slow to read.
  constexpr std::int64_t few = 4;
  for (std::int64_t p = 0; p < depth; p += few) {
    for_each_panel([&](std::int64_t j, std::int64_t columns, std::int64_t width) {
      T* rows = b_ + j * depth + p * width;
      Slot::across(rows, width, b.block(p * Slot::numbers, j, few * Slot::numbers, columns));
      for (std::int64_t i = 0; columns < width && i < std::min(few, depth - p); ++i) {
        std::fill(rows + i * width + columns, rows + (i + 1) * width, T(0));
      }
    });
  }
}

template <class T>
std::int64_t Gemm<T>::depth_at_once(std::int64_t columns) const {
  const std::int64_t width = round_up(even_part(columns, max_columns), panel_width<T>);
  return std::min(max_depth, b_size_ / std::max<std::int64_t>(width, 1));
}

template <class T>
template <class Slot>
void Gemm<T>::multiply_as(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add,
                          const Next& next, const ProductTaker<T>* taker) {
  const std::int64_t width = round_up(even_part(b.columns, max_columns), panel_width<T>);
  const std::int64_t depth =
      Slot::numbers * even_part(slots<Slot>(a.columns), depth_at_once(b.columns));
  Requests requests(next, asks_);
  for (std::int64_t j = 0; j < b.columns; j += width) {
    for (std::int64_t p = 0; p < a.columns; p += depth) {
      const Matrix b_block = b.block(p, j, depth, width);
      Packed<T> packed{a_, b_, 0, slots<Slot>(b_block.rows), b_block.columns};
      pack_b<Slot>(b_block);
      requests.next_b(b.block(p + depth, j, depth, width));
      const bool complete = p + depth >= a.columns;
      Output<T> out{c, c_stride, add || p > 0, 0, j, complete ? taker : nullptr, c == nullptr};
      for (std::int64_t i = 0; i < a.rows; i += a_rows) {
        const Matrix a_block = a.block(i, p, a_rows, depth);
        packed.rows = a_block.rows;
        const bool last = i + a_rows >= a.rows;
        requests.next_a(last ? a.block(0, p + depth, a_rows, depth)
                             : a.block(i + a_rows, p, a_rows, depth));
        out.row = i;
        const auto multiply_block = [&](auto packing) {
          multiply_packed<Slot>(packed, packing, out, requests);
        };
        if (Slot::is_packed(a_block)) {
          packed.a = static_cast<const T*>(a_block.data);
          multiply_block(ByRows{a_block.row_stride / Slot::numbers});
        } else if (pack_a<Slot>(a_block)) {
          multiply_block(ByRows{a_stride});
        } else {
          multiply_block(ByColumns<T>{});
        }
      }
    }
  }
}

template <class T>
void Gemm<T>::multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add,
                       const Next& next, const ProductTaker<T>* taker) {
  if (a.rows == 0 || b.columns == 0) return;
  if (a.columns == 0) return nothing(a.rows, b.columns, c, c_stride, add, taker);
#if defined(QUIPU_BF16_PAIRS)
  if constexpr (std::is_same_v<T, float>) {
    if (Bf16Pairs::fits(a) && Bf16Pairs::fits(b)) {
      return multiply_as<Bf16Pairs>(a, b, c, c_stride, add, next, taker);
    }
  }
#endif
  multiply_as<Numbers<T>>(a, b, c, c_stride, add, next, taker);
}

/// Of sums without terms.
template <class T>
void Gemm<T>::nothing(std::int64_t rows, std::int64_t columns, T* c, std::int64_t c_stride,
                      bool add, const ProductTaker<T>* taker) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (c && !add) std::fill_n(c + i * c_stride, columns, T(0));
    for (std::int64_t j = 0; taker && j < columns; j += panel_width<T>) {
      const std::int64_t n = std::min<std::int64_t>(panel_width<T>, columns - j);
      T* const part = c ? c + i * c_stride + j : std::fill_n(a_, n, T(0)) - n;
      (*taker)({i, j, 1, n, part, n});
    }
  }
}

template class Gemm<float>;
template class Gemm<double>;

}  // namespace quipu::detail::on_cpu
