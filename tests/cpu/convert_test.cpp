#include "quipu/cpu/simd/convert.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace quipu;
using namespace quipu::detail;
using on_cpu::add_run;
using on_cpu::load_run;
using on_cpu::store_run;

namespace {

constexpr std::size_t patterns = 65536;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

double value_of(DType dtype, std::uint16_t bits) {
  return dtype == bf16 ? to_float(BFloat16{bits}) : to_float(Half{bits});
}
std::uint16_t rounded(DType dtype, double x) {
  return dtype == bf16 ? to_bf16(x).bits : to_f16(x).bits;
}

bool same(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> bits(patterns);
  for (std::size_t i = 0; i < patterns; ++i) bits[i] = static_cast<std::uint16_t>(i);
  return bits;
}

/// Every value of a reduced type, the ties between neighbours, and what lies just beside both.
std::vector<double> hard_to_round(DType dtype) {
  std::vector<double> values;
  for (std::size_t i = 0; i + 1 < patterns; ++i) {
    const double a = value_of(dtype, static_cast<std::uint16_t>(i));
    const double b = value_of(dtype, static_cast<std::uint16_t>(i + 1));
    const double middle = a / 2 + b / 2;
    for (double x : {a, middle}) {
      values.insert(values.end(), {x, std::nextafter(x, -infinity), std::nextafter(x, infinity)});
    }
  }
  return values;
}

/// The number of inputs that are stored to other bits than core's own rounding gives.
template <class T>
int wrong_stores(DType dtype, const std::vector<T>& in, std::int64_t stride) {
  std::vector<std::uint16_t> out(in.size() * static_cast<std::size_t>(stride), 0xabcd);
  store_run(out.data(), dtype, stride, in.data(), static_cast<std::int64_t>(in.size()));
  int wrong = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool hit = i % static_cast<std::size_t>(stride) == 0;
    if (!hit) {
      wrong += out[i] != 0xabcd;
      continue;
    }
    const double x = static_cast<double>(in[i / static_cast<std::size_t>(stride)]);
    const bool fine =
        std::isnan(x) ? std::isnan(value_of(dtype, out[i])) : out[i] == rounded(dtype, x);
    wrong += !fine;
  }
  return wrong;
}

template <class To, class From>
To stored_as(From x) {
  To out{};
  store_run(&out, dtype_of<To>, 1, &x, 1);
  return out;
}

}  // namespace

