// Sums on CUDA devices: packs along reduced and along kept dimensions, rows that begin anywhere,
// and what two f32 keep of f64, beside sums in f64 on the host.
#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "quipu/core/devices.h"
#include "quipu/ops/pointwise/kernels.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

const Device cuda("cuda");

double term(Pointwise f, double a, double b) {
  switch (f) {
    case Pointwise::copy: return a;
    case Pointwise::mul: return a * b;
    case Pointwise::square_difference: return (a - b) * (a - b);
    default: return std::exp(a - b);
  }
}

/// Sums f(a, b) of matrices over `axis`; b may have one row or column.
void check_sums(Pointwise f, const Tensor& a, const Tensor& b, int axis) {
  const std::int64_t rows = a.size(0), columns = a.size(1);
  const auto at = [](const Tensor& t) {
    return [values = t.to_vector(), rows = t.size(0), columns = t.size(1)](std::int64_t r,
                                                                           std::int64_t c) {
      const std::int64_t i = (rows == 1 ? 0 : r) * columns + (columns == 1 ? 0 : c);
      return values[static_cast<std::size_t>(i)];
    };
  };
  const auto of_a = at(a.to(cpu)), of_b = at(b.to(cpu));
  const std::int64_t kept = axis == 0 ? columns : rows, reduced = axis == 0 ? rows : columns;
  const Tensor o = empty({axis == 0 ? 1 : rows, axis == 0 ? columns : 1}, a.dtype(), cuda);
  pointwise_sum_kernel(Target::write_to(o), f, {a, b}, a.shape(), 0.5);
  const std::vector<double> got = o.to_vector();
  // A term is computed in f32 (f64), the sum as if in f64.
  const double of_term = f == Pointwise::copy ? 0 : 8 * epsilon_of(compute_type(a.dtype()));
  for (std::int64_t k = 0; k < kept; ++k) {
    double wanted = 0, size = 0;
    for (std::int64_t r = 0; r < reduced; ++r) {
      const double x =
          axis == 0 ? term(f, of_a(r, k), of_b(r, k)) : term(f, of_a(k, r), of_b(k, r));
      wanted += 0.5 * x;
      size += 0.5 * std::abs(x);
    }
    const double allowed =
        epsilon_of(a.dtype()) / 2 * std::abs(wanted) + size * (of_term + 0x1p-44);
    CHECK_MESSAGE(std::abs(got[static_cast<std::size_t>(k)] - wanted) <= allowed, "sum ", k, ": ",
                  got[static_cast<std::size_t>(k)], " instead of ", wanted);
  }
}

}  // namespace

TEST_CASE("cuda: sums of every function that has packs, along rows and columns") {
  if (!is_available(cuda)) return;
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    Generator generator(5);
    const Tensor a = randn({37, 208}, f32, cuda, generator).to(dtype);
    for (const Pointwise f : {Pointwise::copy, Pointwise::mul, Pointwise::square_difference,
                              Pointwise::exp_difference}) {
      CAPTURE(std::string(traits_of(f).name));
      for (const Shape& shape : {Shape{37, 208}, Shape{1, 208}, Shape{37, 1}}) {
        const Tensor b = randn(shape, f32, cuda, generator).to(dtype);
        for (const int axis : {0, 1}) check_sums(f, a, b, axis);
      }
    }
  }
}

TEST_CASE("cuda: sums of rows that begin and end anywhere") {
  if (!is_available(cuda)) return;
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    Generator generator(7);
    const Tensor wide = randn({9, 333}, f32, cuda, generator).to(dtype);
    for (const auto& range : {std::pair(0, 333), std::pair(1, 333), std::pair(5, 70),
                              std::pair(3, 3 + 128), std::pair(7, 72)}) {
      const int begin = range.first, end = range.second;  // clang 14 captures no binding
      CAPTURE(begin);
      const Tensor a = wide.slice(1, begin, end);
      check_sums(Pointwise::copy, a, a, 1);
      check_sums(Pointwise::mul, a, a, 1);
      check_sums(Pointwise::mul, a, a.contiguous(), 1);  // another distance from a boundary
    }
  }
}

TEST_CASE("cuda: sums over dimensions that do not lie one behind the other") {
  if (!is_available(cuda)) return;
  Generator generator(9);
  const Tensor all = randn({6, 3, 70, 72}, f32, cuda, generator);
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(dtype);
    const Tensor x = all.to(dtype), of_host = x.to(cpu).to(f64);
    const Tensor odd = x.slice(3, 0, 71), odd_of_host = of_host.slice(3, 0, 71);
    const auto check_sum = [&](const Tensor& got, const Tensor& wanted, double size) {
      const std::vector<double> a = got.to_vector(), b = wanted.to_vector();
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double allowed = epsilon_of(dtype) / 2 * std::abs(b[i]) + size * 0x1p-44;
        CHECK_MESSAGE(std::abs(a[i] - b[i]) <= allowed, "sum ", i, ": ", a[i], " not ", b[i]);
      }
    };
    for (const Axes& dims : {Axes{0, 2}, Axes{0, 3}, Axes{1, 3}, Axes{1, 2}}) {
      check_sum(sum(x, dims), sum(of_host, dims), 1e3);
      check_sum(sum(odd, dims), sum(odd_of_host, dims), 1e3);
    }
  }
}

TEST_CASE("cuda: sums keep what single roundings lose, and infinities and overflows are f64's") {
  if (!is_available(cuda)) return;
  const double infinity = std::numeric_limits<double>::infinity(), large = 3e38;
  const auto total_of = [](std::vector<double> some, DType dtype) {
    some.resize(2048, 0.0);
    const Tensor x = from(some, {2048}, dtype, cuda);
    const double by_rows = sum(x).item();
    const Tensor columns = x.unsqueeze(1).expand({2048, 64}).contiguous();
    for (const double v : sum(columns, 0).to_vector()) CHECK((v == by_rows || v != v));
    return by_rows;
  };
  for (const DType dtype : {f32, bf16}) {
    const double big = from({large}, dtype).item();
    CHECK(total_of({big, big, -big}, dtype) == big);
    CHECK(total_of({big, big}, dtype) == infinity);
    CHECK(total_of({1, infinity, 2}, dtype) == infinity);
    CHECK(total_of({-infinity, 5}, dtype) == -infinity);
    CHECK(std::isnan(total_of({infinity, -infinity}, dtype)));
    CHECK(std::isnan(total_of({1, NAN, 2}, dtype)));
    CHECK(total_of({0x1p40, 1, -0x1p40}, dtype) == 1);
    CHECK(total_of({0x1p40, 0x1p-8, 1, -0x1p40}, f32) == 1 + 0x1p-8);
    CHECK(total_of({0x1p-133, 0x1p-133}, dtype) == 0x1p-132);
  }
}
