// Matrix products in the blocking of Goto and van de Geijn (2008, ACM TOMS 34). Blocks of k are
// taken one after the other. For each, `b` is packed into panels a few vectors wide (second-level
// cache) and `a` into blocks of a few dozen rows; the inner loop keeps a part of c of 6 rows by one
// panel in registers and runs over k. Packing reads each operand as it lies, converts and
// transposes it, so reduced types and transposed operands run at nearly the same speed. An element
// of `a` is packed once for every 1 KiB of columns of c, unless its rows can be read where they
// lie, and one of `b` once for every call, which costs a few per cent. Where operands come from
// far, what is packed next, what the caller reads next and the part of c that comes next are asked
// for in advance, line by line between the steps of the inner loop (without that, flao takes up to
// a tenth more); large products find theirs in a cache, and requests would take a twentieth of
// them.
//
// It is bound by the multiply-add units. Shares of their peak in f32 on one thread and on two (AMD
// Zen 5): 88 and 81 % at 128, 88 and 87 % at 256, 86 and 86 % at 512, 87 and 87 % at 1024. Where
// both operands are bf16 and the machine multiplies pairs of them, they are packed as pairs (`a` is
// read where it lies) and reach 1.3 to 1.7 times the peak of f32; without pairs, bf16 has 0.95 of
// the speed of f32. Small and narrow products have less to do for each element that is packed: 19 %
// in a batch of 16 x 16, 52 % of 32 x 32, 56 % of 64 x 65536 x 64.
#include "gemm.h"

#include <algorithm>

#include "gemm_slots.h"

namespace quipu::detail::on_cpu {
namespace {

/// Lines of memory that the second-level cache is asked for while a product is made in registers:
/// one at each step, because a processor forgets most of what comes in a burst.
class Requests {
 public:
  static constexpr std::int64_t line_bytes = 64;

  explicit Requests(std::int64_t steps) : most_(std::min(steps, room)) {}

  /// Adds up to n lines that follow each other; returns how many.
  std::int64_t add(const char* first, std::int64_t n) {
    const std::int64_t added = std::min(n, most_ - count_);
    // By whole vectors; what is too much is overwritten.
    for (std::int64_t i = 0; i < added; i += batch) {
      const char* const next = first + i * line_bytes;
      for (std::int64_t j = 0; j < batch; ++j) lines_[count_ + i + j] = next + j * line_bytes;
    }
    count_ += added;
    return added;
  }
  // Inlined, or the compiler takes it for a function without effect.
  QUIPU_INLINE void send(std::int64_t step) const {
    if (step < count_) __builtin_prefetch(lines_[step], 0, 3);
  }

 private:
  static constexpr std::int64_t room = Gemm<float>::max_depth, batch = 8;
  const char* lines_[room + batch];
  std::int64_t most_, count_ = 0;
};

/// Where `a` is: row i, position p at i * row_stride + p * depth_stride. It was packed by rows or
/// by columns, or has dense rows of the right type and is read where it lies.
struct ByRows {
  static constexpr std::int64_t depth_stride = 1;
  static std::int64_t b_stride(std::int64_t width) { return width; }
  QUIPU_INLINE void at_step(std::int64_t step) const { requests->send(step); }
  std::int64_t row_stride;
  const Requests* requests = nullptr;
};
template <class T>
struct ByColumns {
  static constexpr std::int64_t row_stride = 1, depth_stride = Gemm<T>::a_rows;
  static std::int64_t b_stride(std::int64_t width) { return width; }
  QUIPU_INLINE void at_step(std::int64_t step) const { requests->send(step); }
  const Requests* requests = nullptr;
};

/// Asks for a matrix that will be packed soon, in `steps` steps.
class Ahead {
 public:
  Ahead(const Matrix& m, std::int64_t steps) {
    const Matrix lying = m.column_stride == 1 ? m : m.transposed();
    const auto bytes = static_cast<std::int64_t>(size_of(m.dtype));
    const bool dense = lying.row_stride == lying.columns;
    data_ = static_cast<const char*>(lying.data);
    stride_ = lying.row_stride * bytes;
    runs_ = dense ? std::min<std::int64_t>(lying.rows, 1) : lying.rows;
    run_lines_ = lines_of((dense ? lying.rows : 1) * lying.columns * bytes);
    lines_ = runs_ * run_lines_ / steps + 1;
  }
  void step(Requests& requests) {
    for (std::int64_t left = lines_; left > 0 && run_ < runs_;) {
      const char* const first = data_ + run_ * stride_ + line_ * Requests::line_bytes;
      const std::int64_t added = requests.add(first, std::min(left, run_lines_ - line_));
      if (added == 0) return;
      left -= added;
      line_ += added;
      if (line_ < run_lines_) continue;
      line_ = 0;
      ++run_;
    }
  }

