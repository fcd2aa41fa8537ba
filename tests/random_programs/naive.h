#pragma once
// A second tape for the same programs: every operator is a node with copies of its inputs, every
// gradient a tensor of its own; nothing is shared and nothing is changed in place. What it takes
// from the library is the backward rule of one operator at a time, or of its composition.
#include <algorithm>
#include <utility>

#include "program.h"

namespace quipu::programs {

/// A gradient, and the same with every contribution off by some roundings: how far the two are
/// apart is how far another order of additions may go.
struct Estimate {
  Tensor value, perturbed;
  bool defined() const { return value.defined(); }
};

/// A contribution is perturbed by this much: some roundings of its type, and many in f64, where a
/// wrong graph is still far away.
double noise_of(DType t);

class NaiveTape {
 public:
  /// `noise` is a seed: programs that fail with one may be tried with another.
  explicit NaiveTape(const Program& program, std::uint64_t noise = 0);

  void leaf(const Leaf& leaf);
  /// Before a statement runs on `values`.
  void record(const Statement& s, const Tensors& values);
  /// After it ran. Throws a Failure where its results are others.
  void compare_outputs(const Statement& s, const Tensors& in, const Tensors& out);
  void walk(const WalkFrom& walk, const Tensor& upstream);
  void zero_grad();
  void double_grads();

  /// Of the last walk, after hooks; undefined where nothing came by.
  Estimate gradient(Value value) const;
  /// Of a leaf, over all walks with backward; undefined where nothing came by.
  const Estimate& sum(Value leaf) const { return sums_[at(leaf)]; }
  /// Relative to the largest entry of a gradient: what is not told apart in any case.
  double resolution() const { return coarsest_ / 4; }
  /// What hooks saw in the last walk, by their place in the program.
  const std::vector<std::pair<std::size_t, Estimate>>& seen() const { return seen_; }

 private:
  struct Node {
    const Statement* s;
    Tensors inputs;  // copies
    RandomState random;
    bool opaque = false;  // is walked whatever is wanted
  };
  static std::size_t at(Value v) { return static_cast<std::size_t>(v); }
  /// Several values may be one tensor.
  Value root(Value v) const;
  void record_again(const Statement& s, const Tensors& values);
  void record_operator(const Statement& s, const Tensors& values);
  std::vector<char> find_needed(const std::vector<Value>& wanted) const;
  void undo(const Node& node, const std::vector<char>& needed);
  void add(Value value, const Estimate& contribution);
  void add_to(Estimate& sum, const Estimate& contribution);
  void apply_hooks(Value value);
  Tensor perturb(const Tensor& x, double absolute = 0);
  void note_type(DType t) {
    if (is_floating(t)) coarsest_ = std::max(coarsest_, noise_of(t));
  }

  const Program& program_;
  std::vector<Leaf> leaves_;  // that want a gradient
  std::vector<Node> nodes_;
  std::vector<Value> roots_;
  std::vector<char> tracked_;  // has a gradient
  Tensors results_;
  std::vector<Estimate> gradients_, sums_;
  std::vector<std::pair<std::size_t, Estimate>> seen_;
  Generator noise_;
  double coarsest_ = 0;  // of all types in the program
};

/// What a hook returns.
Tensor hooked(HookOn::Kind kind, const Tensor& gradient);

}  // namespace quipu::programs
