// The k best entries against a sort on the host.
#include "quipu/ops/index/top_k.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/loss_checks.h"
#include "quipu/ops/index/top_k_kernels.h"
#include "quipu/ops/pointwise/arithmetic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

/// The indices of the k best of a line, by the definition.
std::vector<double> best_of(const std::vector<double>& line, std::int64_t k, bool largest) {
  std::vector<std::int64_t> order(line.size());
  std::iota(order.begin(), order.end(), 0);
  const auto above = [&](double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
    const double a = line[static_cast<std::size_t>(i)], b = line[static_cast<std::size_t>(j)];
    return largest ? above(a, b) : above(b, a);
  });
  return {order.begin(), order.begin() + k};
}

/// Compares every line with the definition.
void check_lines(const Tensor& x, std::int64_t k, int dim, bool largest) {
  const TopK got = top_k(x, k, dim, largest);
  CHECK(got.values.dtype() == x.dtype());
  CHECK(got.indices.dtype() == i64);
  const std::int64_t length = x.size(dim);
  const auto lines = [&](const Tensor& t, std::int64_t n) {
    return t.transpose(dim, -1).contiguous().reshape({-1, n});
  };
  if (k == 0 || x.numel() == 0) return;
  const Tensor all_lines = lines(x, length), values = lines(got.values, k),
               indices = lines(got.indices, k);
  for (std::int64_t r = 0; r < all_lines.size(0); ++r) {
    const std::vector<double> line = all_lines[r].to_vector(), found = values[r].to_vector();
    const std::vector<double> wanted = best_of(line, k, largest);
    CHECK(indices[r].to_vector() == wanted);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double value = line[static_cast<std::size_t>(wanted[i])];
      CHECK((found[i] == value || (std::isnan(found[i]) && std::isnan(value))));
    }
  }
}

struct TopCase {
  Shape shape;
  std::int64_t k;
  int dim;
  std::string name() const {
    return to_string(shape) + " k " + std::to_string(k) + " dim " + std::to_string(dim);
  }
};

std::vector<TopCase> small_cases() {
  return {{{1}, 1, 0},    {{5}, 3, 0},       {{5}, 5, -1},      {{4, 3}, 2, 0},
          {{4, 3}, 2, 1}, {{2, 3, 4}, 2, 0}, {{2, 3, 4}, 3, 1}, {{2, 3, 4}, 1, 2},
          {{7, 1}, 1, 1}, {{1, 9}, 4, 1},    {{3, 33}, 5, -1},  {{33, 3}, 33, 0},
          {{0, 3}, 2, 1}, {{3, 0}, 0, 1},    {{4, 3}, 0, 0},    {{2, 2, 2, 3}, 2, -2},
          {{130}, 100, 0}};
}

