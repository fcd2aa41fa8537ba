#pragma once
// A user's own operator in one struct: a name, a forward that may save tensors, a backward.
//
//   struct Cube {
//     static constexpr const char* name = "cube";
//     Saved x;
//     Tensor forward(const Tensor& in) {
//       x = save(in);
//       return in * in * in;
//     }
//     void backward(const Tensor& d_o, Grads& d) const { d.add(0, 3 * d_o * x.get() * x.get()); }
//   };
//   Tensor y = apply(Cube{}, x);
#include <utility>

#include "quipu/autograd/knot.h"

namespace quipu {
namespace detail {

/// Nothing is recorded while it lives, but `save` keeps what it is given if a tape records.
class CustomForward {
 public:
  CustomForward();
  ~CustomForward();
  CustomForward(const CustomForward&) = delete;
  CustomForward& operator=(const CustomForward&) = delete;

 private:
  bool outer_;
  NoGrad pause_;
};

/// The rule of a user's operator. It may keep the gradients that it is given.
template <class Op>
struct CustomRule {
  Op op;
  void backward(std::span<const Tensor> d_outputs, Grads& d) {
    d.lend();
    op.backward(d_outputs[0], d);
  }
};

}  // namespace detail

/// Runs op.forward(inputs...) as one operator. If it is recorded, op itself becomes the knot's
/// rule.
template <class Op, class... Inputs>
Tensor apply(Op op, const Inputs&... inputs) {
  const detail::OpScope scope(op.name);
  Tensor o;
  if (detail::taping()) {
    const detail::CustomForward saving;
    o = op.forward(inputs...);
  } else {
    o = op.forward(inputs...);
  }
  detail::check(o.defined(), "forward returned an undefined tensor");
  // A tensor of its own: what forward returned may be an input, or kept elsewhere.
  return detail::tie(o.detach(), {inputs...}, detail::CustomRule<Op>{std::move(op)});
}

}  // namespace quipu
