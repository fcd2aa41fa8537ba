#include "quipu/core/dtype.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "quipu/core/scalar.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr DType all_dtypes[] = {f64, f32, bf16, f16, i64, i32, u8, boolean};

/// What both reduced types have, so that each test is written once.
struct Bf16 {
  using Type = BFloat16;
  static constexpr DType dtype = bf16;
  static constexpr std::uint16_t infinity_bits = 0x7f80;
  static constexpr double beyond_max = 0x1p128;  // the next value if the exponent went on
  static BFloat16 round(double x) { return to_bf16(x); }
};
struct F16 {
  using Type = Half;
  static constexpr DType dtype = f16;
  static constexpr std::uint16_t infinity_bits = 0x7c00;
  static constexpr double beyond_max = 0x1p16;
  static Half round(double x) { return to_f16(x); }
};

/// A double and the bits that it must round to.
struct Rounding {
  double x;
  std::uint16_t bits;
};

/// Every tie between neighbours, the doubles beside each tie, and every value itself, in both
/// signs. Neighbours have consecutive bits, so a tie goes to the even one.
template <class R>
std::vector<Rounding> hard_roundings() {
  std::vector<Rounding> cases;
  const auto both_signs = [&](double x, std::uint16_t bits) {
    cases.push_back({x, bits});
    cases.push_back({-x, static_cast<std::uint16_t>(bits | 0x8000)});
  };
  for (std::uint16_t low = 0; low < R::infinity_bits; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double a = to_float(typename R::Type{low});
    const double b = high == R::infinity_bits ? R::beyond_max : to_float(typename R::Type{high});
    const double tie = a + (b - a) / 2;
    both_signs(a, low);
    both_signs(tie, low % 2 == 0 ? low : high);
    both_signs(std::nextafter(tie, 0), low);
    both_signs(std::nextafter(tie, infinity), high);
  }
  both_signs(infinity, R::infinity_bits);
  both_signs(std::numeric_limits<double>::max(), R::infinity_bits);
  both_signs(std::numeric_limits<double>::denorm_min(), 0);
  return cases;
}

template <class R>
void check_rounding() {
  std::size_t wrong = 0;
  for (const Rounding& c : hard_roundings<R>()) {
    const std::uint16_t got = R::round(c.x).bits;
    if (got == c.bits) continue;
    if (wrong++ == 0) MESSAGE(c.x, " gives bits ", got, " instead of ", c.bits);
  }
  CHECK(wrong == 0);
}

/// Every pattern comes back; NaN stays NaN with its sign, though perhaps a quiet one.
template <class R>
void check_round_trip() {
  std::size_t wrong = 0;
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float value = to_float(typename R::Type{bits});
    const std::uint16_t back = R::round(value).bits;
    if ((bits & 0x7fff) > R::infinity_bits) {
      const bool kept = std::isnan(value) && (back & 0x7fff) > R::infinity_bits &&
                        (back & 0x8000) == (bits & 0x8000);
      wrong += !kept;
    } else {
      wrong += std::isnan(value) || back != bits;
    }
  }
  CHECK(wrong == 0);
}

