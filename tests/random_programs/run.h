#pragma once
// A run of a program on the library's tape, watched by the second tape if there is one.
#include <memory>
#include <set>

#include "naive.h"

namespace quipu::programs {

class Run {
 public:
  /// Throws a Failure where the two tapes, or a gradient at two times, are apart.
  Run(const Program& program, Device device, NaiveTape* naive);

  bool refused() const { return refused_; }        // a walk, with good reason
  bool overflowed() const { return overflowed_; }  // gradients that no type can hold
  /// Of a leaf that wants one, as f64; after one walk.
  std::vector<double> gradient(Value leaf) const;

 private:
  /// A gradient that was handed out, and what it was then.
  struct HandedOut {
    std::string what;
    Tensor gradient, copy;
  };
  void start();
  void execute(std::size_t index);
  void add_hooks(Value v);
  void walk(const WalkFrom& w);
  void compare_with_naive(const WalkFrom& w, const Tensors& results);
  void compare(const std::string& what, const Tensor& ours, const Estimate& naive);
  void hand_out(const std::string& what, const Tensor& gradient);
  void check_handed_out() const;
  bool may_refuse(const std::string& message) const;
  Tensor& value(Value v) { return values_[static_cast<std::size_t>(v)]; }

  const Program& program_;
  Device device_;
  NaiveTape* naive_;
  Tensors values_;
  std::vector<std::size_t> last_use_;  // which statement; for ever where a walk uses it
  std::vector<std::pair<std::size_t, Tensor>> seen_;  // by hooks in this walk
  std::vector<HandedOut> handed_out_;
  std::set<const detail::Storage*>
      may_be_kept_;             // by operators that keep inputs or outputs for backward
  bool changed_saved_ = false;  // one of those was changed in place
  bool walked_without_retain_ = false;
  bool refused_ = false, overflowed_ = false;
  std::vector<Tensor> kept_;  // by hooks
  Tape tape_;
};

}  // namespace quipu::programs
