// bf16 and half: against known values, and bit for bit against the toolkit's headers where a
// toolkit is found.
#include <cmath>
#include <cstring>
#include <random>

#include "buffer.h"
#ifdef QUIPU_TOOLKIT_HEADERS
#include "toolkit/toolkit_reduced.h"
#endif

namespace quipu::testing {
namespace {

TEST_CASE("emulator: conversions round to nearest even, once") {
  const auto bf16 = [](auto x) { return __bfloat16_as_ushort(__nv_bfloat16(x)); };
  const auto half = [](auto x) { return __half_as_ushort(__half(x)); };
  CHECK(bf16(1.0f) == 0x3f80);
  CHECK(bf16(1.0f + 0x1p-8f) == 0x3f80);          // a tie: even
  CHECK(bf16(1.0f + 3 * 0x1p-8f) == 0x3f82);      // a tie: even
  CHECK(bf16(1.0 + 0x1p-8 + 0x1p-40) == 0x3f81);  // rounding to float first would make it a tie
  CHECK(bf16(NAN) == 0x7fff);
  CHECK(bf16(INFINITY) == 0x7f80);
  CHECK(half(1.0f) == 0x3c00);
  CHECK(half(65519.0f) == 0x7bff);
  CHECK(half(65520.0f) == 0x7c00);
  CHECK(half(0x1p-24f) == 0x0001);
  CHECK(half(0x1p-25f) == 0x0000);
  CHECK(half(-0x1p-14f) == 0x8400);
  CHECK(half(1.0 + 0x1p-11 + 0x1p-50) == 0x3c01);
  CHECK(half(NAN) == 0x7fff);
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {
    const __half value = __ushort_as_half(static_cast<unsigned short>(bits));
    CHECK(__half_as_ushort(__half(float(value))) == bits);
  }
}

#ifdef QUIPU_TOOLKIT_HEADERS
template <class T>
std::uint16_t bits_of(T value) {
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const void*>(&value), 2);
  return bits;
}

template <class T>
T value_of(std::uint16_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, 2);
  return value;
}

/// How many of many results differ.
template <class T>
long differences(const toolkit::Reduced& other) {
  long count = 0;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 997) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    count += bits_of(T(x)) != other.from_float(x);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000000; ++i) {
    // Doubles whose exponents matter to 16 bits.
    const std::uint64_t bits = random();
    const double x = std::ldexp(double(bits >> 11) * 0x1p-53, int(bits % 64) - 32);
    count += bits_of(T(x)) != other.from_double(x);
    const auto a = static_cast<std::uint16_t>(bits >> 16),
               b = static_cast<std::uint16_t>(bits >> 40);
    const T u = value_of<T>(a), v = value_of<T>(b);
    if (std::isnan(float(u)) || std::isnan(float(v))) continue;
    count += bits_of(T(u + v)) != other.add(a, b);
    count += bits_of(T(u - v)) != other.subtract(a, b);
    count += bits_of(T(u * v)) != other.multiply(a, b);
    count += bits_of(T(u / v)) != other.divide(a, b);
  }
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto a = static_cast<std::uint16_t>(bits);
    const float mine = float(value_of<T>(a)), theirs = other.to_float(a);
    const bool same = std::bit_cast<std::uint32_t>(mine) == std::bit_cast<std::uint32_t>(theirs);
    count += !same && !(std::isnan(mine) && std::isnan(theirs));
  }
  return count;
}

TEST_CASE("emulator: bf16 and half are the toolkit's, bit for bit") {
  CHECK(differences<__nv_bfloat16>(toolkit::bf16()) == 0);
  CHECK(differences<__half>(toolkit::half()) == 0);
}
#endif

}  // namespace
}  // namespace quipu::testing
