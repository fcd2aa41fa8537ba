#pragma once
// The angles of position encodings on the device, and their sin and cos. Angles follow the formula
// of the CPU, with the same roundings. sin and cos are exact to 2 units in the last place for every
// argument: argument reduction by Cody and Waite (Software Manual for the Elementary Functions,
// 1980) up to `cody_waite_limit`, by Payne and Hanek (Radian reduction for trigonometric functions,
// SIGNUM Newsletter 18, 1983) beyond. They need registers and constants only; those of the toolkit
// keep an array in local memory for large arguments.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "element.cuh"
#include "geometry.h"
#include "quipu/core/error.h"
#include "quipu/ops/lrpe/kernels.h"

namespace quipu::detail::on_cuda {

namespace math {

template <class T>
struct SinCos {
  T sin, cos;
};

/// x = quadrant pi/2 + r + rest with |r| <= pi/4, or a little more; only the last two bits of the
/// quadrant matter.
struct Reduced {
  double r, rest;
  std::uint32_t quadrant;
};

/// Up to here pi/2 in three or four parts is exact enough.
inline constexpr double cody_waite_limit = 0x1p20;

/// The bits of 2/pi, behind 64 zero bits, as many as the largest f64 needs.
__constant__ std::uint64_t two_over_pi_bits[20] = {
    0,
    0xa2f9836e4e441529,
    0xfc2757d1f534ddc0,
    0xdb6295993c439041,
    0xfe5163abdebbc561,
    0xb7246e3a424dd2e0,
    0x06492eea09d1921c,
    0xfe1deb1cb129a73e,
    0xe88235f52ebb4484,
    0xe99c7026b45f7e41,
    0x3991d639835339f4,
    0x9c845f8bbdf9283b,
    0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f,
    0x6d367ecf27cb09b7,
    0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea,
    0x6bfb5fb11f8d5d08,
    0x56033046fc7b6bab,
};

/// Payne-Hanek, for finite |x| of at least 1/2. x = m 2^e with an integer m: bits of 2/pi whose
/// product with x is a multiple of 4 do not matter, and 192 bits behind them are enough.
__device__ __forceinline__ Reduced reduce_large(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t m = (bits & 0xfffffffffffffu) | 0x10000000000000u;
  const std::uint32_t exponent = static_cast<std::uint32_t>(bits >> 52) & 0x7ffu;  // e + 1075
  const std::uint32_t start = exponent + 62u - 1075u;
  const std::uint32_t word = start / 64u, shift = start % 64u;
  const auto window = [&](std::uint32_t i) {
    const std::uint64_t high = two_over_pi_bits[word + i], low = two_over_pi_bits[word + i + 1u];
    return shift == 0u ? high : high << shift | low >> (64u - shift);
  };
  const std::uint64_t w0 = window(0), w1 = window(1), w2 = window(2);
  // m times the window, modulo its top: quadrant in the first two bits, fraction behind.
  const std::uint64_t carried = __umul64hi(m, w2);
  const std::uint64_t middle = m * w1 + carried;
  const std::uint64_t top = m * w0 + __umul64hi(m, w1) + (middle < carried ? 1u : 0u);
  std::uint64_t high = top << 2 | middle >> 62, low = middle << 2 | (m * w2) >> 62;
  const bool upper = (high >> 63) != 0;  // the nearest multiple of pi/2 is the next one
  std::uint32_t quadrant = static_cast<std::uint32_t>(top >> 62) + (upper ? 1u : 0u);
  if (upper) {
    low = ~low + 1u;
    high = ~high + (low == 0 ? 1u : 0u);
  }
  // The fraction as a sum of two f64. No f64 is nearer than 2^-62 to a multiple of pi/2, so its
  // leading bit is in the first word or right behind it.
  const int zeros = high != 0 ? __clzll(static_cast<long long>(high)) : 63;
  const std::uint64_t first = zeros == 0 ? high : high << zeros | low >> (64 - zeros);
  const std::uint64_t second = zeros == 0 ? low : low << zeros;
  const double scale = std::bit_cast<double>(static_cast<std::uint64_t>(1023 - 64 - zeros) << 52);
  const double f1 = static_cast<double>(first >> 11) * 0x1p11 * scale;
  const double f2 = static_cast<double>((first & 0x7ffu) << 42 | second >> 22) * 0x1p-42 * scale;
  constexpr double half_pi = 0x1.921fb54442d18p0, half_pi_rest = 0x1.1a62633145c07p-54;
  const double r = f1 * half_pi;
  const double rest = std::fma(f1, half_pi, -r) + (f1 * half_pi_rest + f2 * half_pi);
  const bool minus = upper != ((bits >> 63) != 0);
  quadrant = (bits >> 63) != 0 ? 0u - quadrant : quadrant;
  return {minus ? -r : r, minus ? -rest : rest, quadrant};
}

/// The multiple of pi/2 nearest to x: as f64, and its last bits.
struct Quadrant {
  double k;
  std::uint32_t bits;
};
__device__ __forceinline__ Quadrant quadrant_of(double x) {
  constexpr double whole_shift = 0x1.8p52;
  const double shifted = x * 0x1.45f306dc9c883p-1 + whole_shift;
  return {shifted - whole_shift, static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(shifted))};
}

/// pi/2 in parts of 33 bits: their products with integers up to 2^20 are exact.
inline constexpr double half_pi_1 = 0x1.921fb544p0, half_pi_2 = 0x1.0b4611a6p-34,
                        half_pi_3 = 0x1.3198a2ep-69, half_pi_4 = 0x1.b839a252049c1p-104;

/// Cody-Waite, with a remainder of more than f64 precision.
__device__ __forceinline__ Reduced reduce(double x) {
  const Quadrant q = quadrant_of(x);
  // The first difference is exact, the second one's error is kept.
  const double a = x - q.k * half_pi_1;
  const double b = q.k * half_pi_2;
  const double high = a - b;
  const double virtual_b = a - high;
  const double error = (a - (high + virtual_b)) + (virtual_b - b);
  const double low = (error - q.k * half_pi_3) - q.k * half_pi_4;
  const double r = high + low;
  return {r, (high - r) + low, q.bits};
}

/// c0 + c1 x + c2 x^2 + ...
template <class T>
__device__ __forceinline__ T polynomial(T, T c) {
  return c;
}
template <class T, class... Rest>
__device__ __forceinline__ T polynomial(T x, T c, Rest... rest) {
  return c + x * polynomial(x, rest...);
}

/// sin and cos of x from those of r and the quadrant.
template <class T>
__device__ __forceinline__ SinCos<T> from_quadrant(T x, std::uint32_t quadrant, T sin_r, T cos_r) {
  const bool swap = (quadrant & 1u) != 0;
  const T sin_x = swap ? cos_r : sin_r, cos_x = swap ? sin_r : cos_r;
  const T signed_sin = (quadrant & 2u) != 0 ? -sin_x : sin_x;
  return {x == T(0) ? x : signed_sin,  // keeps the sign of -0
          ((quadrant + 1u) & 2u) != 0 ? -cos_x : cos_x};
}

/// Polynomials in f32: the reduced r needs no f64.
__device__ __forceinline__ SinCos<float> sincos_of(float x, float r, std::uint32_t quadrant) {
  const float z = r * r;
  const float sin_r = r + r * z * polynomial(z, -0x1.555546p-3f, 0x1.11076p-7f, -0x1.994e84p-13f);
  const float cos_r =
      (1.0f - 0.5f * z) + z * z * polynomial(z, 0x1.55554ap-5f, -0x1.6c0c8cp-10f, 0x1.9a027ap-16f);
  return from_quadrant(x, quadrant, sin_r, cos_r);
}
__device__ __forceinline__ SinCos<double> sincos_of(double x, const Reduced& q) {
  const double r = q.r, z = r * r;
  const double s =
      polynomial(z, -0x1.5555555555549p-3, 0x1.111111110f882p-7, -0x1.a01a019c126c0p-13,
                 0x1.71de357852382p-19, -0x1.ae5e66a577bc2p-26, 0x1.5d931cbf44e4fp-33);
  const double c =
      polynomial(z, 0x1.555555555554cp-5, -0x1.6c16c16c151b4p-10, 0x1.a01a019cb65e8p-16,
                 -0x1.27e4f80ce95bep-22, 0x1.1ee9edbcf795ap-29, -0x1.8faf7a832eef8p-37);
  return from_quadrant(x, q.quadrant, r + (r * z * s + q.rest),
                       (1.0 - 0.5 * z) + (z * z * c - r * q.rest));
}

/// Whether sincos_far is needed; false for NaN.
template <class T>
__device__ __forceinline__ bool is_far(T x) {
  return std::abs(x) > static_cast<T>(cody_waite_limit);
}
/// sin and cos where !is_far(x).
__device__ __forceinline__ SinCos<float> sincos_near(float x) {
  const auto wide = static_cast<double>(x);
  const Quadrant q = quadrant_of(wide);
  const double r = (wide - q.k * half_pi_1) - q.k * (half_pi_2 + half_pi_3);
  return sincos_of(x, static_cast<float>(r), q.bits);
}
__device__ __forceinline__ SinCos<double> sincos_near(double x) {
  return sincos_of(x, reduce(x));
}
/// sin and cos where is_far(x), infinity included.
__device__ __forceinline__ SinCos<double> sincos_far(double x) {
  constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
  if (!(std::abs(x) < std::numeric_limits<double>::infinity())) return {nothing, nothing};
  return sincos_of(x, reduce_large(x));
}
__device__ __forceinline__ SinCos<float> sincos_far(float x) {
  constexpr float nothing = std::numeric_limits<float>::quiet_NaN();
  if (!(std::abs(x) < std::numeric_limits<float>::infinity())) return {nothing, nothing};
  const Reduced large = reduce_large(static_cast<double>(x));
  return sincos_of(x, static_cast<float>(large.r), large.quadrant);
}

/// sin and cos of any number.
template <class T>
__device__ __forceinline__ SinCos<T> sincos(T x) {
  return is_far(x) ? sincos_far(x) : sincos_near(x);
}

/// sin and cos of a few numbers in registers. Far ones are reduced in a loop that is not unrolled:
/// the code is long and seldom runs.
template <class T, int count>
__device__ __forceinline__ void sincos(const T (&x)[count], T (&sin)[count], T (&cos)[count]) {
  bool far = false;
#pragma unroll
  for (int j = 0; j < count; ++j) {
    const SinCos<T> found = sincos_near(x[j]);
    sin[j] = found.sin;
    cos[j] = found.cos;
    far |= is_far(x[j]);
  }
  if (!far) return;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    T number = x[0];
#pragma unroll
    for (int j = 1; j < count; ++j) number = i == j ? x[j] : number;
    if (!is_far(number)) continue;
    const SinCos<T> found = sincos_far(number);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      sin[j] = i == j ? found.sin : sin[j];
      cos[j] = i == j ? found.cos : cos[j];
    }
  }
}

}  // namespace math

