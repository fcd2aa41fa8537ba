#include <cmath>
#include <limits>

#include "quipu/core/tensor.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

bool contains(const Difference& d, const std::string& part) {
  INFO(d.text);
  const bool found = d.text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "compare: a NaN on either side fails, also on both") {
  const Tensor a = from({1.0, nan_value}, f64, device), b = from({1.0, 2.0}, f64, device);
  for (const Tolerance& t : {Tolerance{}, Tolerance{1e9, 1e9, false}}) {
    CHECK_FALSE(allclose(a, b, t));
    CHECK_FALSE(allclose(b, a, t));
    CHECK_FALSE(allclose(a, a, t));
  }
  const Difference d = compare(a, b);
  CHECK(std::isnan(d.largest));
  contains(d, "1 of 2 entries differ");
  contains(d, "[1]: nan against 2");
  // A later, smaller difference does not hide it.
  CHECK(std::isnan(compare(from({nan_value, 1.0}), from({0.0, 2.0})).largest));
}

TEST_CASE("compare: NaN equals NaN on request, and only NaN") {
  const Tensor a = from({nan_value, 1.0}), b = from({2.0, 1.0});
  const Tolerance equal_nan{.relative = {}, .absolute = {}, .equal_nan = true};
  CHECK(allclose(a, a, equal_nan));
  CHECK(compare(a, a, equal_nan).largest == 0);
  CHECK_FALSE(allclose(a, b, equal_nan));
  CHECK_FALSE(allclose(b, a, equal_nan));
}

TEST_CASE("compare: infinities equal only themselves") {
  const Tensor inf = full({1}, infinity), minus = full({1}, -infinity), one = ones({1});
  CHECK(allclose(inf, inf));
  CHECK(allclose(minus, minus));
  const Tolerance wide{1e9, 1e9};
  CHECK_FALSE(allclose(inf, minus, wide));
  CHECK_FALSE(allclose(inf, one, wide));
  CHECK_FALSE(allclose(one, inf, wide));
  CHECK_FALSE(allclose(one, inf));
  CHECK(compare(inf, one).largest == infinity);
}

TEST_CASE("compare: shapes and types must agree") {
  CHECK_FALSE(allclose(ones({2, 3}), ones({3, 2})));
  CHECK_FALSE(allclose(ones({2}), ones({2}, f64)));
  CHECK_FALSE(allclose(ones({2}), ones({2, 1})));
  CHECK_FALSE(allclose(zeros({0, 2}), zeros({0, 3})));
  const Difference d = compare(ones({2}), ones({2}, f64));
  CHECK(d.text == "f32(2,) is compared with f64(2,)");
  CHECK(d.largest == infinity);
  CHECK(allclose(zeros({0, 2}), zeros({0, 2})));
  CHECK_FALSE(compare(zeros({0}), zeros({0})).text.empty());
}

TEST_CASE_FIXTURE(EachDevice, "compare: the worst entry is named") {
  const Tensor a = zeros({2, 3}, f32, device), b = zeros({2, 3}, f32, device);
  a[0][1].fill_(0.5);
  a[1][2].fill_(-2);
  const Difference d = compare(a, b);
  CHECK_FALSE(d.ok);
  CHECK_FALSE(static_cast<bool>(d));
  CHECK(d.largest == 2);
  contains(d, "2 of 6 entries differ");
  contains(d, "worst at [1, 2]: -2 against 0");
  // Worst is what exceeds its tolerance most, not what is farthest.
  contains(compare(from({1000.5, 1.25}), from({1000.0, 1.0}), {0.001, 0.0}), "worst at [1]");
  contains(compare(from({1.0 + 0x1p-50}), from({1.0}), {0.0, 0.0}), "1.0000000000000009 against 1");
}

TEST_CASE("compare: tolerances") {
  const double eps = epsilon_of(f32);
  const Tensor one = ones({1});
  CHECK(allclose(full({1}, 1 + 8 * eps), one));
  CHECK_FALSE(allclose(full({1}, 1 + 32 * eps), one));
  CHECK(allclose(full({1}, 1.09, f64), full({1}, 1.0, f64), {0.1, 0.0}));
  CHECK_FALSE(allclose(full({1}, 1.11, f64), full({1}, 1.0, f64), {0.1, 0.0}));
  CHECK(allclose(full({1}, 0.09), zeros({1}), {0.1, {}}));  // absolute as relative unless given
  CHECK_FALSE(allclose(full({1}, 0.09), zeros({1}), {0.1, 0.0}));
  CHECK(allclose(full({1}, 0.09), zeros({1}), {0.0, 0.1}));
  CHECK(allclose(from({to_bf16(1 + 0x1p-6)}), ones({1}, bf16)));
}

TEST_CASE("compare: whole numbers must be equal, beyond 2^53 too") {
  const std::int64_t big = std::int64_t{1} << 60;
  CHECK(allclose(full({2}, big, i64), full({2}, big, i64)));
  const Difference d = compare(full({2}, big + 1, i64), full({2}, big, i64));
  CHECK_FALSE(d.ok);
  CHECK(d.largest == 1);
  contains(d, "1152921504606846977 against 1152921504606846976");
  const std::int64_t low = std::numeric_limits<std::int64_t>::min();
  CHECK(compare(full({1}, low, i64), full({1}, -(low + 1), i64)).largest == 0x1p64);
  CHECK(allclose(full({1}, 3, u8), full({1}, 5, u8), {0.0, 2.0}));
  CHECK_FALSE(allclose(from({true}), from({false})));
}

TEST_CASE_FIXTURE(EachDevice, "compare: same bits") {
  const Tensor a = from({1.0, nan_value, -0.0}, f64, device);
  CHECK(same_bits(a, a.clone()));
  CHECK_FALSE(same_bits(a, from({1.0, nan_value, 0.0}, f64, device)));
  CHECK_FALSE(same_bits(ones({2}, f32, device), ones({2}, i32, device)));
  CHECK_FALSE(same_bits(ones({2}, f32, device), ones({2, 1}, f32, device)));
  const Tensor x = arange(6, i64, device).reshape({2, 3});
  CHECK(same_bits(x.t(), x.t().contiguous()));
  CHECK(same_bits(zeros({0, 3}, f32, device), zeros({0, 3}, f32, device)));
}

TEST_CASE("compare: there is nothing to compare on meta") {
  expect_error([] { return compare(zeros({2}, f32, "meta:cpu"), zeros({2})); },
               "compare: ", "meta:cpu", "no values");
}
