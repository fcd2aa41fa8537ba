// Reductions and running sums: values against loops, types, strides and errors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "quipu/autograd/tape.h"
#include "quipu/core/tensor.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/scan.h"
#include "support/support.h"

namespace {

using namespace quipu;

const double infinity = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

using Values = std::vector<double>;

/// f of the entries along each line of the last dimension.
Values along_last(const Tensor& x, const std::function<double(const Values&)>& f) {
  const Values all = x.to_vector();
  const auto length = static_cast<std::size_t>(x.size(-1));
  Values result;
  for (std::size_t i = 0; i < all.size(); i += length) {
    result.push_back(f(Values(all.begin() + static_cast<std::ptrdiff_t>(i),
                              all.begin() + static_cast<std::ptrdiff_t>(i + length))));
  }
  return result;
}

double total(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 0.0);
}
double average(const Values& v) {
  return total(v) / static_cast<double>(v.size());
}
double variance(const Values& v) {
  double squares = 0;
  for (const double x : v) squares += (x - average(v)) * (x - average(v));
  return squares / static_cast<double>(v.size() - 1);
}
double log_sum_exp(const Values& v) {
  double sum = 0;
  for (const double x : v) sum += std::exp(x);
  return std::log(sum);
}
double largest(const Values& v) {
  return *std::max_element(v.begin(), v.end());
}
double smallest(const Values& v) {
  return *std::min_element(v.begin(), v.end());
}
double first_largest(const Values& v) {
  return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin());
}

/// The same numbers in other strides: dense, transposed, every other one.
std::vector<Tensor> layouts_of(const Tensor& x) {
  Shape wide = x.shape();
  wide[wide.size() - 1] *= 2;
  const Tensor gaps = empty(wide, x.dtype(), x.device()).slice(-1, 1, {}, 2);
  gaps.copy_from(x);
  return {x, x.transpose(0, -1).contiguous().transpose(0, -1), gaps};
}

void check_near(const Tensor& o, const Shape& shape, const Values& expected, double terms) {
  CHECK(o.shape() == shape);
  const double tolerance = 8 * epsilon_of(o.dtype()) + terms * epsilon_of(f64);
  const Difference difference =
      compare(o.to(f64), from(expected, shape, f64, o.device()), {tolerance, tolerance});
  CHECK_MESSAGE(difference.ok, difference.text);
}

