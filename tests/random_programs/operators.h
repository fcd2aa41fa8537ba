#pragma once
// How the table of operators is written down.
#include "draw.h"

namespace quipu::programs {

inline Tensors results(const Tensor& o) {
  return {o};
}
inline Tensors results(const Tensors& o) {
  return o;
}
inline Tensors results(const TopK& o) {
  return {o.values, o.indices};
}
inline Tensors results(const Sorted& o) {
  return {o.values, o.indices};
}
inline Tensors results(const Extremes& o) {
  return {o.values, o.index};
}

#define AS_FUNCTION(...)                                                                          \
  [](const Tensors& in, [[maybe_unused]] const Numbers& n, [[maybe_unused]] const Shape& shape) { \
    return results(__VA_ARGS__);                                                                  \
  }
/// A call as a function and as text: `in[0]`, `n[0]` and `shape` become what a statement has.
#define CALL(...) AS_FUNCTION(__VA_ARGS__), #__VA_ARGS__, nullptr
/// The same of an operator that has a composition.
#define FUSED(f, ...) \
  AS_FUNCTION(f(__VA_ARGS__)), #f "(" #__VA_ARGS__ ")", AS_FUNCTION(f##_composed(__VA_ARGS__))

// Ways to draw inputs.
bool one(Draw& d, Statement& s);             // of any shape
bool one_positive(Draw& d, Statement& s);    // well above 0
bool one_and_number(Draw& d, Statement& s);  // n[0] / 4.0 is small and not 0
bool one_and_dim(Draw& d, Statement& s);     // n[0] is a dimension
bool matrix(Draw& d, Statement& s);          // two dimensions or more
bool two(Draw& d, Statement& s);             // that broadcast
bool two_alike(Draw& d, Statement& s);       // of one shape and type

// The parts of the table.
void add_pointwise(std::vector<Operator>& table);
void add_reductions(std::vector<Operator>& table);
void add_views(std::vector<Operator>& table);
void add_structure(std::vector<Operator>& table);
void add_in_place(std::vector<Operator>& table);
void add_fused(std::vector<Operator>& table);
void add_custom(std::vector<Operator>& table);

}  // namespace quipu::programs
