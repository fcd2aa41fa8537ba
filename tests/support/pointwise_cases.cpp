// The table of operators: pointwise ones and reductions, at sizes 0, 1, primes and more than a
// vector.
#include "operator_table.h"
#include "quipu/ops/act.h"
#include "quipu/ops/pointwise/activations.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/gelu.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/scan.h"

namespace quipu::testing {
namespace {

/// True at two of every five entries.
Tensor pattern(const Shape& shape, const Tensor& like) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 5 < 2;
  return from(values, shape, boolean, like.device());
}

}  // namespace

void add_unary_cases(Table& t) {
  t.group("pointwise");
  t.unary("neg", any_value, [](const Tensor& x) { return -x; });
  t.unary("exp", any_value, [](const Tensor& x) { return exp(x); });
  t.unary("log", positive, [](const Tensor& x) { return log(x); });
  t.unary("sqrt", positive, [](const Tensor& x) { return sqrt(x); });
  t.unary("rsqrt", positive, [](const Tensor& x) { return rsqrt(x); });
  t.unary("tanh", any_value, [](const Tensor& x) { return tanh(x); });
  t.unary("sin", any_value, [](const Tensor& x) { return sin(x); });
  t.unary("cos", any_value, [](const Tensor& x) { return cos(x); });
  const Domain inside{-0.8, 0.8}, above_one{1.3, 3};
  t.unary("reciprocal", positive, [](const Tensor& x) { return reciprocal(x); });
  t.unary("square", any_value, [](const Tensor& x) { return square(x); });
  t.unary("log1p", positive, [](const Tensor& x) { return log1p(x); });
  t.unary("expm1", any_value, [](const Tensor& x) { return expm1(x); });
  t.unary("tan", inside, [](const Tensor& x) { return tan(x); });
  t.unary("asin", inside, [](const Tensor& x) { return asin(x); });
  t.unary("acos", inside, [](const Tensor& x) { return acos(x); });
  t.unary("atan", any_value, [](const Tensor& x) { return atan(x); });
  t.unary("sinh", any_value, [](const Tensor& x) { return sinh(x); });
  t.unary("cosh", any_value, [](const Tensor& x) { return cosh(x); });
  t.unary("asinh", any_value, [](const Tensor& x) { return asinh(x); });
  t.unary("acosh", above_one, [](const Tensor& x) { return acosh(x); });
  t.unary("atanh", inside, [](const Tensor& x) { return atanh(x); });
  t.unary("erf", any_value, [](const Tensor& x) { return erf(x); });
  t.unary("sigmoid", any_value, [](const Tensor& x) { return sigmoid(x); });
  t.unary("silu", any_value, [](const Tensor& x) { return silu(x); });
  t.unary("softplus", any_value, [](const Tensor& x) { return softplus(x); });
  t.unary("mish", any_value, [](const Tensor& x) { return mish(x); });
  t.unary("gelu_tanh", any_value, [](const Tensor& x) { return gelu_tanh(x); });
  t.unary("x + 2", any_value, [](const Tensor& x) { return x + 2; });
  t.unary("2 - x", any_value, [](const Tensor& x) { return 2 - x; });
  t.unary("x * 1.5", any_value, [](const Tensor& x) { return x * 1.5; });
  t.unary("x / 3", any_value, [](const Tensor& x) { return x / 3; });
  t.unary("3 / x", positive, [](const Tensor& x) { return 3 / x; });
  t.unary("pow(x, 3)", any_value, [](const Tensor& x) { return pow(x, 3); });
  t.unary("pow(x, 2.5)", positive, [](const Tensor& x) { return pow(x, 2.5); });
  t.unary("pow(x, 0)", any_value, [](const Tensor& x) { return pow(x, 0); });
  t.unary("pow(1.5, x)", any_value, [](const Tensor& x) { return pow(1.5, x); });
  t.group("kinks");
  const Domain wide_grid{-5, 5, Domain::Kind::grid, 0.25, 0};
  t.unary("relu", off_grid, [](const Tensor& x) { return relu(x); });
  t.unary("elu", off_grid, [](const Tensor& x) { return elu(x, 0.7); });
  t.unary("leaky_relu", off_grid, [](const Tensor& x) { return leaky_relu(x, 0.2); });
  t.unary("hardswish", wide_grid, [](const Tensor& x) { return hardswish(x); });
  t.unary("sign", off_grid, [](const Tensor& x) { return sign(x); });
  t.unary("floor", off_grid, [](const Tensor& x) { return floor(x); });
  t.unary("ceil", off_grid, [](const Tensor& x) { return ceil(x); });
  t.unary("round", off_grid, [](const Tensor& x) { return round(x); });
  t.unary("trunc", off_grid, [](const Tensor& x) { return trunc(x); });
  t.unary("remainder(x, 0.7)", off_grid, [](const Tensor& x) { return remainder(x, 0.7); });
  t.unary("abs", off_grid, [](const Tensor& x) { return abs(x); });
  t.unary("maximum(x, 0.3)", off_grid, [](const Tensor& x) { return maximum(x, 0.3); });
  t.unary("minimum(0.3, x)", off_grid, [](const Tensor& x) { return minimum(0.3, x); });
  t.unary("clamp", off_grid, [](const Tensor& x) { return clamp(x, -0.5, 0.8); });
  t.unary("clamp from below", off_grid, [](const Tensor& x) { return clamp(x, 0.5); });
  t.unary("clamp from above", off_grid, [](const Tensor& x) { return clamp(x, {}, 0.5); });
}

