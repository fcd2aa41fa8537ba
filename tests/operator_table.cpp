// The table itself: every operator with a gradient, at sizes 0, 1, primes and more than a vector.
#include <initializer_list>

#include "operator_cases.h"
#include "quipu/ops/arithmetic.h"
#include "quipu/ops/compare.h"
#include "quipu/ops/dropout.h"
#include "quipu/ops/gather.h"
#include "quipu/ops/join.h"
#include "quipu/ops/matmul.h"
#include "quipu/ops/reduce.h"
#include "quipu/ops/unary.h"

namespace quipu::testing {
namespace {

using In = const std::vector<Tensor>&;
using Function = OperatorCase::Function;

constexpr Domain any_value{};
constexpr Domain positive{0.5, 2};
constexpr Domain small{-0.5, 0.5};
constexpr Domain off_grid{-2, 2, Domain::Kind::grid, 0.1, 0};
// Two inputs that never meet: a quarter of a unit to either side of the grid points.
constexpr Domain below_grid{-2, 2, Domain::Kind::grid, 0.1, -0.025};
constexpr Domain above_grid{-2, 2, Domain::Kind::grid, 0.1, 0.025};
constexpr Domain all_different{-2, 2, Domain::Kind::distinct};

class Table {
 public:
  std::vector<OperatorCase> cases;

  void group(const char* name) { group_ = name; }
  void add(const std::string& op, std::vector<CaseInput> inputs, Function f,
           std::int64_t terms = 1) {
    cases.push_back({op, group_, std::move(inputs), std::move(f), terms});
  }
  /// One tensor, at every size that loops treat differently.
  void unary(const std::string& op, const Domain& domain,
             const std::function<Tensor(const Tensor&)>& f) {
    for (const Shape& shape :
         {Shape{}, Shape{1}, Shape{5, 7}, Shape{129}, Shape{3, 0, 2}, Shape{2, 3, 67}}) {
      add(op, {{shape, domain}}, [f](In in) { return f(in[0]); });
    }
  }
  /// Two tensors, broadcast in every way.
  void binary(const std::string& op, const Domain& a, const Domain& b,
              const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
    const std::pair<Shape, Shape> shapes[] = {
        {{}, {}},       {{5, 7}, {5, 7}},       {{5, 7}, {7}},
        {{3}, {5, 3}},  {{5, 1}, {1, 7}},       {{3}, {}},
        {{131}, {131}}, {{2, 1, 3}, {4, 1}},    {{67, 3}, {3}},
        {{0}, {1}},     {{3, 0}, {3, 1}},       {{2, 3, 67}, {67}},
        {{1}, {129}},   {{2, 3, 5}, {2, 1, 5}},
    };
    for (const auto& [first, second] : shapes) {
      add(
          op, {{first, a}, {second, b}}, [f](In in) { return f(in[0], in[1]); }, 201);
    }
  }
  /// A reduction over every choice of dimensions; `axes` in the name.
  void reduction(const std::string& op, const Domain& domain, bool of_nothing,
                 const std::function<Tensor(const Tensor&, const Axes&, bool keepdim)>& f) {
    const std::pair<Shape, Axes> choices[] = {
        {{1}, {}},      {{7}, {0}},          {{5, 7}, {}},   {{5, 7}, {0}},
        {{5, 7}, {-1}}, {{3, 4, 5}, {0, 2}}, {{3, 4, 5}, 1}, {{2, 3, 4, 5}, {1, 2}},
        {{131}, {}},    {{3, 67}, {1}},      {{67, 3}, {0}}, {{0, 3}, {1}},
    };
    for (const auto& [shape, axes] : choices) add_reduction(op, shape, axes, domain, f);
    if (of_nothing) add_reduction(op, {3, 0}, {1}, domain, f);
  }

