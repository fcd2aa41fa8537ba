#pragma once
// Views again, by index arithmetic alone: a list that says of every element which element of the
// source it is. Random steps that go one way on a tensor and the other on such a list.
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::testing {

inline std::int64_t linear_index(const Dims& index, const Shape& shape) {
  std::int64_t at = 0;
  for (int d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

/// Calls f(index) in row-major order.
template <class F>
void for_each_index(const Shape& shape, F f) {
  Dims index = Dims::filled(shape.size(), 0);
  for (std::int64_t i = numel(shape); i > 0; --i) {
    f(std::as_const(index));
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
}

struct ViewModel {
  Shape shape;
  std::vector<std::int64_t> source;  // of each element, row-major

  explicit ViewModel(const Shape& s) : shape(s) {
    for (std::int64_t i = 0; i < numel(s); ++i) source.push_back(i);
  }
  std::vector<double> values() const { return {source.begin(), source.end()}; }

  /// A view whose element at `index` is the one at f(index) here.
  template <class F>
  ViewModel mapped(const Shape& to, F f) const {
    ViewModel result({0});
    result.shape = to;
    for_each_index(to, [&](const Dims& index) {
      result.source.push_back(source[static_cast<std::size_t>(linear_index(f(index), shape))]);
    });
    return result;
  }

  ViewModel reshape(const Shape& to) const {
    ViewModel result = *this;
    result.shape = to;
    return result;
  }
  ViewModel permute(const Dims& order) const {
    Shape to = shape;
    for (int d = 0; d < order.size(); ++d) to[d] = shape[static_cast<int>(order[d])];
    return mapped(to, [&](const Dims& index) {
      Dims from = index;
      for (int d = 0; d < order.size(); ++d) from[static_cast<int>(order[d])] = index[d];
      return from;
    });
  }
  ViewModel slice(int dim, std::int64_t start, std::int64_t stop, std::int64_t step) const {
    Shape to = shape;
    to[dim] = 0;
    for (std::int64_t i = start; i < stop; i += step) ++to[dim];
    return mapped(to, [&](Dims index) {
      index[dim] = start + index[dim] * step;
      return index;
    });
  }
  ViewModel select(int dim, std::int64_t at) const {
    Shape to = shape;
    to.erase(dim);
    return mapped(to, [&](Dims index) {
      index.insert(dim, at);
      return index;
    });
  }
  ViewModel unsqueeze(int dim) const {
    Shape to = shape;
    to.insert(dim, 1);
    return reshape(to);
  }
  ViewModel squeeze(int dim) const { return select(dim, 0); }
  ViewModel expand(const Shape& to) const {
    const int lead = to.size() - shape.size();
    return mapped(to, [&](const Dims& index) {
      Dims from = Dims::filled(shape.size(), 0);
      for (int d = 0; d < shape.size(); ++d) from[d] = shape[d] == 1 ? 0 : index[lead + d];
      return from;
    });
  }

  /// What flows back to the source of a gradient of this view.
  std::vector<double> gradient(const std::vector<double>& upstream,
                               std::int64_t source_size) const {
    std::vector<double> sum(static_cast<std::size_t>(source_size), 0);
    for (std::size_t i = 0; i < source.size(); ++i) {
      sum[static_cast<std::size_t>(source[i])] += upstream[i];
    }
    return sum;
  }
};

/// The same step for a tensor and for its model.
struct ViewStep {
  std::string text;
  std::function<Tensor(const Tensor&)> on_tensor;
  std::function<ViewModel(const ViewModel&)> on_model;
};

/// Some step that a tensor of this shape allows; shapes stay small.
class RandomSteps {
 public:
  explicit RandomSteps(unsigned seed) : random_(seed) {}

  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  ViewStep next(const Shape& shape) {
    while (true) {
      const int dims = shape.size();
      const int dim = dims > 0 ? static_cast<int>(between(0, dims - 1)) : 0;
      switch (between(0, 7)) {
        case 0:
          if (dims > 1) return permute(shape);
          break;
        case 1:
          if (dims > 0) return slice(shape, dim);
          break;
        case 2:
          if (dims > 1 && shape[dim] > 0) return select(shape, dim);
          break;
        case 3:
          if (dims < 6) return unsqueeze(static_cast<int>(between(0, dims)), dims);
          break;
        case 4:
          if (dims > 0 && shape[dim] == 1) return squeeze(dim);
          break;
        case 5:
          if (numel(shape) < 400) return expand(shape);
          break;
        case 6: return reshape(shape);
        case 7: return copy();
      }
    }
  }

  /// Whole numbers, so that sums are exact.
  std::vector<double> upstream(std::int64_t n) {
    std::vector<double> values(static_cast<std::size_t>(n));
    for (double& v : values) v = static_cast<double>(between(-5, 5));
    return values;
  }

 private:
  ViewStep permute(const Shape& shape) {
    Dims order = shape;
    for (int d = 0; d < shape.size(); ++d) order[d] = d;
    std::shuffle(&order[0], &order[0] + order.size(), random_);
    return {"permute" + to_string(order), [=](const Tensor& x) { return x.permute(order); },
            [=](const ViewModel& m) { return m.permute(order); }};
  }
  ViewStep slice(const Shape& shape, int dim) {
    const std::int64_t start = between(0, shape[dim]), stop = between(start, shape[dim]);
    const std::int64_t step = between(1, 3);
    return {detail::concat("slice(", dim, ", ", start, ", ", stop, ", ", step, ")"),
            [=](const Tensor& x) { return x.slice(dim, start, stop, step); },
            [=](const ViewModel& m) { return m.slice(dim, start, stop, step); }};
  }
  ViewStep select(const Shape& shape, int dim) {
    const std::int64_t at = between(0, shape[dim] - 1);
    const std::int64_t named = between(0, 1) ? at : at - shape[dim];
    return {detail::concat("select(", dim, ", ", named, ")"),
            [=](const Tensor& x) { return x.select(dim, named); },
            [=](const ViewModel& m) { return m.select(dim, at); }};
  }
  ViewStep unsqueeze(int dim, int dims) {
    const int named = between(0, 1) ? dim : dim - dims - 1;
    return {detail::concat("unsqueeze(", named, ")"),
            [=](const Tensor& x) { return x.unsqueeze(named); },
            [=](const ViewModel& m) { return m.unsqueeze(dim); }};
  }
  ViewStep squeeze(int dim) {
    return {detail::concat("squeeze(", dim, ")"), [=](const Tensor& x) { return x.squeeze(dim); },
            [=](const ViewModel& m) { return m.squeeze(dim); }};
  }
  ViewStep expand(const Shape& shape) {
    Shape to = shape, named = shape;
    for (int d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) to[d] = between(0, 3);
      named[d] = shape[d] != 1 && between(0, 1) ? -1 : to[d];
    }
    if (shape.size() < 5 && between(0, 1)) {
      to.insert(0, between(1, 2));
      named.insert(0, to[0]);
    }
    return {"expand" + to_string(named), [=](const Tensor& x) { return x.expand(named); },
            [=](const ViewModel& m) { return m.expand(to); }};
  }
  ViewStep reshape(const Shape& shape) {
    // Cut the number of elements into random factors.
    Shape to;
    std::int64_t left = numel(shape);
    while (left > 1 && to.size() < 4) {
      std::int64_t factor = between(1, 6);
      while (left % factor != 0) --factor;
      to.push_back(factor);
      left /= factor;
    }
    to.push_back(left);
    Shape named = to;
    if (numel(to) > 0 && between(0, 1)) named[static_cast<int>(between(0, to.size() - 1))] = -1;
    return {"reshape" + to_string(named), [=](const Tensor& x) { return x.reshape(named); },
            [=](const ViewModel& m) { return m.reshape(to); }};
  }
  ViewStep copy() {
    const bool clone = between(0, 1);
    return {clone ? "clone()" : "contiguous()",
            [=](const Tensor& x) { return clone ? x.clone() : x.contiguous(); },
            [](const ViewModel& m) { return m; }};
  }

  std::mt19937 random_;
};

}  // namespace quipu::testing