/// All different and well apart, so that differences are smooth.
Tensor spread_out(const Shape& shape, DType dtype, Device device) {
  std::vector<double> values;
  const std::int64_t n = numel(shape);
  for (std::int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<double>((i * 7919 + 13) % std::max<std::int64_t>(n, 1)) * 0.125);
  }
  return from(values, shape, f64, device).to(dtype);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "top_k: finds what a sort finds, in every type") {
  for (const TopCase& c : small_cases()) {
    for (const bool largest : {true, false}) {
      CAPTURE(c.name());
      CAPTURE(largest);
      for (const DType dtype : {f64, f32, bf16, f16}) {
        check_lines(normals(c.shape, dtype, device), c.k, c.dim, largest);
      }
      for (const DType dtype : {i64, i32, u8, boolean}) {
        check_lines((normals(c.shape, f64, device) * 3).to(i64).to(dtype), c.k, c.dim, largest);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "top_k: long lines, many ties, every order") {
  const std::int64_t n = sized(20011, 4601);
  const Tensor ramp = arange(0, static_cast<double>(n), 1, f64, device);
  const Tensor few = (normals({n}, f64, device) * 4).to(i64).to(f64);  // some twenty values
  for (const std::int64_t k : {std::int64_t{1}, std::int64_t{7}, std::int64_t{1000},
                               std::int64_t{4096}, std::int64_t{4097}, n}) {
    for (const bool largest : {true, false}) {
      CAPTURE(k);
      for (const Tensor& x : {normals({n}, f64, device), ramp, -ramp, few, zeros({n}, f32, device),
                              few.to(bf16), few.to(i64)}) {
        check_lines(x, k, 0, largest);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "top_k: NaN is the largest, infinities are ordinary, zeros equal") {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Tensor x = from({1.0, nan, -infinity, infinity, 0.0, -0.0, nan, 1.0}, f64, device);
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (std::int64_t k = 1; k <= 8; ++k) {
      check_lines(x.to(dtype), k, 0, true);
      check_lines(x.to(dtype), k, 0, false);
    }
  }
  const std::vector<double> order{1, 6, 3, 0, 7, 4, 5, 2};
  CHECK(top_k(x, 8).indices.to_vector() == order);
}

TEST_CASE_FIXTURE(EachDevice, "top_k: gradients") {
  for (const TopCase& c : small_cases()) {
    for (const bool largest : {true, false}) {
      CAPTURE(c.name());
      const auto f = [&](const Inputs& in) { return top_k(in[0], c.k, c.dim, largest).values; };
      expect_gradients(f, {spread_out(c.shape, f64, device)});
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "top_k: any strides") {
  for (const TopCase& c : small_cases()) {
    CAPTURE(c.name());
    const Tensor x = spread_out(c.shape, f64, device);
    check_layouts([&](const Inputs& in) { return top_k(in[0], c.k, c.dim).values; }, {x});
    for (const Tensor& view : strided_forms(x)) check_lines(view, c.k, c.dim, true);
  }
  const auto f = [](const Inputs& in) {
    return top_k(in[0].slice(1, 0, 6, 2).t(), 2, 0).values.t();
  };
  expect_gradients(f, {spread_out({4, 6}, f64, device)});
}

TEST_CASE_FIXTURE(EachDevice, "top_k: backward without a tape adds to what is there") {
  for (const TopCase& c : small_cases()) {
    CAPTURE(c.name());
    const Tensor x = spread_out(c.shape, f64, device);
    const auto f = [&](const Inputs& in) { return top_k(in[0], c.k, c.dim).values; };
    const auto wanted = outcome(f, {x});
    const Tensor up = normals(wanted[0].shape(), f32, device, 7).to(bf16).to(f64);
    const Tensor d = ones(c.shape, f64, device), fresh = full(c.shape, 77, f64, device);
    top_k_backward(top_k(x, c.k, c.dim).indices, up, Grad::add_to(d), c.dim);
    top_k_backward(top_k(x, c.k, c.dim).indices, up, Grad::write_to(fresh), c.dim);
    CHECK(allclose(d.add_(-1), wanted[1], {1e-12, 1e-12}));
    CHECK(same_bits(fresh, wanted[1]));
  }
}

TEST_CASE_FIXTURE(EachDevice, "top_k: keeps the indices alone, the same bits on all threads") {
  const std::int64_t rows = sized(50, 20);
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = normals({rows, 999}, dtype, device);
    const auto f = [](const Inputs& in) { return top_k(in[0], 20).values; };
    CHECK(saved_bytes(f, {x}) == static_cast<std::size_t>(rows) * 20 * size_of(i64));
    check_threads(f, {x});
    check_threads(
        [](const Inputs& in) {
          return top_k(in[0].reshape({-1, 9990}), 5000).values;
        },
        {x});
  }
}

TEST_CASE_FIXTURE(EachDevice, "top_k: meta gives shapes and knows the peak") {
  const Tensor x = empty({3, 5, 7}, bf16, meta_of(device));
  CHECK(top_k(x, 2, 1).values.shape() == Shape{3, 2, 7});
  CHECK(top_k(x, 2, 1).indices.dtype() == i64);
  const Tensor lines = normals({20, 6000}, f32, device);
  for (const std::int64_t k : {3, 5000}) {
    check_peak_on_meta([&](const Inputs& in) { return top_k(in[0], k).values; }, {lines});
  }
  CHECK(top_k_room(20, 6000, 5000) == Shape{16, 6000, 2});
}

TEST_CASE("top_k: says what does not fit") {
  const Tensor x = ones({2, 3}), d = zeros({2, 3});
  expect_error([&] { top_k(x, 4); }, "top_k", "k is 4", "(2, 3)", "3 entries in dimension 1");
  expect_error([&] { top_k(x, -1); }, "top_k", "k is -1");
  expect_error([&] { top_k(x, 1, 2); }, "top_k", "2");
  CHECK(top_k(ones({}), 1).values.dim() == 0);
  expect_error([] { top_k(ones({}), 2); }, "top_k", "k is 2");
  const Tensor indices = zeros({2, 1}, i64);
  expect_error([&] { top_k_backward(indices, ones({2}), Grad::write_to(d)); }, "top_k_backward",
               "d_values has shape (2,)");
  expect_error(
      [&] {
        top_k_backward(indices, ones({2, 1}), Grad::write_to(d), 0);
      },
      "top_k_backward", "d_x has shape (2, 3)");
}
