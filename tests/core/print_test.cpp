#include <limits>
#include <sstream>

#include "quipu/core/tensor.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

TEST_CASE_FIXTURE(EachDevice, "print: vectors, scalars and empty tensors") {
  const std::string on = " on " + to_string(device);
  CHECK(to_string(from({1.0f, -2.5f, 100.0f}, f32, device)) ==
        "[  1.0,  -2.5, 100.0] f32(3,)" + on);
  CHECK(to_string(full({}, 3.5, f64, device)) == "3.5 f64()" + on);
  CHECK(to_string(zeros({2, 0, 3}, bf16, device)) == "[] bf16(2, 0, 3)" + on);
  CHECK(to_string(from({true, false}, boolean, device)) == "[ true, false] bool(2,)" + on);
  CHECK(to_string(from({1, -20}, i32, device)) == "[  1, -20] i32(2,)" + on);
  CHECK(to_string(Tensor()) == "undefined tensor");
  CHECK(to_string(zeros({2, 3}, f32, "meta:cpu")) == "(no values) f32(2, 3) on meta:cpu");
  std::ostringstream stream;
  stream << arange(3, u8, device);
  CHECK(stream.str() == "[0, 1, 2] u8(3,)" + on);
}

TEST_CASE("print: what is not a number, and the very large and small") {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan_value = std::numeric_limits<double>::quiet_NaN();
  CHECK(to_string(from({nan_value, -nan_value, infinity, -infinity})) ==
        "[ nan,  nan,  inf, -inf] f64(4,) on cpu");
  CHECK(to_string(from({1e-20, -1.0 / 3, 1e300})) ==
        "[   1e-20, -0.33333,   1e+300] f64(3,) on cpu");
  CHECK(to_string(from({to_f16(65504.0)}, f16)) == "[65504] f16(1,) on cpu");
  CHECK(to_string(from({16777216.0f, -1.0f, 0.0f})) ==
        "[16777216,       -1,        0] f32(3,) on cpu");
  CHECK(to_string(from({0.1f, -0.25f, 1.0f / 3})) == "[ 0.1000, -0.2500,  0.3333] f32(3,) on cpu");
  CHECK(to_string(from({0.1f, 2.0f})) == "[0.1, 2.0] f32(2,) on cpu");
  CHECK(to_string(from({0.5, infinity, 0.0, nan_value})) == "[0.5, inf, 0.0, nan] f64(4,) on cpu");
  CHECK(to_string(from({0.00005, 1.0})) == "[5e-05,     1] f64(2,) on cpu");
}

TEST_CASE("print: whole numbers are exact beyond 2^53") {
  const std::int64_t big = std::numeric_limits<std::int64_t>::max();
  CHECK(to_string(from({big, -big}, i64)) ==
        "[ 9223372036854775807, -9223372036854775807] i64(2,) on cpu");
  CHECK(to_string(full({}, big - 1, i64)) == "9223372036854775806 i64() on cpu");
  CHECK(to_string(full({300}, big, i64)) ==
        "[9223372036854775807, 9223372036854775807, 9223372036854775807, ..., 9223372036854775807, "
        "9223372036854775807, 9223372036854775807] i64(300,) on cpu");
}

TEST_CASE("print: matrices are aligned, stacks of them are set apart") {
  CHECK(to_string(arange(6, i64).reshape({2, 3})) ==
        "[[0, 1, 2],\n"
        " [3, 4, 5]]\n"
        "i64(2, 3) on cpu");
  CHECK(to_string(arange(12, i64).reshape({2, 2, 3})) ==
        "[[[ 0,  1,  2],\n"
        "  [ 3,  4,  5]],\n"
        "\n"
        " [[ 6,  7,  8],\n"
        "  [ 9, 10, 11]]]\n"
        "i64(2, 2, 3) on cpu");
  CHECK(to_string(zeros({1, 1, 1, 1}, u8)) == "[[[[0]]]]\nu8(1, 1, 1, 1) on cpu");
}

TEST_CASE("print: views show their own values") {
  const Tensor x = arange(6, i64).reshape({2, 3});
  CHECK(to_string(x.t()) == "[[0, 3],\n [1, 4],\n [2, 5]]\ni64(3, 2) on cpu");
  CHECK(to_string(x(1, slice(0, {}, 2))) == "[3, 5] i64(2,) on cpu");
  CHECK(to_string(x[0].expand({2, 3})) == "[[0, 1, 2],\n [0, 1, 2]]\ni64(2, 3) on cpu");
}

TEST_CASE("print: large tensors are cut in the middle") {
  CHECK(to_string(arange(1000)) == "[  0,   1,   2, ..., 997, 998, 999] i64(1000,) on cpu");
  CHECK(to_string(arange(2000).reshape({100, 20})) ==
        "[[   0,    1,    2, ...,   17,   18,   19],\n"
        " [  20,   21,   22, ...,   37,   38,   39],\n"
        " [  40,   41,   42, ...,   57,   58,   59],\n"
        " ...,\n"
        " [1940, 1941, 1942, ..., 1957, 1958, 1959],\n"
        " [1960, 1961, 1962, ..., 1977, 1978, 1979],\n"
        " [1980, 1981, 1982, ..., 1997, 1998, 1999]]\n"
        "i64(100, 20) on cpu");
  CHECK(to_string(arange(1000).reshape({500, 2}).t()) ==
        "[[  0,   2,   4, ..., 994, 996, 998],\n"
        " [  1,   3,   5, ..., 995, 997, 999]]\n"
        "i64(2, 500) on cpu");
  CHECK(to_string(arange(192).reshape({6, 32})).find("...") == std::string::npos);
  CHECK(to_string(arange(33)) == "[ 0,  1,  2, ..., 30, 31, 32] i64(33,) on cpu");
}

TEST_CASE("print: no shape makes the text long") {
  const Tensor x = zeros({1}, u8);
  for (const std::int64_t size : {2, 3, 7, 8, 100}) {
    CHECK(to_string(x.expand({size, size, size, size, size, size, size, size})).size() < 1500);
  }
  CHECK(to_string(x.expand({std::int64_t{1} << 30, std::int64_t{1} << 20})).size() < 300);
}