TEST_CASE("convert: every pattern of bf16 and f16 loads as core converts it") {
  const std::vector<std::uint16_t> bits = all_patterns();
  for (DType dtype : {bf16, f16}) {
    CAPTURE(name_of(dtype));
    std::vector<float> floats(patterns);
    std::vector<double> odd_ones(patterns / 2);
    load_run(floats.data(), bits.data(), dtype, 1, static_cast<std::int64_t>(floats.size()));
    load_run(odd_ones.data(), bits.data() + 1, dtype, 2,
             static_cast<std::int64_t>(odd_ones.size()));
    int wrong = 0;
    for (std::size_t i = 0; i < patterns; ++i) {
      const double wanted = value_of(dtype, bits[i]);
      wrong += !same(floats[i], wanted);
      if (i % 2 == 1) wrong += !same(odd_ones[i / 2], wanted);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("convert: stores round once, ties to even, dense and strided") {
  for (DType dtype : {bf16, f16}) {
    CAPTURE(name_of(dtype));
    const std::vector<double> doubles = hard_to_round(dtype);
    const std::vector<float> floats(doubles.begin(), doubles.end());
    for (std::int64_t stride : {1, 3}) {
      CHECK(wrong_stores(dtype, doubles, stride) == 0);
      CHECK(wrong_stores(dtype, floats, stride) == 0);
    }
  }
}

TEST_CASE("convert: whole numbers beyond 2^53 round once") {
  // The last bit decides a tie that f64 would lose: 2^62 + 2^54 is half way between two bf16.
  constexpr std::int64_t tie = (std::int64_t{1} << 62) + (std::int64_t{1} << 54);
  CHECK(to_float(stored_as<BFloat16>(tie)) == 0x1p62f);
  CHECK(to_float(stored_as<BFloat16>(tie + 1)) == 0x1.02p62f);
  CHECK(to_float(stored_as<BFloat16>(tie - 1)) == 0x1p62f);
  CHECK(to_float(stored_as<BFloat16>(-tie - 1)) == -0x1.02p62f);
  CHECK(stored_as<float>((std::int64_t{1} << 62) + (std::int64_t{1} << 38) + 1) == 0x1.000002p62f);
  CHECK(to_float(stored_as<BFloat16>(std::numeric_limits<std::int64_t>::min())) == -0x1p63f);
  CHECK(to_float(stored_as<Half>(std::int64_t{65519})) == 65504.0f);
  CHECK(to_float(stored_as<Half>(std::int64_t{65520})) == std::numeric_limits<float>::infinity());
}

TEST_CASE("convert: reals are cut to whole numbers, saturate, and NaN gives 0") {
  CHECK(stored_as<std::int32_t>(-2.9) == -2);
  CHECK(stored_as<std::int32_t>(2.9f) == 2);
  CHECK(stored_as<std::int32_t>(3e9) == std::numeric_limits<std::int32_t>::max());
  CHECK(stored_as<std::int32_t>(-3e9f) == std::numeric_limits<std::int32_t>::min());
  CHECK(stored_as<std::int32_t>(2147483647.5) == std::numeric_limits<std::int32_t>::max());
  CHECK(stored_as<std::int64_t>(infinity) == std::numeric_limits<std::int64_t>::max());
  CHECK(stored_as<std::int64_t>(-0x1p63) == std::numeric_limits<std::int64_t>::min());
  CHECK(stored_as<std::int64_t>(0x1p62f) == std::int64_t{1} << 62);
  CHECK(stored_as<std::uint8_t>(255.9) == 255);
  CHECK(stored_as<std::uint8_t>(256.0f) == 255);
  CHECK(stored_as<std::uint8_t>(-0.5) == 0);
  CHECK(stored_as<std::uint8_t>(-infinity) == 0);
  CHECK(stored_as<std::int64_t>(nan_value) == 0);
  CHECK(stored_as<std::uint8_t>(static_cast<float>(nan_value)) == 0);
}

TEST_CASE("convert: whole numbers wrap, bool is what is not zero") {
  CHECK(stored_as<std::int32_t>((std::int64_t{1} << 32) + 5) == 5);
  CHECK(stored_as<std::uint8_t>(std::int64_t{-1}) == 255);
  CHECK(stored_as<bool>(0.25));
  CHECK(stored_as<bool>(nan_value));
  CHECK(!stored_as<bool>(-0.0));
  CHECK(stored_as<bool>(std::int64_t{256}));
  const std::uint8_t bits[] = {0, 1, 255};
  std::array<std::int64_t, 3> whole{};
  load_run(whole.data(), bits, boolean, 1, 3);
  CHECK(whole == std::array<std::int64_t, 3>{0, 1, 1});
}

TEST_CASE("convert: a run may repeat one element or be empty") {
  const std::int32_t element = 7;
  std::array<float, 5> out{};
  load_run(out.data(), &element, i32, 0, 5);
  CHECK(out == std::array<float, 5>{7, 7, 7, 7, 7});
  load_run<float>(nullptr, nullptr, f16, 1, 0);
  store_run<double>(nullptr, bf16, 1, nullptr, 0);
  add_run<double>(nullptr, bf16, 1, nullptr, 0);
}

TEST_CASE("convert: adding rounds the sum, not the addend") {
  // 2^-9 is lost beside 1 in bf16, but not beside what f32 keeps of both.
  BFloat16 element = to_bf16(1);
  const float addend = 0x1.fp-9f;
  add_run(&element, bf16, 1, &addend, 1);
  CHECK(to_float(element) == to_float(to_bf16(1 + 0x1.fp-9)));

  float narrow = 0x1p24f;
  const double precise = 1.5;
  add_run(&narrow, f32, 1, &precise, 1);
  CHECK(narrow == 0x1p24f + 2);

  std::int64_t whole = std::numeric_limits<std::int64_t>::max();
  const std::int64_t one = 1;
  add_run(&whole, i64, 1, &one, 1);
  CHECK(whole == std::numeric_limits<std::int64_t>::min());

  std::vector<double> strided(1000, 1.0);
  const std::vector<float> halves(500, 0.5f);
  add_run(strided.data(), f64, 2, halves.data(), 500);
  int wrong = 0;
  for (std::size_t i = 0; i < strided.size(); ++i) wrong += strided[i] != (i % 2 == 0 ? 1.5 : 1.0);
  CHECK(wrong == 0);
}
