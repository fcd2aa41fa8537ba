#pragma once
// What products are packed as. A slot of f32 holds one number, or two bf16 that follow each other
// along the summed dimension: machines with such an instruction multiply and add both at once, with
// f32 sums (subnormal numbers count as 0 there). f32 operands that may be rounded become pairs as
// they are packed.
#include <bit>

#include "gemm.h"
#include "quipu/cpu/simd/bfloat16.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/vector_math.h"
#include "register_tiles.h"
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define QUIPU_BF16_PAIRS
#include <immintrin.h>
#endif

namespace quipu::detail::on_cpu {

template <class T>
struct Numbers : MultiplyAdd<T> {
  using Type = T;
  static constexpr std::int64_t numbers = 1;  // in a slot

  /// Rows of numbers that are summed over, to lines `out_stride` apart.
  static void along(T* out, std::int64_t out_stride, const Matrix& rows) {
    load_lines(out, out_stride, rows.data, rows.dtype, rows.row_stride, rows.column_stride,
               rows.rows, rows.columns);
  }
  /// Rows that are summed, each slot being a column of as many as it has numbers.
  static void across(T* out, std::int64_t out_stride, const Matrix& rows) {
    along(out, out_stride, rows);
  }
};

#if defined(QUIPU_BF16_PAIRS)
struct Bf16Pairs {
  using Type = float;
  static constexpr std::int64_t numbers = 2;

  /// bf16, or f32 that may be rounded to it.
  static bool fits(const Matrix& m) {
    const bool right_type = m.dtype == DType::bf16 || (m.dtype == DType::f32 && m.may_round);
    return right_type && (m.column_stride == 1 || m.row_stride == 1);
  }
  static void add_product(Simd<float>::Vector& sum, float factor, const Simd<float>::Vector& row) {
    sum = reinterpret_cast<Simd<float>::Vector>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(_mm512_set1_ps(factor)),
        reinterpret_cast<__m512bh>(row)));
  }
  static void along(float* out, std::int64_t out_stride, const Matrix& rows) {
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      auto* line = reinterpret_cast<BFloat16*>(out + i * out_stride);
      with_numbers(rows, [&](const auto* first) {
        const auto* from = first + i * rows.row_stride;
        QUIPU_VECTORIZE
        for (std::int64_t j = 0; j < rows.columns; ++j) line[j] = rounded(from[j]);
      });
      if (rows.columns % 2 != 0) line[rows.columns] = {};
    }
  }
  static void across(float* out, std::int64_t out_stride, const Matrix& rows) {
    for (std::int64_t i = 0; i < rows.rows; i += 2) {
      float* line = out + i / 2 * out_stride;
      const bool alone = i + 1 == rows.rows;
      const std::uint32_t mask = alone ? 0 : 0xffff0000u;
      with_numbers(rows, [&](const auto* first) {
        const auto* low = first + i * rows.row_stride;
        const auto* high = alone ? low : low + rows.row_stride;
        QUIPU_VECTORIZE
        for (std::int64_t j = 0; j < rows.columns; ++j) {
          const std::uint32_t above = static_cast<std::uint32_t>(rounded(high[j]).bits) << 16;
          line[j] = std::bit_cast<float>((above & mask) | rounded(low[j]).bits);
        }
      });
    }
  }

 private:
  static BFloat16 rounded(BFloat16 x) { return x; }
  static BFloat16 rounded(float x) { return narrowed(x); }
  template <class F>
  static void with_numbers(const Matrix& m, F f) {
    if (m.dtype == DType::f32) return f(static_cast<const float*>(m.data));
    f(static_cast<const BFloat16*>(m.data));
  }
};
#endif

/// How many slots n numbers take.
template <class Slot>
std::int64_t slots(std::int64_t n) {
  return (n + Slot::numbers - 1) / Slot::numbers;
}

}  // namespace quipu::detail::on_cpu