/// The angle of feature i of a head's rows is theta times the position along an axis of the grid.
template <class T>
struct AngleColumn {
  T theta;
  std::uint32_t axis;
  bool rotates;  // otherwise the angle is 0
};

/// The angles of rows (head, token) with `count` of them each.
template <class T>
struct RowAngles {
  /// For rows of `features` features. A table `angles` (h, t, count), if defined, is read instead
  /// of theta if it is `known`; otherwise kernels may fill it.
  RowAngles(const RowTransform& transform, std::int64_t features, std::int64_t all_tokens,
            const View& angles = {}, bool known = false)
      : count(static_cast<std::uint32_t>(angles_of(transform.kind, features))),
        tokens(static_cast<std::uint32_t>(all_tokens)),
        table(angles.defined ? angles.as<T>() : nullptr),
        in_table(angles.defined && known),
        offset(transform.offset),
        lead(static_cast<std::uint32_t>(transform.lead)),
        axes(static_cast<std::uint32_t>(transform.grid.size())) {
    constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
    check(all_tokens <= most, "there are ", all_tokens, " tokens, but a device takes at most ",
          most);
    if (count == 0 || in_table) return;
    const View& view = transform.theta;
    theta = view.data;
    dtype = view.dtype;
    head_step = view.size(0) == 1 ? 0 : view.stride(0);
    column_step = view.size(1) == 1 ? 0 : view.stride(1);
    columns = Divider(static_cast<std::uint32_t>(std::max<std::int64_t>(view.size(1), 1)));
    given = view.size(1) == 1 && axes == 0 ? count : static_cast<std::uint32_t>(view.size(1));
    if (numel(transform.grid) == 0) return;  // all tokens are lead tokens
    std::int64_t inside = 1;
    for (int axis = transform.grid.size() - 1; axis >= 0; --axis) {
      size[axis] = Divider(static_cast<std::uint32_t>(transform.grid[axis]));
      inner[axis] = Divider(static_cast<std::uint32_t>(inside));
      inside *= transform.grid[axis];
    }
  }