 private:
  void add_reduction(const std::string& op, const Shape& shape, const Axes& axes,
                     const Domain& domain,
                     const std::function<Tensor(const Tensor&, const Axes&, bool)>& f) {
    for (const bool keepdim : {false, true}) {
      add(
          op + " over " + to_string(axes.dims()) + (keepdim ? " keepdim" : ""), {{shape, domain}},
          [f, axes = axes, keepdim](In in) { return f(in[0], axes, keepdim); }, numel(shape));
    }
  }
  std::string group_;
};

Tensor indices(std::initializer_list<std::int64_t> values, const Shape& shape, const Tensor& like,
               DType dtype = i64) {
  return from(values, shape, dtype, like.device());
}

/// True at two of every five entries.
Tensor pattern(const Shape& shape, const Tensor& like) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 5 < 2;
  return from(values, shape, boolean, like.device());
}

void add_unary(Table& t) {
  t.group("pointwise");
  t.unary("neg", any_value, [](const Tensor& x) { return -x; });
  t.unary("exp", any_value, [](const Tensor& x) { return exp(x); });
  t.unary("log", positive, [](const Tensor& x) { return log(x); });
  t.unary("sqrt", positive, [](const Tensor& x) { return sqrt(x); });
  t.unary("rsqrt", positive, [](const Tensor& x) { return rsqrt(x); });
  t.unary("tanh", any_value, [](const Tensor& x) { return tanh(x); });
  t.unary("sin", any_value, [](const Tensor& x) { return sin(x); });
  t.unary("cos", any_value, [](const Tensor& x) { return cos(x); });
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
  t.unary("abs", off_grid, [](const Tensor& x) { return abs(x); });
  t.unary("maximum(x, 0.3)", off_grid, [](const Tensor& x) { return maximum(x, 0.3); });
  t.unary("minimum(0.3, x)", off_grid, [](const Tensor& x) { return minimum(0.3, x); });
  t.unary("clamp", off_grid, [](const Tensor& x) { return clamp(x, -0.5, 0.8); });
  t.unary("clamp from below", off_grid, [](const Tensor& x) { return clamp(x, 0.5); });
  t.unary("clamp from above", off_grid, [](const Tensor& x) { return clamp(x, {}, 0.5); });
}

void add_binary(Table& t) {
  t.group("pointwise");
  using A = const Tensor&;
  t.binary("add", any_value, any_value, [](A a, A b) { return a + b; });
  t.binary("sub", any_value, any_value, [](A a, A b) { return a - b; });
  t.binary("mul", any_value, any_value, [](A a, A b) { return a * b; });
  t.binary("div", any_value, positive, [](A a, A b) { return a / b; });
  t.binary("pow", positive, any_value, [](A a, A b) { return pow(a, b); });
  t.binary("where", any_value, any_value, [](A a, A b) {
    return where(pattern(broadcast_shapes(a.shape(), b.shape()), a), a, b);
  });
  t.group("kinks");
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

void add_reductions(Table& t) {
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
      "var of equal rows", {{{1, 7}, {}}},
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

void add_matmul(Table& t) {
  t.group("matmul");
  const std::pair<Shape, Shape> shapes[] = {
      {{1, 1}, {1, 1}},
      {{3, 5}, {5, 4}},
      {{5}, {5, 3}},
      {{3, 5}, {5}},
      {{5}, {5}},
      {{2, 3, 4}, {2, 4, 5}},
      {{2, 3, 4}, {4, 5}},
      {{3, 4}, {2, 4, 5}},
      {{2, 1, 3, 4}, {3, 4, 2}},
      {{4}, {2, 4, 3}},
      {{2, 3, 4}, {4}},
      {{3, 0}, {0, 4}},
      {{0, 3}, {3, 4}},
      {{2, 3}, {3, 0}},
      {{0, 2, 3}, {3, 4}},
      {{17, 67}, {67, 13}},
      {{2, 67, 5}, {5, 67}},
      {{1, 129}, {129, 1}},
  };
  for (const auto& [a, b] : shapes) {
    t.add(
        "matmul", {{a, {}}, {b, {}}}, [](In in) { return matmul(in[0], in[1]); }, 134);
  }
  t.add(
      "matmul(a.t(), b)", {{{5, 3}, {}}, {{5, 4}, {}}},
      [](In in) { return matmul(in[0].t(), in[1]); }, 5);
  t.add(
      "matmul(a, b.t())", {{{3, 5}, {}}, {{4, 5}, {}}},
      [](In in) { return matmul(in[0], in[1].t()); }, 5);
  t.add(
      "matmul(x, x.t())", {{{3, 5}, {}}}, [](In in) { return matmul(in[0], in[0].t()); }, 5);
  t.add(
      "affine and tanh", {{{3, 5}, {}}, {{5, 4}, {}}, {{4}, {}}},
      [](In in) { return tanh(matmul(in[0], in[1]) + in[2]); }, 12);
}

void add_joins(Table& t) {
  t.group("join");
  for (const int dim : {0, 1, -1}) {
    const auto sized = [&](std::int64_t n) {
      Shape shape{3, 4, 5};
      shape[dim < 0 ? dim + 3 : dim] = n;
      return CaseInput{shape, {}};
    };
    t.add("cat along " + std::to_string(dim), {sized(2), sized(0), sized(3)}, [dim](In in) {
      return cat({in[0], in[1], in[2]}, dim);
    });
  }
  t.add("cat of one tensor twice", {{{67}, {}}}, [](In in) { return cat({in[0], in[0]}); });
  for (const int dim : {0, 1, 2, -1}) {
    t.add("stack along " + std::to_string(dim), {{{3, 5}, {}}, {{3, 5}, {}}}, [dim](In in) {
      return stack({in[0], in[1]}, dim);
    });
  }
  t.add("stack of scalars", {{{}, {}}, {{}, {}}}, [](In in) { return stack({in[0], in[1]}); });
  t.add("split", {{{5, 7}, {}}}, [](In in) {
    const auto parts = split(in[0], 3, 1);
    return cat({parts[2], parts[0] * parts[1], parts[1]}, 1);
  });
  t.add(
      "split by sizes", {{{6, 3}, {}}},
      [](In in) {
        const auto parts = split(in[0], {1, 0, 3, 2}, 0);
        return parts[0] * parts[2] + sum(parts[3], 0);
      },
      6);
  t.add("split, one part unused", {{{131}, {}}}, [](In in) { return exp(split(in[0], 67)[1]); });
}

void add_indexing(Table& t) {
  t.group("index");
  t.add(
      "gather along 1", {{{3, 5}, {}}},
      [](In in) {
        return gather(in[0], 1, indices({4, 0, 0, 2, 2, 2}, {3, 2}, in[0]));
      },
      3);
  t.add(
      "gather along 0, smaller index", {{{5, 3}, {}}},
      [](In in) {
        return gather(in[0], 0, indices({4, 0, 0, 2}, {2, 2}, in[0], i32));
      },
      3);
  t.add("gather of nothing", {{{5, 3}, {}}}, [](In in) {
    return gather(in[0], 0, indices({}, {0, 3}, in[0]));
  });
  for (const int dim : {0, 1, 2}) {
    t.add(
        "index_select along " + std::to_string(dim), {{{3, 4, 5}, {}}},
        [dim](In in) {
          return index_select(in[0], dim, indices({2, 0, 2, 2, 1}, {5}, in[0]));
        },
        5);
  }
  t.add(
      "embedding", {{{11, 67}, {}}},
      [](In in) {
        return index_select(in[0], 0, indices({7, 7, 0, 10}, {4}, in[0], i32));
      },
      2);
  t.add("index_select of nothing", {{{4, 3}, {}}},
        [](In in) { return index_select(in[0], 0, indices({}, {0}, in[0])); });
  t.add(
      "scatter_add along 0", {{{3, 4}, {}}, {{5, 4}, {}}},
      [](In in) {
        return scatter_add(
            in[0], 0,
            indices({2, 0, 1, 2, 2, 0, 1, 0, 2, 0, 0, 2, 1, 1, 0, 2, 2, 0, 1, 2}, {5, 4}, in[0]),
            in[1]);
      },
      6);
  t.add(
      "scatter_add along 1", {{{3, 4}, {}}, {{2, 3}, {}}},
      [](In in) {
        return scatter_add(in[0], 1, indices({3, 0, 3, 1, 1, 1}, {2, 3}, in[0]), in[1]);
      },
      4);
  for (const double p : {0.0, 0.3}) {
    for (const Shape& shape : {Shape{}, Shape{5, 7}, Shape{131}, Shape{0}}) {
      t.add("dropout " + std::to_string(p).substr(0, 3), {{shape, {}}}, [p](In in) {
        Generator generator(7);
        return dropout(in[0], p, generator);
      });
    }
  }
}

void add_views(Table& t) {
  t.group("views");
  const auto view = [&](const std::string& op, const Shape& shape,
                        const std::function<Tensor(const Tensor&)>& f) {
    t.add(
        op, {{shape, {}}}, [f](In in) { return f(in[0]); }, 20);
    // As an inner part of a graph that uses the tensor elsewhere, too.
    t.add(
        op + " beside another use", {{shape, {}}},
        [f](In in) {
          const Tensor y = exp(in[0]);
          return sum(y) * f(y);
        },
        20);
  };
  view("reshape", {3, 4, 5}, [](const Tensor& x) { return x.reshape({6, 10}); });
  view("reshape with -1", {3, 4}, [](const Tensor& x) { return x.reshape({2, -1}); });
  view("reshape to nothing", {3, 0}, [](const Tensor& x) { return x.reshape({0, 5}); });
  view("flatten", {5, 7}, [](const Tensor& x) { return x.flatten(); });
  view("view", {3, 4}, [](const Tensor& x) { return x.contiguous().view({4, 3}); });
  view("transpose", {3, 4, 5}, [](const Tensor& x) { return x.transpose(0, 2); });
  view("t", {5, 7}, [](const Tensor& x) { return x.t(); });
  view("permute", {2, 3, 4}, [](const Tensor& x) { return x.permute({2, 0, 1}); });
  view("slice", {5, 7}, [](const Tensor& x) { return x.slice(1, 1, 6, 2); });
  view("slice to nothing", {5, 7}, [](const Tensor& x) { return x.slice(0, 2, 2); });
  view("select", {5, 7}, [](const Tensor& x) { return x.select(1, -2); });
  view("two rows of one", {5, 7}, [](const Tensor& x) { return x[1] * x[3] + x[1]; });
  view("unsqueeze", {5, 7}, [](const Tensor& x) { return x.unsqueeze(1); });
  view("squeeze", {1, 5, 1}, [](const Tensor& x) { return x.squeeze(); });
  view("squeeze one", {1, 5, 1}, [](const Tensor& x) { return x.squeeze(-1); });
  view("expand", {5, 1}, [](const Tensor& x) { return x.expand({3, 5, 4}); });
  view("expand to nothing", {1, 3}, [](const Tensor& x) { return x.expand({0, 3}); });
  view("index", {3, 4, 5}, [](const Tensor& x) { return x(1, new_axis, slice(1, {}, 2), all); });
  view("index from the end", {3, 4, 5}, [](const Tensor& x) { return x(rest, -1); });
  view("contiguous", {5, 7}, [](const Tensor& x) { return x.t().contiguous(); });
  view("clone", {5, 7}, [](const Tensor& x) { return x.clone(); });
  view("nothing", {5, 7}, [](const Tensor& x) { return x; });
  view("chain of views", {4, 6}, [](const Tensor& x) {
    return x.t().slice(0, 1, 5).reshape({2, 8})(all, slice(1));
  });
}

}  // namespace

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> cases = [] {
    Table table;
    add_unary(table);
    add_binary(table);
    add_reductions(table);
    add_matmul(table);
    add_joins(table);
    add_indexing(table);
    add_views(table);
    return table.cases;
  }();
  return cases;
}

}  // namespace quipu::testing
