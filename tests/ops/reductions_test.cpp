// Reductions over several dimensions and running ones: values beside loops, kinks, zeros, digits,
// ties. Gradients at the usual places: gradients_test.cpp.
#include <quipu/quipu.h>

#include <cmath>

#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

using Numbers = std::vector<double>;
Numbers numbers(const Tensor& x) {
  return x.to_vector();
}
const double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "reductions: extremes over several dimensions") {
  const Tensor x = from({1.0f, 5.0f, 2.0f, 5.0f, 0.0f, 4.0f, 3.0f, 3.0f}, {2, 2, 2}).to(device);
  CHECK(numbers(max(x, {0, 2})) == Numbers{5, 5});
  CHECK(numbers(argmax(x, {0, 2})) == Numbers{1, 1});
  CHECK(numbers(argmin(x, {0, 2})) == Numbers{2, 0});
  CHECK(max(x, {0, 2}, true).shape() == Shape{1, 2, 1});
  CHECK(argmax(x).item() == 1);
  CHECK(argmax(x, {}, false, Ties::last).item() == 3);
  CHECK(numbers(argmin(x, 2, false, Ties::last)) == Numbers{0, 0, 0, 1});
  CHECK(argmax(from({1.0, nan, nan, 2.0}, {4}, f32, device), 0, false, Ties::last).item() == 2);
  const Tensor leaf = x.to(f64).set_requires_grad();
  Tape tape;
  tape.backward(sum(max(leaf, {0, 2})));
  CHECK(numbers(leaf.grad()) == Numbers{0, 1, 0, 1, 0, 0, 0, 0});
  const Tensor strided = randn({5, 6, 7}, f64, device).permute({2, 0, 1});
  CHECK(gradcheck(
      [](auto& in) {
        return min(in[0], {1, 2});
      },
      {strided.clone().set_requires_grad()}));
  CHECK(max(zeros({0, 3}, f32, device), 1).shape() == Shape{0});
  expect_error([&] { max(zeros({3, 0}, f32, device), 1); }, "max", "no largest entry");
}

TEST_CASE_FIXTURE(EachDevice, "reductions: variances keep the digits of the mean") {
  const Tensor x = from({1e7, 1e7 + 1, 1e7 + 2, 1e7 + 3}, {4}, f32, device);
  CHECK(std::abs(var(x).item() - 5.0 / 3) <= 2 * epsilon_of(f32));
  CHECK(var(x, {}, 0).item() == 1.25);
  CHECK(std::abs(stddev(x).item() - std::sqrt(5.0 / 3)) <= 2 * epsilon_of(f32));
  CHECK(std::isnan(var(x, {}, 4).item()));
  const Tensor leaf = x.clone().set_requires_grad();
  Tape tape;
  tape.backward(var(leaf, {}, 0));
  CHECK(numbers(leaf.grad()) == Numbers{-0.75, -0.25, 0.25, 0.75});
  // Where all are equal, stddev has gradient 0.
  const Tensor equal = full({3}, 2, f32, device).set_requires_grad();
  Tape other;
  other.backward(stddev(equal));
  CHECK(numbers(equal.grad()) == Numbers{0, 0, 0});
  expect_error([&] { var(x, {}, -1); }, "var", "correction is -1");
}

