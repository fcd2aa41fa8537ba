// The table of operators: those that move entries about, and matrix products.
#include <initializer_list>

#include "operator_table.h"
#include "quipu/ops/dropout.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/join.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/scan.h"

namespace quipu::testing {
namespace {

Tensor indices(std::initializer_list<std::int64_t> values, const Shape& shape, const Tensor& like,
               DType dtype = i64) {
  return from(values, shape, dtype, like.device());
}

}  // namespace

void add_matmul_cases(Table& t) {
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
      "affine and tanh", {{{3, 5}, small}, {{5, 4}, small}, {{4}, small}},
      [](In in) { return tanh(matmul(in[0], in[1]) + in[2]); }, 12);
}

void add_join_cases(Table& t) {
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

void add_index_cases(Table& t) {
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

void add_view_cases(Table& t) {
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

void add_large_cases(Table& t) {
  t.group("large");
  const auto one = [&](const std::string& op, const Shape& shape,
                       const std::function<Tensor(const Tensor&)>& f) {
    t.add(
        op, {{shape, {}}}, [f](In in) { return f(in[0]); }, numel(shape));
  };
  one("tanh", {40009}, [](const Tensor& x) { return tanh(x); });
  one("sum", {40009}, [](const Tensor& x) { return sum(x * x); });
  one("sum over 0", {517, 131}, [](const Tensor& x) { return sum(x * x, 0); });
  one("mean over 1", {517, 131}, [](const Tensor& x) { return mean(x * x, 1); });
  one("logsumexp over 0", {261, 131}, [](const Tensor& x) { return logsumexp(x, 0); });
  one("logsumexp over 1", {261, 131}, [](const Tensor& x) { return logsumexp(x, 1); });
  one("cumsum along 0", {257, 131}, [](const Tensor& x) { return cumsum(x, 0); });
  one("cumsum along 1", {257, 131}, [](const Tensor& x) { return cumsum(x, 1); });
  one("contiguous", {301, 203}, [](const Tensor& x) { return x.t().contiguous(); });
  one("dropout", {40009}, [](const Tensor& x) {
    Generator generator(7);
    return dropout(x, 0.5, generator);
  });
  one("embedding", {211, 67}, [](const Tensor& x) {
    std::vector<std::int64_t> rows(601);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i * i % 211);
    return index_select(x, 0, from(rows, {601}, i64, x.device()));
  });
  t.add(
      "mul", {{{1021, 33}, {}}, {{33}, {}}}, [](In in) { return in[0] * in[1]; }, 1021);
  t.add(
      "mul", {{{33, 1021}, {}}, {{33, 1}, {}}}, [](In in) { return in[0] * in[1]; }, 1021);
  t.add(
      "matmul", {{{130, 150}, {}}, {{150, 140}, {}}}, [](In in) { return matmul(in[0], in[1]); },
      150);
  t.add(
      "matmul", {{{3, 67, 70}, {}}, {{70, 65}, {}}}, [](In in) { return matmul(in[0], in[1]); },
      201);
}

}  // namespace quipu::testing