 private:
  static std::int64_t lines_of(std::int64_t bytes) {
    return (bytes + Requests::line_bytes - 1) / Requests::line_bytes;
  }

  const char* data_;
  std::int64_t stride_, runs_, run_lines_;  // runs of memory without gaps
  std::int64_t lines_;                      // of a step
  std::int64_t run_ = 0, line_ = 0;
};

/// A packed block of `a` and the packed panels of `b`.
template <class T>
struct Packed {
  const T *a, *b;
  std::int64_t rows, depth, columns;

  /// Calls of multiply_in_registers that a product with `all_rows` rows takes.
  std::int64_t steps(std::int64_t all_rows) const {
    return ((all_rows - 1) / rows_at_once + 1) * ((columns - 1) / panel_width<T> + 1);
  }
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

template <class Slot, class Packing, class T = typename Slot::Type>
void multiply_packed(const Packed<T>& x, Packing packing, T* c, std::int64_t c_stride, bool add,
                     bool asks, Ahead next_a, Ahead& next_b, std::array<Ahead, 4>& next) {
  for (std::int64_t j = 0; j < x.columns; j += panel_width<T>) {
    const std::int64_t columns = std::min<std::int64_t>(panel_width<T>, x.columns - j);
    Packed<T> part = x;
    part.b = x.b + j * x.depth;
    for (std::int64_t i = 0; i < x.rows; i += rows_at_once) {
      const std::int64_t rows = std::min<std::int64_t>(rows_at_once, x.rows - i);
      part.a = x.a + i * packing.row_stride;
      Requests requests(x.depth);
      if (asks) {
        next_a.step(requests);
        next_b.step(requests);
        for (Ahead& later : next) later.step(requests);
      }
      packing.requests = &requests;
      multiply_panel<Slot>(part, packing, rows, columns, c + i * c_stride + j, c_stride, add);
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
template <class Slot>
void Gemm<T>::multiply_as(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add,
                          const Next& next) {
  const std::int64_t width = round_up(even_part(b.columns, max_columns), panel_width<T>);
  const std::int64_t depth =
      Slot::numbers * even_part(slots<Slot>(a.columns), std::min(max_depth, b_size_ / width));
  const std::int64_t steps =
      Packed<T>{a_, b_, 0, 0, b.columns}.steps(a.rows) *
      std::max<std::int64_t>(1, a.columns / std::max<std::int64_t>(depth, 1));
  std::array<Ahead, 4> later{Ahead(next[0], steps), Ahead(next[1], steps), Ahead(next[2], steps),
                             Ahead(next[3], steps)};
  for (std::int64_t j = 0; j < b.columns; j += width) {
    for (std::int64_t p = 0; p < a.columns; p += depth) {
      const Matrix b_block = b.block(p, j, depth, width);
      Packed<T> packed{a_, b_, 0, slots<Slot>(b_block.rows), b_block.columns};
      pack_b<Slot>(b_block);
      Ahead next_b(b.block(p + depth, j, depth, width), packed.steps(a.rows));
      for (std::int64_t i = 0; i < a.rows; i += a_rows) {
        const Matrix a_block = a.block(i, p, a_rows, depth);
        packed.rows = a_block.rows;
        const bool last = i + a_rows >= a.rows;
        const Ahead next_a(
            last ? a.block(0, p + depth, a_rows, depth) : a.block(i + a_rows, p, a_rows, depth),
            packed.steps(a_block.rows));
        const auto multiply_block = [&](auto packing) {
          multiply_packed<Slot>(packed, packing, c + i * c_stride + j, c_stride, add || p > 0,
                                asks_, next_a, next_b, later);
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
                       const Next& next) {
  if (a.rows == 0 || b.columns == 0) return;
  if (a.columns == 0 && !add) {
    for (std::int64_t i = 0; i < a.rows; ++i) std::fill_n(c + i * c_stride, b.columns, T(0));
  }
#if defined(QUIPU_BF16_PAIRS)
  if constexpr (std::is_same_v<T, float>) {
    if (Bf16Pairs::fits(a) && Bf16Pairs::fits(b)) {
      return multiply_as<Bf16Pairs>(a, b, c, c_stride, add, next);
    }
  }
#endif
  multiply_as<Numbers<T>>(a, b, c, c_stride, add, next);
}

template class Gemm<float>;
template class Gemm<double>;

}  // namespace quipu::detail::on_cpu
