// Conversions between the eight element types and f32, f64 and i64. Each pair is one loop without
// branches, so that dense runs become vector instructions and cost less than the memory they touch.
// f16 goes through f32 in small blocks, by the machine's own instructions where it has them.
#include "convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bfloat16.h"
#include "vector_math.h"
#include "wrapping.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace quipu::detail::on_cpu {
namespace {

/// bool as it lies in memory; any bits but zero are true.
struct Truth {
  std::uint8_t bits;
};

constexpr std::int64_t block_size = 256;

template <class T>
inline constexpr bool is_floating_v = std::is_floating_point_v<T>;

/// Rounded to f32 by setting the last bit if anything was lost: a second rounding to fewer bits
/// then gives the same as one rounding of x.
QUIPU_INLINE float rounded_to_odd(float x) {
  return x;
}
QUIPU_INLINE float rounded_to_odd(double x) {
  const float f = static_cast<float>(x);
  const double back = f;
  auto bits = std::bit_cast<std::uint32_t>(f);
  bits -= std::abs(back) > std::abs(x) ? 1u : 0u;
  bits |= back != x ? 1u : 0u;
  return std::bit_cast<float>(bits);
}
QUIPU_INLINE float rounded_to_odd(std::int64_t x) {
  // The low bits of a number beyond 2^53 shrink to one that says whether any was set.
  constexpr std::int64_t exact = std::int64_t{1} << 53, low_bits = 0x7ff;
  const std::int64_t shortened = (x & ~low_bits) | ((x & low_bits) != 0 ? 0x400 : 0);
  const bool fits = x > -exact && x < exact;
  return rounded_to_odd(static_cast<double>(fits ? x : shortened));
}

/// Cut towards zero, clamped to the range; NaN gives 0.
template <class Whole, class Real>
QUIPU_INLINE Whole saturated(Real x) {
  using Limits = std::numeric_limits<Whole>;
  constexpr Real low = static_cast<Real>(Limits::min());
  constexpr Real beyond = Real(2) * static_cast<Real>(Limits::max() / 2 + 1);
  const bool inside = x >= low && x < beyond;
  const Whole cut = static_cast<Whole>(inside ? x : Real(0));
  return x >= beyond ? Limits::max() : x < low ? Limits::min() : cut;
}

template <class To, class From>
QUIPU_INLINE To converted(From x) {
  if constexpr (std::is_same_v<From, Truth>) {
    return static_cast<To>(x.bits != 0);
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return converted<To>(widened(x));
  } else if constexpr (std::is_same_v<To, Truth>) {
    return {static_cast<std::uint8_t>(x != From(0))};
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return narrowed(rounded_to_odd(x));
  } else if constexpr (is_floating_v<From> && !is_floating_v<To>) {
    return saturated<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

/// out[i * out_stride] = in[i * in_stride], converted.
template <class To, class From>
void convert_run(To* out, std::int64_t out_stride, const From* in, std::int64_t in_stride,
                 std::int64_t n) {
  if (out_stride == 1 && in_stride == 1) {
    if constexpr (std::is_same_v<To, From>) {
      std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(To));
    } else if constexpr (std::is_same_v<To, BFloat16> && std::is_same_v<From, float>) {
      narrow_run(out, in, n);
    } else {
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i) out[i] = converted<To>(in[i]);
    }
  } else if (out_stride == 1 && in_stride == 0) {
    std::fill_n(out, n, converted<To>(*in));
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * out_stride] = converted<To>(in[i * in_stride]);
  }
}

#if defined(__F16C__)
void eight_halves_to_floats(float* out, const std::uint16_t* in) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  _mm256_storeu_ps(out, _mm256_cvtph_ps(halves));
}
void eight_floats_to_halves(std::uint16_t* out, const float* in) {
  const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), halves);
}

/// Calls `eight` for every eight elements; the last ones are padded.
template <class To, class From>
void in_eights(To* out, const From* in, std::int64_t n, void (*eight)(To*, const From*)) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) eight(out + i, in + i);
  if (i == n) return;
  From padded[8] = {};
  To results[8];
  std::copy(in + i, in + n, padded);
  eight(results, padded);
  std::copy(results, results + (n - i), out + i);
}