TEST_CASE_FIXTURE(EachDevice, "reduce: along the last dimension, in every layout") {
  for (const Shape& shape : {Shape{3, 7}, Shape{5, 2, 67}, Shape{2, 1}, Shape{sized(1300, 300), 3},
                             Shape{2, sized(5000, 1500)}}) {
    CAPTURE(to_string(shape));
    Shape lines = shape, kept = shape;
    lines.erase(shape.size() - 1);
    kept[shape.size() - 1] = 1;
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(to_string(dtype));
      Generator g(3);
      for (const Tensor& x : layouts_of(randn(shape, dtype, device, g))) {
        const auto n = static_cast<double>(shape.back());
        check_near(sum(x, -1), lines, along_last(x, total), n);
        check_near(mean(x, -1, true), kept, along_last(x, average), n);
        check_near(logsumexp(x, -1), lines, along_last(x, log_sum_exp), n);
        check_near(max(x, -1), lines, along_last(x, largest), 0);
        check_near(min(x, -1, true), kept, along_last(x, smallest), 0);
        CHECK(argmax(x, -1).to_vector() == along_last(x, first_largest));
        if (shape.back() > 1) check_near(var(x, -1), lines, along_last(x, variance), n);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "reduce: any choice of dimensions") {
  const Tensor x = arange(0, 24, 1, f32, device).reshape({2, 3, 4});
  CHECK(sum(x).item() == 276);
  CHECK(sum(x).shape() == Shape{});
  CHECK(sum(x, {}, true).shape() == Shape{1, 1, 1});
  CHECK(sum(x, {0, 2}).to_vector() == Values{60, 92, 124});
  CHECK(sum(x, {-1, 0}, true).shape() == Shape{1, 3, 1});
  CHECK(mean(x, {1, 2}).to_vector() == Values{5.5, 17.5});
  CHECK(sum(x, 0).to_vector() == Values{12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34});
  CHECK(max(x, 1).to_vector() == Values{8, 9, 10, 11, 20, 21, 22, 23});
  CHECK(max(x).item() == 23);
  CHECK(min(x.t(), 0, true).shape() == Shape{1, 4, 3});
  CHECK(argmin(x, 0).to_vector() == Values(12, 0));
  CHECK(argmax(x.t()).item_int() == 23);
  CHECK(var(x, {0, 1, 2}).item() == doctest::Approx(50));
  CHECK(var(x, {}, false).item() == doctest::Approx(575.0 / 12));
  CHECK(logsumexp(x, {0, 1}).shape() == Shape{4});
  CHECK(std::abs(logsumexp(x).item() - logsumexp(x.flatten()).item()) < 1e-5);
  CHECK(sum(scalar_tensor(3, f32, device)).item() == 3);
}

TEST_CASE_FIXTURE(EachDevice, "reduce: whole numbers and bools sum to i64") {
  const Tensor x = full({300}, 200, u8, device);
  CHECK(sum(x).dtype() == i64);
  CHECK(sum(x).item_int() == 60000);
  CHECK(sum(ones({7}, boolean, device)).item_int() == 7);
  CHECK(cumsum(x, 0).dtype() == i64);
  CHECK(cumsum(x, 0).select(0, 299).item_int() == 60000);
  CHECK(max(x).dtype() == u8);
  CHECK(argmax(from({1, 5, 5}, i32, device)).item_int() == 1);
}

TEST_CASE_FIXTURE(EachDevice, "reduce: NaN wins, the first of equals is named") {
  for (const std::int64_t n : {7, 70, 9001, sized(200003, 50003)}) {
    CAPTURE(n);
    Values values(static_cast<std::size_t>(n), 1.0);
    values[static_cast<std::size_t>(n / 3)] = 2;
    values[static_cast<std::size_t>(n / 2)] = 2;
    const Tensor x = from(values, {n}, f32, device);
    CHECK(argmax(x).item_int() == n / 3);
    CHECK(argmin(x).item_int() == 0);
    values[static_cast<std::size_t>(n / 2)] = nan;
    values[static_cast<std::size_t>(n - 1)] = nan;
    for (const Tensor& y : {from(values, {n}, f32, device), from(values, {n}, f64, device)}) {
      CHECK(std::isnan(max(y).item()));
      CHECK(std::isnan(min(y).item()));
      CHECK(argmax(y).item_int() == n / 2);
      CHECK(argmin(y).item_int() == n / 2);
      // The same beside other columns.
      const Tensor wide = y.unsqueeze(1).expand({n, 5}).contiguous();
      CHECK(argmax(wide, 0).to_vector() == Values(5, static_cast<double>(n / 2)));
    }
  }
  const Tensor low = full({3}, -infinity, f32, device);
  CHECK(max(low).item() == -infinity);
  CHECK(argmax(low).item_int() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "reduce: values and index together") {
  const Tensor x = from({3.0, 1.0, 2.0, 4.0, 9.0, 9.0}, {2, 3}, f32, device);
  const Extremes most = max_with_index(x, 1);
  CHECK(most.values.to_vector() == Values{3, 9});
  CHECK(most.index.to_vector() == Values{0, 1});
  CHECK(most.index.dtype() == i64);
  const Extremes least = min_with_index(x, 0, true);
  CHECK(least.values.to_vector() == Values{3, 1, 2});
  CHECK(least.index.shape() == Shape{1, 3});
}

TEST_CASE_FIXTURE(EachDevice, "reduce: sums of many keep their digits") {
  CHECK(mean(full({1 << 20}, 0.1, f32, device)).item() == doctest::Approx(0.1f).epsilon(1e-7));
  CHECK(sum(ones({70000}, bf16, device)).item() == 70144);  // the nearest bf16
  CHECK(sum(ones({40000}, f16, device)).item() == 40000);
}

TEST_CASE_FIXTURE(EachDevice, "reduce: logsumexp at the ends of the range") {
  CHECK(logsumexp(from({1000.0, 1000.0}, f32, device)).item() ==
        doctest::Approx(1000 + std::log(2)));
  CHECK(logsumexp(from({-infinity, 3.0}, f32, device)).item() == 3);
  CHECK(logsumexp(full({2}, -infinity, f32, device)).item() == -infinity);
  CHECK(logsumexp(from({infinity, 1.0}, f32, device)).item() == infinity);
  CHECK(std::isnan(logsumexp(from({nan, 1.0}, f32, device)).item()));
}

TEST_CASE_FIXTURE(EachDevice, "reduce: running sums") {
  const Tensor x = arange(0, 24, 1, f32, device).reshape({2, 3, 4});
  CHECK(cumsum(x, 2).to_vector() == Values{0,  1,  3,  6,  4,  9,  15, 22, 8,  17, 27, 38,
                                           12, 25, 39, 54, 16, 33, 51, 70, 20, 41, 63, 86});
  CHECK(cumsum(x, -2).select(1, 2).to_vector() == sum(x, 1).to_vector());
  CHECK(same_bits(cumsum(x.t(), 1), cumsum(x, 2).t().contiguous()));
  for (const Shape& shape :
       {Shape{3, sized(1500, 1100)}, Shape{sized(700, 40), 600}, Shape{4, 0}, Shape{1, 1}}) {
    Generator g(5);
    const Tensor y = randint(-50, 50, shape, i64, device, g).to(f64);
    for (const int dim : {0, 1}) {
      const Tensor o = cumsum(y, dim);
      for (std::int64_t i = 1; i < shape[dim]; ++i) {
        REQUIRE(same_bits(o.select(dim, i), o.select(dim, i - 1) + y.select(dim, i)));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "reduce: nothing to reduce") {
  const Tensor x = zeros({3, 0}, f32, device), y = zeros({0, 3}, f32, device);
  CHECK(sum(x, 1).to_vector() == Values{0, 0, 0});
  CHECK(sum(x).item() == 0);
  CHECK(std::isnan(mean(x).item()));
  CHECK(std::isnan(var(ones({1}, f32, device)).item()));
  CHECK(var(ones({1}, f32, device), {}, false).item() == 0);
  CHECK(logsumexp(x, 1).to_vector() == Values(3, -infinity));
  CHECK(max(y, 1).shape() == Shape{0});
  CHECK(cumsum(x, 1).shape() == Shape{3, 0});
  expect_error([&] { max(x, 1); }, "max", "(3, 0)", "no largest entry");
  expect_error([&] { argmin(y); }, "argmin", "no smallest entry");
}

TEST_CASE("reduce: errors name the operator and the argument") {
  const Tensor x = ones({2, 3}), whole = ones({2, 3}, i64);
  expect_error([&] { sum(x, 2); }, "sum", "dimension 2");
  expect_error([&] { sum(x, {0, -2}); }, "sum", "named twice");
  expect_error([&] { mean(whole); }, "mean", "x is i64", ".to(f32)");
  expect_error([&] { var(whole); }, "var", ".to(f32)");
  expect_error([&] { logsumexp(whole); }, "logsumexp", ".to(f32)");
  expect_error([&] { argmax(x, 5); }, "argmax", "dimension 5");
  expect_error([&] { cumsum(x, -3); }, "cumsum", "dimension -3");
}

TEST_CASE("reduce: the number of threads changes nothing") {
  Generator g(11);
  const Tensor x = randn({517, 1031}, f32, cpu, g);
  const auto all = [&] {
    return std::vector<Tensor>{sum(x), mean(x, 0),   var(x, 1),   logsumexp(x),
                               max(x), argmin(x, 0), cumsum(x, 0)};
  };
  const int threads = set_num_threads(1);
  const std::vector<Tensor> one = all();
  set_num_threads(4);
  const std::vector<Tensor> four = all();
  set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], four[i]));
}

TEST_CASE_FIXTURE(EachDevice, "reduce: all of the gradient goes to the first of equals") {
  const Tensor x = from({1.0, 3.0, 3.0, 2.0}, f64, device).set_requires_grad();
  const auto gradient = [&](auto f) {
    x.zero_grad();
    Tape tape;
    tape.backward(f(x));
    return x.grad().to_vector();
  };
  CHECK(gradient([](const Tensor& t) { return max(t); }) == Values{0, 1, 0, 0});
  CHECK(gradient([](const Tensor& t) { return min(t.reshape({2, 2}).t()); }) == Values{1, 0, 0, 0});
  CHECK(gradient([](const Tensor& t) {
          return sum(max(t.reshape({2, 2}), 1));
        }) == Values{0, 1, 1, 0});
}

}  // namespace
