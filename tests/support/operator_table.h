#pragma once
// How the table of operators is written down: domains, and ways to add many cases at once.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "operator_cases.h"

namespace quipu::testing {

using In = const std::vector<Tensor>&;

inline constexpr Domain any_value{};
inline constexpr Domain positive{0.5, 2};
inline constexpr Domain small{-0.5, 0.5};
inline constexpr Domain off_grid{-2, 2, Domain::Kind::grid, 0.1, 0};
// Two inputs that never meet: a quarter of a unit to either side of the grid points.
inline constexpr Domain below_grid{-2, 2, Domain::Kind::grid, 0.1, -0.025};
inline constexpr Domain above_grid{-2, 2, Domain::Kind::grid, 0.1, 0.025};
inline constexpr Domain all_different{-2, 2, Domain::Kind::distinct};

class Table {
 public:
  using Function = OperatorCase::Function;
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

// One part of the table each.
void add_unary_cases(Table& t);
void add_binary_cases(Table& t);
void add_reduce_cases(Table& t);
void add_matmul_cases(Table& t);
void add_join_cases(Table& t);
void add_index_cases(Table& t);
void add_view_cases(Table& t);
void add_large_cases(Table& t);

}  // namespace quipu::testing