  /// Each grid axis has as many features as theta has columns, the last one perhaps fewer.
  __device__ __forceinline__ AngleColumn<T> column(std::uint32_t head, std::uint32_t i) const {
    if (in_table) return {T(0), 0u, true};
    const std::uint32_t axis = axes == 0 ? 0u : columns.quotient(i);
    const std::uint32_t k = i - axis * columns.divisor;
    if (k >= given) return {T(0), 0u, false};
    return {load_element<T>(theta, dtype, head * head_step + k * column_step), axis, true};
  }

  /// Lead tokens, before the grid, are not rotated.
  __device__ __forceinline__ bool is_lead(std::uint32_t token) const {
    return axes > 0 && token < lead;
  }
  /// The last axis of a grid runs fastest. For tokens behind the lead.
  __device__ __forceinline__ T position(std::uint32_t token, std::uint32_t axis) const {
    if (axes == 0) return static_cast<T>(offset + token);
    const std::uint32_t outer = inner[axis].quotient(token - lead);
    return static_cast<T>(outer - size[axis].quotient(outer) * size[axis].divisor);
  }

  __device__ __forceinline__ T angle(const AngleColumn<T>& column, std::uint32_t head,
                                     std::uint32_t token, std::uint32_t i) const {
    if (in_table) return table[entry(head, token) + i];
    if (!column.rotates || is_lead(token)) return T(0);
    return column.theta * position(token, column.axis);
  }
  __device__ __forceinline__ T angle(std::uint32_t head, std::uint32_t token,
                                     std::uint32_t i) const {
    return angle(column(head, i), head, token, i);
  }

  /// The offset of a row's angles in the table.
  __device__ __forceinline__ std::int64_t entry(std::uint32_t head, std::uint32_t token) const {
    return (static_cast<std::int64_t>(head) * tokens + token) * count;
  }

  std::uint32_t count, tokens;
  T* table;
  bool in_table;
  const void* theta = nullptr;
  DType dtype = DType::f32;
  std::int64_t head_step = 0, column_step = 0;
  Divider columns;
  std::uint32_t given = 0;  // columns of theta, with repetitions
  std::int64_t offset;
  std::uint32_t lead, axes;
  Divider size[max_dims], inner[max_dims];
};

}  // namespace quipu::detail::on_cuda
