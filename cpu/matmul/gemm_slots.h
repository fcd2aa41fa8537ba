#pragma once
// What products are packed as. A slot of f32 holds one number, or two bf16 that follow each other
// along the summed dimension: machines with such an instruction multiply and add both at once, with
// f32 sums (subnormal numbers count as 0 there).
#include <bit>
#include <cstring>

#include "gemm.h"
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

  /// Whether the rows of `a` are what packing would make of them.
  static bool is_packed(const Matrix& a) { return a.dtype == dtype_of<T> && a.column_stride == 1; }
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

  static bool is_packed(const Matrix& a) {
    const bool whole = a.columns % 2 == 0 && a.row_stride % 2 == 0;
    return whole && a.column_stride == 1 && reinterpret_cast<std::uintptr_t>(a.data) % 4 == 0;
  }
  static bool fits(const Matrix& m) {
    return m.dtype == DType::bf16 && (m.column_stride == 1 || m.row_stride == 1);
  }
  static void add_product(Simd<float>::Vector& sum, float factor, const Simd<float>::Vector& row) {
    sum = reinterpret_cast<Simd<float>::Vector>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(_mm512_set1_ps(factor)),
        reinterpret_cast<__m512bh>(row)));
  }
  static void along(float* out, std::int64_t out_stride, const Matrix& rows) {
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      auto* line = reinterpret_cast<BFloat16*>(out + i * out_stride);
      const auto* from = static_cast<const BFloat16*>(rows.at(i, 0));
      std::memcpy(line, from, static_cast<std::size_t>(rows.columns) * sizeof(BFloat16));
      if (rows.columns % 2 != 0) line[rows.columns] = {};
    }
  }
  static void across(float* out, std::int64_t out_stride, const Matrix& rows) {
    for (std::int64_t i = 0; i < rows.rows; i += 2) {
      float* line = out + i / 2 * out_stride;
      const auto* first = static_cast<const BFloat16*>(rows.at(i, 0));
      const bool alone = i + 1 == rows.rows;
      const auto* second = alone ? first : static_cast<const BFloat16*>(rows.at(i + 1, 0));
      const std::uint32_t mask = alone ? 0 : 0xffff0000u;
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < rows.columns; ++j) {
        const std::uint32_t high = static_cast<std::uint32_t>(second[j].bits) << 16 & mask;
        line[j] = std::bit_cast<float>(high | first[j].bits);
      }
    }
  }
};
#endif

/// How many slots n numbers take.
template <class Slot>
std::int64_t slots(std::int64_t n) {
  return (n + Slot::numbers - 1) / Slot::numbers;
}

}  // namespace quipu::detail::on_cpu