void halves_to_floats(float* out, const std::uint16_t* in, std::int64_t n) {
  in_eights(out, in, n, eight_halves_to_floats);
}
void floats_to_halves(std::uint16_t* out, const float* in, std::int64_t n) {
  in_eights(out, in, n, eight_floats_to_halves);
}
#else
void halves_to_floats(float* out, const std::uint16_t* in, std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t half = in[i];
    // Shifted into place the exponent is 112 too small; the product mends that for subnormals too.
    const float scaled = std::bit_cast<float>((half & 0x7fffu) << 13) * 0x1p112f;
    const std::uint32_t exponent =
        (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;  // infinity and NaN
    out[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | exponent |
                                  (half & 0x8000u) << 16);
  }
}

void floats_to_halves(std::uint16_t* out, const float* in, std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(in[i]);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t clamped =
        magnitude < 0x47800000u ? magnitude : 0x47800000u;  // 2^16, which becomes infinity
    const std::uint32_t normal = (clamped - 0x38000000u + 0xfffu + ((clamped >> 13) & 1u)) >> 13;
    // Below 2^-14, adding 0.5 puts the last kept bit at the end of the mantissa.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(clamped) + 0.5f) - 0x3f000000u;
    const std::uint32_t number = magnitude < 0x38800000u ? subnormal : normal;
    const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    out[i] = static_cast<std::uint16_t>((magnitude > 0x7f800000u ? nan : number) |
                                        ((bits >> 16) & 0x8000u));
  }
}
#endif

template <class T>
void load_halves(T* out, const std::uint16_t* in, std::int64_t stride, std::int64_t n) {
  std::uint16_t gathered[block_size];
  float floats[block_size];
  for (std::int64_t i = 0; i < n; i += block_size) {
    const std::int64_t count = std::min(block_size, n - i);
    const std::uint16_t* dense = in + i * stride;
    if (stride != 1) {
      convert_run(gathered, 1, dense, stride, count);
      dense = gathered;
    }
    if constexpr (std::is_same_v<T, float>) {
      halves_to_floats(out + i, dense, count);
    } else {
      halves_to_floats(floats, dense, count);
      convert_run(out + i, 1, floats, 1, count);
    }
  }
}

template <class T>
void store_halves(std::uint16_t* out, std::int64_t stride, const T* in, std::int64_t n) {
  std::uint16_t halves[block_size];
  float floats[block_size];
  for (std::int64_t i = 0; i < n; i += block_size) {
    const std::int64_t count = std::min(block_size, n - i);
    const float* rounded = floats;
    if constexpr (std::is_same_v<T, float>) {
      rounded = in + i;
    } else {
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < count; ++j) floats[j] = rounded_to_odd(in[i + j]);
    }
    floats_to_halves(stride == 1 ? out + i : halves, rounded, count);
    if (stride != 1) convert_run(out + i * stride, stride, halves, 1, count);
  }
}

}  // namespace

template <class T>
void load_run(T* out, const void* data, DType dtype, std::int64_t stride, std::int64_t n) {
  if (n == 0) return;
  switch (dtype) {
    case DType::f64: return convert_run(out, 1, static_cast<const double*>(data), stride, n);
    case DType::f32: return convert_run(out, 1, static_cast<const float*>(data), stride, n);
    case DType::bf16: return convert_run(out, 1, static_cast<const BFloat16*>(data), stride, n);
    case DType::f16: return load_halves(out, static_cast<const std::uint16_t*>(data), stride, n);
    case DType::i64: return convert_run(out, 1, static_cast<const std::int64_t*>(data), stride, n);
    case DType::i32: return convert_run(out, 1, static_cast<const std::int32_t*>(data), stride, n);
    case DType::u8: return convert_run(out, 1, static_cast<const std::uint8_t*>(data), stride, n);
    case DType::boolean: return convert_run(out, 1, static_cast<const Truth*>(data), stride, n);
  }
}

namespace {

template <class To, class From>
void convert_lines(To* out, std::int64_t out_stride, const From* in, std::int64_t in_stride,
                   std::int64_t lines, std::int64_t n) {
  for (std::int64_t l = 0; l < lines; ++l) {
    To* to = out + l * out_stride;
    const From* from = in + l * in_stride;
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) to[i] = converted<To>(from[i]);
  }
}

}  // namespace

