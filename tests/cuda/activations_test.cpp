// The logistic and normal functions of the CUDA kernels beside f64: every bf16 and f16 number, and
// many f32 of each binade. Bounds follow from what the approximate instructions may be off by.
#include <quipu/quipu.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "quipu/core/devices.h"
#include "quipu/ops/pointwise/kernels.h"
#include "support/accuracy.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

double logistic(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}
double density(double x) {
  return std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}
double cdf(double x) {
  return std::erfc(-x / std::numbers::sqrt2) / 2;
}

/// A function of x as the sum of two terms; the error is relative to their magnitudes. Gradients
/// are those of an upstream of 1.
struct Function {
  Pointwise function;
  bool is_gradient, is_normal;
  double (*first)(double x);
  double (*second)(double x);
};
double none(double) {
  return 0;
}
const Function functions[] = {
    {Pointwise::sigmoid, false, false, logistic, none},
    {Pointwise::silu, false, false, [](double x) { return x * logistic(x); }, none},
    {Pointwise::sigmoid_grad, true, false, [](double x) { return logistic(x) * logistic(-x); },
     none},
    {Pointwise::silu_grad, true, false, logistic,
     [](double x) { return logistic(x) * (x * logistic(-x)); }},
    {Pointwise::normal_cdf, false, true, cdf, none},
    {Pointwise::gelu, false, true, [](double x) { return x * cdf(x); }, none},
    {Pointwise::normal_cdf_grad, true, true, density, none},
    {Pointwise::gelu_grad, true, true, cdf, [](double x) { return x * density(x); }},
};

/// Relative error of the terms before the result is rounded, from u = 2^-24, half a unit of f32.
/// The exponential of -w has that of its argument, w times the roundings behind it (of a constant
/// and a product, two more where x is squared), and twice (it is a square) the two units of
/// ex2.approx; the reciprocal's and five products' are in the 24. f32 has the logistic exponential
/// without that of the argument. The polynomial of Phi is good to 2^-17.7.
double allowed_relative(const Function& f, DType dtype, double x) {
  const double w = f.is_normal ? x * x / 2 : std::abs(x);
  const double of_argument = f.is_normal ? 4 * w : dtype == f32 ? 0 : 2 * w;
  const double of_fit = f.is_normal && dtype != f32 ? std::exp2(-17.6) : 0;
  return (of_argument + 24) * 0x1p-24 + of_fit;
}

std::vector<double> numbers_of(DType dtype) {
  std::vector<double> numbers;
  if (dtype == f32) {
    for (std::uint32_t i = 0; i < 512 * 160; ++i) {  // 160 of each sign and exponent
      const std::uint32_t mantissa = i % 160 * 0x01e3779u & 0x7fffffu;
      numbers.push_back(static_cast<double>(std::bit_cast<float>(i / 160 << 23 | mantissa)));
    }
    return numbers;
  }
  for (int i = 0; i < 0x10000; ++i) {
    if (dtype == bf16) {
      numbers.push_back(static_cast<double>(std::bit_cast<float>(i << 16)));
      continue;
    }
    const int exponent = i >> 10 & 31, fraction = i & 1023;
    const double size = exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                        : exponent > 0 ? std::ldexp(1024 + fraction, exponent - 25)
                                       : std::ldexp(fraction, -24);
    numbers.push_back(i < 0x8000 ? size : -size);
  }
  return numbers;
}

}  // namespace

TEST_CASE("cuda: logistic and normal functions of every number beside f64") {
  const Device cuda("cuda");
  if (!is_available(cuda)) return;
  for (const DType dtype : {bf16, f16, f32}) {
    CAPTURE(dtype);
    const std::vector<double> x = numbers_of(dtype);
    const auto n = static_cast<std::int64_t>(x.size());
    const Tensor in = from(x, {n}, dtype, cuda), up = ones({n}, dtype, cuda);
    for (const Function& f : functions) {
      CAPTURE(std::string(traits_of(f.function).name));
      const Tensor out = empty({n}, dtype, cuda);
      const Operands operands = f.is_gradient ? Operands{up, in} : Operands{in};
      pointwise_kernel(Target::write_to(out), f.function, operands);
      const std::vector<double> got = out.to_vector();
      int wrong = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double first = f.first(x[i]), second = f.second(x[i]), wanted = first + second;
        const double terms = std::abs(first) + std::abs(second);
        const double allowed =
            unit_in_last_place(wanted, dtype) / 2 + terms * allowed_relative(f, dtype, x[i]) +
            (1 + std::min(std::abs(x[i]), 200.0)) * 0x1p-149;  // a factor of x may be subnormal
        const bool right = got[i] == wanted || (std::isnan(got[i]) && std::isnan(wanted)) ||
                           std::abs(got[i] - wanted) <= allowed;
        if (right || ++wrong > 3) continue;
        CHECK_MESSAGE(right, "of ", x[i], ": ", got[i], " instead of ", wanted, ", ",
                      std::abs(got[i] - wanted) / allowed, " times what is allowed");
      }
      CHECK(wrong == 0);
    }
  }
}