/// The kernels must round as the functions do, from f64 at once and from f32.
template <class R>
void check_casts(Device device) {
  std::vector<double> values;
  for (const Rounding& c : hard_roundings<R>()) values.push_back(c.x);
  values.push_back(nan_value);
  const auto n = static_cast<std::int64_t>(values.size());
  for (const DType source : {f64, f32}) {
    CAPTURE(to_string(source));
    const Tensor x = from(values, {n}, source, device);
    std::vector<typename R::Type> got(values.size());
    read_values(x.to(R::dtype), R::dtype, got.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double seen = source == f32 ? static_cast<float>(values[i]) : values[i];
      const bool both_nan = std::isnan(seen) && std::isnan(to_float(got[i]));
      wrong += !both_nan && got[i].bits != R::round(seen).bits;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("dtype: names, sizes and epsilons") {
  const char* names[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  const std::size_t sizes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  for (std::size_t i = 0; i < std::size(all_dtypes); ++i) {
    CHECK(to_string(all_dtypes[i]) == names[i]);
    CHECK(size_of(all_dtypes[i]) == sizes[i]);
  }
  CHECK(epsilon_of(f64) == std::numeric_limits<double>::epsilon());
  CHECK(epsilon_of(f32) == std::numeric_limits<float>::epsilon());
  CHECK(epsilon_of(bf16) == to_float(BFloat16{0x3f81}) - 1.0);  // the one after 1 is 0x3f81
  CHECK(epsilon_of(f16) == to_float(Half{0x3c01}) - 1.0);
  CHECK(epsilon_of(i64) == 0);
  CHECK(dtype_of<float> == f32);
  CHECK(dtype_of<bool> == boolean);
  CHECK(compute_type(f64) == f64);
  CHECK(compute_type(bf16) == f32);
  CHECK(compute_type(boolean) == i64);
}

TEST_CASE("dtype: the promotion table in full") {
  const DType b = boolean;
  const DType table[8][8] = {
      // f64  f32   bf16  f16   i64   i32   u8    bool
      {f64, f64, f64, f64, f64, f64, f64, f64},       // f64
      {f64, f32, f32, f32, f32, f32, f32, f32},       // f32
      {f64, f32, bf16, f32, bf16, bf16, bf16, bf16},  // bf16
      {f64, f32, f32, f16, f16, f16, f16, f16},       // f16
      {f64, f32, bf16, f16, i64, i64, i64, i64},      // i64
      {f64, f32, bf16, f16, i64, i32, i32, i32},      // i32
      {f64, f32, bf16, f16, i64, i32, u8, u8},        // u8
      {f64, f32, bf16, f16, i64, i32, u8, b},         // bool
  };
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      const DType x = all_dtypes[i], y = all_dtypes[j];
      CAPTURE(to_string(x));
      CAPTURE(to_string(y));
      CHECK(to_string(promote(x, y)) == to_string(table[i][j]));
    }
  }
}

TEST_CASE("dtype: bf16 rounds once to nearest even, at every tie") {
  check_rounding<Bf16>();
}
TEST_CASE("dtype: f16 rounds once to nearest even, at every tie") {
  check_rounding<F16>();
}
TEST_CASE("dtype: all bf16 patterns survive a round trip") {
  check_round_trip<Bf16>();
}
TEST_CASE("dtype: all f16 patterns survive a round trip") {
  check_round_trip<F16>();
}

TEST_CASE("dtype: a NaN whose payload is cut off stays NaN") {
  const double hidden = std::bit_cast<double>(std::uint64_t{0x7ff8000000000001});
  const float hidden_f32 = std::bit_cast<float>(std::uint32_t{0x7f800001});
  for (const double x : {hidden, -hidden, static_cast<double>(hidden_f32), nan_value}) {
    CHECK(std::isnan(to_float(to_bf16(x))));
    CHECK(std::isnan(to_float(to_f16(x))));
  }
}

TEST_CASE("dtype: f64 to bf16 rounds once, not by way of f32") {
  const double x = 1 + 0x1p-8 + 0x1p-40;       // just above a tie; f32 would land on it
  CHECK(static_cast<float>(x) == 1 + 0x1p-8);  // as it does here
  CHECK(to_float(to_bf16(x)) == 1 + 0x1p-7);   // up, as the exact value demands
  CHECK(to_float(to_bf16(1 + 0x1p-8)) == 1);   // the tie itself goes to even
  CHECK(to_float(to_f16(1 + 0x1p-11 + 0x1p-40)) == 1 + 0x1p-10);
}

TEST_CASE_FIXTURE(EachDevice, "dtype: casts of tensors round as the functions do") {
  check_casts<Bf16>(device);
  check_casts<F16>(device);
}

TEST_CASE_FIXTURE(EachDevice, "dtype: casts to whole types saturate, casts between them wrap") {
  const Tensor reals = from({-1.9, 1.9, 300.0, -1e30, 1e30, infinity, nan_value}, f64, device);
  const auto as = [](const Tensor& x, DType t) { return x.to(t).to_vector(); };
  CHECK(as(reals, u8) == std::vector<double>{0, 1, 255, 0, 255, 255, 0});
  CHECK(as(reals, i32) == std::vector<double>{-1, 1, 300, -0x1p31, 0x1p31 - 1, 0x1p31 - 1, 0});
  CHECK(as(reals, i64) == std::vector<double>{-1, 1, 300, -0x1p63, 0x1p63, 0x1p63, 0});
  CHECK(as(reals, boolean) == std::vector<double>{1, 1, 1, 1, 1, 1, 1});
  const Tensor whole = from({std::int64_t{0}, std::int64_t{-1}, std::int64_t{257}}, i64, device);
  CHECK(as(whole, u8) == std::vector<double>{0, 255, 1});
  CHECK(as(whole, boolean) == std::vector<double>{0, 1, 1});
}

TEST_CASE_FIXTURE(EachDevice, "dtype: whole numbers are exact beyond 2^53") {
  const std::int64_t big = (std::int64_t{1} << 62) + 1;
  const Tensor x = from({big, -big}, i64, device);
  CHECK(x[0].item_int() == big);
  CHECK(x.clone()[1].item_int() == -big);
  CHECK(same_bits(x.to(i32), from({1, -1}, i32, device)));
}

TEST_CASE_FIXTURE(EachDevice, "dtype: scalars do not promote tensors") {
  for (const DType t : {f64, f32, bf16, f16}) {
    const Tensor x = ones({2}, t, device);
    CHECK(to_string((x + 0.5).dtype()) == to_string(t));
    CHECK(to_string((2 * x).dtype()) == to_string(t));
    CHECK((x * 0.5)[1].item() == 0.5);
  }
  for (const DType t : {i64, i32, u8}) {
    const Tensor x = ones({2}, t, device);
    CHECK(to_string((x + 2).dtype()) == to_string(t));
    expect_error([&] { return x + 0.5; }, "0.5", to_string(t).c_str(), ".to(f32)");
  }
}

TEST_CASE("dtype: a scalar keeps whether it was whole") {
  CHECK(Scalar(1).natural_dtype() == i64);
  CHECK(Scalar(1.0f).natural_dtype() == f32);
  CHECK(Scalar(true).natural_dtype() == boolean);
  CHECK(to_string(Scalar((std::int64_t{1} << 60) + 1)) == "1152921504606846977");
  CHECK(to_string(Scalar(0.25)) == "0.25");
  CHECK_NOTHROW(check_scalar(3, f32));
  CHECK_NOTHROW(check_value(255, u8));
  CHECK_NOTHROW(check_value(true, boolean));
  expect_error([] { check_scalar(0.5, i32); }, "0.5", "i32", ".to(f32)");
  expect_error([] { check_value(256, u8); }, "256", "out of range", "u8");
  expect_error([] { check_value(-1, u8); }, "-1", "u8");
  expect_error([] { check_value(std::int64_t{1} << 31, i32); }, "2147483648", "i32");
  expect_error([] { check_value(2, boolean); }, "2", "bool");
}