template <class T>
void load_lines(T* out, std::int64_t out_stride, const void* data, DType dtype,
                std::int64_t line_stride, std::int64_t stride, std::int64_t lines, std::int64_t n) {
  if (n == 0 || lines == 0) return;
  if (stride == 1 && dtype == dtype_of<T>) {
    return convert_lines(out, out_stride, static_cast<const T*>(data), line_stride, lines, n);
  }
  if (stride == 1 && dtype == DType::bf16) {
    const auto* in = static_cast<const BFloat16*>(data);
    return convert_lines(out, out_stride, in, line_stride, lines, n);
  }
  const std::int64_t bytes = line_stride * static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t l = 0; l < lines; ++l) {
    load_run(out + l * out_stride, static_cast<const char*>(data) + l * bytes, dtype, stride, n);
  }
}

template <class T>
void store_run(void* data, DType dtype, std::int64_t stride, const T* in, std::int64_t n) {
  if (n == 0) return;
  switch (dtype) {
    case DType::f64: return convert_run(static_cast<double*>(data), stride, in, 1, n);
    case DType::f32: return convert_run(static_cast<float*>(data), stride, in, 1, n);
    case DType::bf16: return convert_run(static_cast<BFloat16*>(data), stride, in, 1, n);
    case DType::f16: return store_halves(static_cast<std::uint16_t*>(data), stride, in, n);
    case DType::i64: return convert_run(static_cast<std::int64_t*>(data), stride, in, 1, n);
    case DType::i32: return convert_run(static_cast<std::int32_t*>(data), stride, in, 1, n);
    case DType::u8: return convert_run(static_cast<std::uint8_t*>(data), stride, in, 1, n);
    case DType::boolean: return convert_run(static_cast<Truth*>(data), stride, in, 1, n);
  }
}

namespace {

/// The sum in type Sum, which holds both the element and the addend.
template <class Sum, class T>
void add_in(void* data, DType dtype, std::int64_t stride, const T* in, std::int64_t n) {
  Sum sum[block_size], converted_block[block_size];
  for (std::int64_t i = 0; i < n; i += block_size) {
    const std::int64_t count = std::min(block_size, n - i);
    char* at = static_cast<char*>(data) + i * stride * static_cast<std::int64_t>(size_of(dtype));
    load_run(sum, at, dtype, stride, count);
    const Sum* addend = converted_block;
    if constexpr (std::is_same_v<Sum, T>) {
      addend = in + i;
    } else {
      convert_run(converted_block, 1, in + i, 1, count);
    }
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < count; ++j) sum[j] = wrapping_sum(sum[j], addend[j]);
    store_run(at, dtype, stride, sum, count);
  }
}

}  // namespace

template <class T>
void add_run(void* data, DType dtype, std::int64_t stride, const T* in, std::int64_t n) {
  if (dtype == dtype_of<T> && stride == 1) {
    T* out = static_cast<T*>(data);
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) out[i] = wrapping_sum(out[i], in[i]);
  } else if (std::is_same_v<T, float> && dtype == DType::bf16 && stride == 1) {
    auto* out = static_cast<BFloat16*>(data);
    float sum[block_size];
    for (std::int64_t i = 0; i < n; i += block_size) {
      const std::int64_t count = std::min(block_size, n - i);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < count; ++j) {
        sum[j] = widened(out[i + j]) + static_cast<float>(in[i + j]);
      }
      narrow_run(out + i, sum, count);
    }
  } else if (compute_type(dtype) == dtype_of<T>) {
    add_in<T>(data, dtype, stride, in, n);
  } else {
    add_in<double>(data, dtype, stride, in, n);
  }
}

#define QUIPU_INSTANTIATE(T)                                                                 \
  template void load_run(T*, const void*, DType, std::int64_t, std::int64_t);                \
  template void load_lines(T*, std::int64_t, const void*, DType, std::int64_t, std::int64_t, \
                           std::int64_t, std::int64_t);                                      \
  template void store_run(void*, DType, std::int64_t, const T*, std::int64_t);               \
  template void add_run(void*, DType, std::int64_t, const T*, std::int64_t);
QUIPU_INSTANTIATE(float)
QUIPU_INSTANTIATE(double)
QUIPU_INSTANTIATE(std::int64_t)
#undef QUIPU_INSTANTIATE

}  // namespace quipu::detail::on_cpu