void add_binary_cases(Table& t) {
  t.group("pointwise");
  using A = const Tensor&;
  t.binary("add", any_value, any_value, [](A a, A b) { return a + b; });
  t.binary("sub", any_value, any_value, [](A a, A b) { return a - b; });
  t.binary("mul", any_value, any_value, [](A a, A b) { return a * b; });
  t.binary("div", any_value, positive, [](A a, A b) { return a / b; });
  t.binary("pow", positive, any_value, [](A a, A b) { return pow(a, b); });
  t.binary("atan2", positive, any_value, [](A a, A b) { return atan2(a, b); });
  t.binary("where", any_value, any_value, [](A a, A b) {
    return where(pattern(broadcast_shapes(a.shape(), b.shape()), a), a, b);
  });
  t.group("kinks");
  t.binary("remainder", off_grid, Domain{3, 4}, [](A a, A b) { return remainder(a, b); });
  t.binary("maximum", below_grid, above_grid, [](A a, A b) { return maximum(a, b); });
  t.binary("minimum", below_grid, above_grid, [](A a, A b) { return minimum(a, b); });

  t.group("pointwise");
  const Shape wide{5, 7};
  t.add("where, broadcast condition", {{wide, {}}, {{7}, {}}}, [](In in) {
    return where(pattern({5, 1}, in[0]), in[0], in[1]);
  });
  t.add("where with a number", {{wide, {}}},
        [](In in) { return where(pattern({7}, in[0]), in[0], 1.5); });
  t.add("where after a number", {{wide, {}}}, [](In in) {
    return where(pattern({5, 7}, in[0]), 1.5, in[0]);
  });
  t.add("masked_fill", {{wide, {}}}, [](In in) {
    return masked_fill(in[0], pattern({5, 7}, in[0]), -3.0);
  });
  t.add("masked_fill, broadcast", {{wide, {}}},
        [](In in) { return masked_fill(in[0], pattern({7}, in[0]), -3.0); });
  t.add("x * x", {{wide, {}}}, [](In in) { return in[0] * in[0]; });
  t.add("x + x.t()", {{{5, 5}, {}}}, [](In in) { return in[0] + in[0].t(); });
  t.add(
      "x * row + row", {{wide, {}}, {{7}, {}}}, [](In in) { return in[0] * in[1] + in[1]; }, 35);
  t.add("ignores an input", {{wide, {}}, {{3}, {}}}, [](In in) { return exp(in[0]); });
}

void add_reduce_cases(Table& t) {
  t.group("reduce");
  using A = const Tensor&;
  t.reduction("sum", any_value, true,
              [](A x, const Axes& axes, bool keep) { return sum(x, axes, keep); });
  t.reduction("mean", any_value, false,
              [](A x, const Axes& axes, bool keep) { return mean(x, axes, keep); });
  t.reduction("var", all_different, false,
              [](A x, const Axes& axes, bool keep) { return var(x, axes, false, keep); });
  t.reduction("logsumexp", any_value, false,
              [](A x, const Axes& axes, bool keep) { return logsumexp(x, axes, keep); });
  for (const Shape& shape : {Shape{5, 7}, Shape{3, 67}}) {
    t.add(
        "unbiased var", {{shape, {}}}, [](In in) { return var(in[0], -1); }, shape.back());
    t.add(
        "unbiased var of all", {{shape, {}}}, [](In in) { return var(in[0]); }, numel(shape));
  }
  t.add(
      "var of equal rows", {{{1, 7}, all_different}},
      [](In in) {
        return var(in[0].expand({5, 7}), -1);
      },
      7);
  const std::pair<Shape, int> axes[] = {{{1}, 0},   {{5, 7}, 0},   {{5, 7}, 1},  {{3, 4, 5}, 1},
                                        {{131}, 0}, {{3, 67}, -1}, {{67, 3}, 0}, {{3, 0}, 0}};
  for (const auto& [shape, dim] : axes) {
    const std::string at = " along " + std::to_string(dim);
    t.add(
        "cumsum" + at, {{shape, {}}}, [dim = dim](In in) { return cumsum(in[0], dim); },
        numel(shape));
  }
  for (const auto& [shape, dim] : axes) {
    const std::string at = " along " + std::to_string(dim);
    t.add(
        "softmax" + at, {{shape, {}}}, [dim = dim](In in) { return softmax(in[0], dim); },
        numel(shape));
    t.add(
        "log_softmax" + at, {{shape, {}}}, [dim = dim](In in) { return log_softmax(in[0], dim); },
        numel(shape));
  }
  t.add("cumsum along an empty dimension", {{{3, 0}, {}}}, [](In in) { return cumsum(in[0], 1); });

  t.group("kinks");
  for (const auto& [shape, dim] : axes) {
    const std::string at = " along " + std::to_string(dim);
    t.add("max" + at, {{shape, all_different}}, [dim = dim](In in) { return max(in[0], dim); });
    t.add("min" + at, {{shape, all_different}},
          [dim = dim](In in) { return min(in[0], dim, true); });
  }
  t.add("max of all", {{{5, 7}, all_different}}, [](In in) { return max(in[0]); });
  t.add("min of all", {{{3, 67}, all_different}}, [](In in) { return min(in[0]); });
  t.add("max with index", {{{5, 7}, all_different}},
        [](In in) { return max_with_index(in[0], 0).values; });
}

}  // namespace quipu::testing