TEST_CASE_FIXTURE(EachDevice, "reductions: products, norms, any and all") {
  const Tensor x = from({2.0f, -3.0f, 4.0f, 0.0f, 5.0f, 1.0f}, {2, 3}).to(device);
  CHECK(numbers(prod(x, 1)) == Numbers{-24, 0});
  CHECK(prod(x).item() == 0);
  CHECK(prod(zeros({0}, f32, device)).item() == 1);
  CHECK(prod(arange(1000000).to(device).slice(0, 1, 21)).item_int() == 2432902008176640000);
  CHECK(numbers(norm(x, 1, 1)) == Numbers{9, 6});
  CHECK(std::abs(norm(x, 2, 1).to_vector()[0] - std::sqrt(29.0)) <= 4 * epsilon_of(f32) * 6);
  CHECK(numbers(norm(x, infinity, 1)) == Numbers{4, 5});
  CHECK(numbers(norm(x, -infinity, 1)) == Numbers{2, 0});
  CHECK(numbers(norm(x, 0, 1)) == Numbers{3, 2});
  CHECK(numbers(any(x > 4, 1)) == Numbers{0, 1});
  CHECK(numbers(all(x, 1)) == Numbers{1, 0});
  CHECK(all(zeros({0}, f32, device)).item() == 1);
  CHECK(any(zeros({0}, f32, device)).item() == 0);
  CHECK(any(from({nan}, {1}, f32, device)).item() == 1);
  // Gradients beside zeros: one, two, none.
  for (const std::vector<double>& values :
       {std::vector<double>{2, 0, 3}, {0, 0, 3}, {2, 4, 3}, {0, 0, 0}}) {
    const Tensor leaf = from(values, {3}, f64, device).set_requires_grad();
    Tape tape;
    tape.backward(prod(leaf));
    const Numbers wanted = {values[1] * values[2], values[0] * values[2], values[0] * values[1]};
    CHECK(numbers(leaf.grad()) == wanted);
  }
  const Tensor zero = zeros({3}, f64, device).set_requires_grad();
  for (const double p : {1.0, 2.0, 3.0}) {
    Tape tape;
    tape.backward(norm(zero, p));
    CHECK(numbers(zero.grad()) == Numbers{0, 0, 0});
    zero.zero_grad();
  }
}

TEST_CASE_FIXTURE(EachDevice, "reductions: running ones, both ways, without the entry itself") {
  const Tensor x = from({2.0f, 3.0f, 0.0f, 5.0f, -1.0f}).to(device);
  CHECK(numbers(cumsum(x, 0, true)) == Numbers{9, 7, 4, 4, -1});
  CHECK(numbers(cumsum(x, 0, false, true)) == Numbers{0, 2, 5, 5, 10});
  CHECK(numbers(cumsum(x, 0, true, true)) == Numbers{7, 4, 4, -1, 0});
  CHECK(numbers(cumprod(x, 0)) == Numbers{2, 6, 0, 0, 0});
  CHECK(numbers(cumprod(x, 0, true)) == Numbers{0, 0, 0, -5, -1});
  CHECK(numbers(cumprod(x, 0, false, true)) == Numbers{1, 2, 6, 0, 0});
  CHECK(numbers(cumprod(x, 0, true, true)) == Numbers{0, 0, -5, -1, 1});
  CHECK(numbers(cummax(x, 0).values) == Numbers{2, 3, 3, 5, 5});
  CHECK(numbers(cummax(x, 0).index) == Numbers{0, 1, 1, 3, 3});
  CHECK(numbers(cummin(x, 0, true).values) == Numbers{-1, -1, -1, -1, -1});
  const Tensor odd = from({1.0, nan, 3.0, nan}, {4}, f32, device);
  CHECK(numbers(cummax(odd, 0).index) == Numbers{0, 1, 1, 1});
  for (const bool reverse : {false, true}) {
    for (const bool exclusive : {false, true}) {
      const auto f = [&](const std::vector<Tensor>& in) {
        return cumprod(in[0], 1, reverse, exclusive);
      };
      const auto sums = [&](const std::vector<Tensor>& in) {
        return cumsum(in[0], 1, reverse, exclusive);
      };
      CHECK(gradcheck(sums, {randn({3, 7}, f64, device).set_requires_grad()}));
      const Tensor lines = randn({3, 37}, f64, device);
      lines.index_put_({0, 5}, zeros({}, f64, device));
      lines.index_put_({1, slice(3, 30, 9)}, zeros({}, f64, device));
      CHECK(gradcheck(f, {lines.set_requires_grad()}));
    }
  }
  // A long line, beside a loop.
  const Tensor line = rand({1000}, f64, device) + 0.5;
  double product = 1, largest = 0;
  const Numbers entries = numbers(line), products = numbers(cumprod(line, 0)),
                most = numbers(cummax(line, 0).values);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    product *= entries[i];
    largest = std::max(largest, entries[i]);
    CHECK(std::abs(products[i] - product) <= 1000 * epsilon_of(f64) * std::abs(product));
    CHECK(most[i] == largest);
  }
}
