#pragma once
// What an operator may ask for when it draws its inputs.
#include <functional>
#include <random>

#include "program.h"

namespace quipu::programs {

class Draw {
 public:
  explicit Draw(std::uint64_t seed);
  Program program();

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }

  const Tensor& at(Value value) const { return values_[static_cast<std::size_t>(value)]; }
  /// A tensor that fits, rather one that is new or not used yet; -1 where there is none.
  Value find(const std::function<bool(const Tensor&)>& fits);
  /// A floating tensor with at least `dims` dimensions.
  Value some(int dims = 0);
  /// A floating tensor of this shape and type: one that is there, reshaped perhaps, or a new leaf.
  Value like(const Shape& shape, DType dtype);
  /// A leaf without gradient.
  Value constant(const Shape& shape, DType dtype, Content content = Content::normal,
                 std::int64_t bound = 1);
  /// Whole numbers in [0, bound).
  Value index(const Shape& shape, std::int64_t bound);
  Value mask(const Shape& shape);
  /// A shape that broadcasts with this one.
  Shape beside(const Shape& shape);
  /// Small sizes, often equal.
  std::int64_t size() { return chance(0.01) ? 0 : between(1, 3); }
  Shape shape(int dims);
  Layout some_layout(const Shape& shape) {
    return numel(shape) > 0 ? static_cast<Layout>(between(1, 3)) : Layout::contiguous;
  }
  DType dtype() const { return dtype_; }
  /// Dimension of a tensor, counted from either end.
  int dim_of(const Tensor& x) { return between(-x.dim(), x.dim() - 1); }
  /// Draws the body of a recomputed function.
  bool body(Statement& s);

 private:
  std::uint64_t leaf_seed() { return static_cast<std::uint64_t>(below(100000)); }
  Value add_leaf(Leaf leaf);
  bool append(Statement s);
  bool append_some();
  void add_losses();
  void add_hooks();
  void add_walks();
  WalkFrom draw_walk();
  bool acceptable(const Tensors& outputs) const;

  std::mt19937_64 random_;
  Program program_;
  DType dtype_;
  bool smooth_, in_place_;
  bool light_;                          // mostly operators that hand gradients on as they are
  std::vector<Statement>* statements_;  // of the program, or of a body
  Tensors values_;                      // by a run along
  std::vector<int> uses_;               // of each value
  std::vector<Value> visible_;          // in this body
  int depth_ = 0;                       // of bodies
  Tape tape_;
};

/// The first operator of this name.
const Operator* named(const char* name);

inline bool is_float(const Tensor& x) {
  return is_floating(x.dtype());
}

}  // namespace quipu::programs
