#include "operator_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "operator_table.h"
#include "quipu/core/random/random.h"

namespace quipu::testing {
using namespace detail;
namespace {

double uniform(std::uint64_t seed, std::size_t i) {
  return philox(seed, i)[0] * 0x1p-32;
}

std::vector<double> draw(const Domain& domain, std::size_t count, std::uint64_t seed) {
  std::vector<double> values(count);
  const double width = domain.high - domain.low;
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (domain.kind == Domain::Kind::distinct) {
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return uniform(seed, a) < uniform(seed, b); });
  }
  for (std::size_t i = 0; i < count; ++i) {
    switch (domain.kind) {
      case Domain::Kind::uniform: values[i] = domain.low + width * uniform(seed, i); break;
      case Domain::Kind::grid: {
        const double cells = std::floor(width / domain.unit * uniform(seed, i));
        values[i] = domain.low + domain.unit * (cells + 0.5) + domain.shift;
        break;
      }
      case Domain::Kind::distinct:
        values[i] =
            domain.low + width * (static_cast<double>(order[i]) + 0.5) / static_cast<double>(count);
        break;
    }
  }
  return values;
}

Dims reversed_order(int dims) {
  Dims order = Dims::filled(dims, 0);
  for (int d = 0; d < dims; ++d) order[d] = dims - 1 - d;
  return order;
}

Tensor transposed(const Tensor& x) {
  return x.permute(reversed_order(x.dim()));
}

/// Uninitialised, with the shape and in the layout of a leaf.
Tensor allocate(const Shape& shape, Layout layout, DType dtype, Device device) {
  Shape whole = shape;
  switch (layout) {
    case Layout::transposed:
      for (int d = 0; d < shape.size(); ++d) whole[d] = shape[shape.size() - 1 - d];
      return transposed(empty(whole, dtype, device));
    case Layout::sliced: {
      for (int d = 0; d < shape.size(); ++d) whole[d] = 2 * shape[d] + 1;
      Tensor part = full(whole, std::numeric_limits<double>::quiet_NaN(), dtype, device);
      for (int d = 0; d < shape.size(); ++d) part = part.slice(d, 1, {}, 2);
      return part;
    }
    default: return empty(shape, dtype, device);
  }
}

int first_wide_dim(const Shape& shape) {
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) return d;
  }
  return -1;
}

Layout layout_of_input(Layout layout, std::size_t input) {
  constexpr Layout by_turns[] = {Layout::sliced, Layout::contiguous, Layout::transposed};
  return layout == Layout::mixed ? by_turns[input % 3] : layout;
}

}  // namespace

const char* name_of(Layout layout) {
  constexpr const char* names[] = {"contiguous", "transposed", "sliced",
                                   "mixed",      "expanded",   "strided upstream"};
  return names[static_cast<int>(layout)];
}

std::string OperatorCase::name() const {
  std::string text = op;
  for (const CaseInput& input : inputs) text += " " + to_string(input.shape);
  return text;
}

bool OperatorCase::has(Layout layout) const {
  const auto any = [&](auto&& test) { return std::any_of(inputs.begin(), inputs.end(), test); };
  switch (layout) {
    case Layout::contiguous:
    case Layout::upstream: return true;
    case Layout::transposed: return any([](const CaseInput& i) { return i.shape.size() > 1; });
    case Layout::sliced: return any([](const CaseInput& i) { return i.shape.size() > 0; });
    case Layout::mixed: return inputs.size() > 1;
    case Layout::expanded:
      // Repeated entries are equal, and the largest of equal ones is a kink.
      return any([](const CaseInput& i) { return first_wide_dim(i.shape) >= 0; }) &&
             !any([](const CaseInput& i) { return i.domain.kind == Domain::Kind::distinct; });
  }
  return false;
}

OperatorCase::Function OperatorCase::function(Layout layout) const {
  if (layout == Layout::upstream) {
    return [f = f](const std::vector<Tensor>& in) { return transposed(f(in)); };
  }
  if (layout != Layout::expanded) return f;
  return [f = f, inputs = inputs](const std::vector<Tensor>& in) {
    std::vector<Tensor> whole;
    for (std::size_t k = 0; k < in.size(); ++k) whole.push_back(in[k].expand(inputs[k].shape));
    return f(whole);
  };
}

std::vector<Tensor> OperatorCase::make_inputs(Layout layout, DType dtype, Device device) const {
  std::vector<Tensor> result;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    Shape shape = inputs[k].shape;
    const int wide = layout == Layout::expanded ? first_wide_dim(shape) : -1;
    if (wide >= 0) shape[wide] = 1;
    const auto count = static_cast<std::size_t>(numel(shape));
    const Tensor x = allocate(shape, layout_of_input(layout, k), dtype, device);
    x.copy_from(from(draw(inputs[k].domain, count, 77 + k), shape, dtype, device));
    result.push_back(x);
  }
  return result;
}

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> cases = [] {
    Table table;
    add_unary_cases(table);
    add_binary_cases(table);
    add_reduce_cases(table);
    add_matmul_cases(table);
    add_join_cases(table);
    add_index_cases(table);
    add_view_cases(table);
    add_large_cases(table);
    return table.cases;
  }();
  return cases;
}

std::string subset_text(unsigned subset) {
  std::string text;
  for (unsigned k = 0; subset >> k != 0; ++k) {
    if (subset >> k & 1u) text += (text.empty() ? "" : ", ") + std::to_string(k);
  }
  return "{" + text + "}";
}

}  // namespace quipu::testing
