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

/// Nothing is recorded while it lives, but `save` keeps what it is given.
class CustomForward {
 public:
  CustomForward();
  ~CustomForward();
  CustomForward(const CustomForward&) = delete;
  CustomForward& operator=(const CustomForward&) = delete;

 private:
  NoGrad pause_;
  bool outer_;
};

}  // namespace detail

/// Runs op.forward(inputs...) as one operator. If it is recorded, op itself becomes the knot's
/// rule.
template <class Op, class... Inputs>
Tensor apply(Op op, const Inputs&... inputs) {
  const OpScope scope(op.name);
  Tensor o;
  if (recording()) {
    const detail::CustomForward saving;
    o = op.forward(inputs...);
  } else {
    o = op.forward(inputs...);
  }
  check(o.defined(), "forward returned an undefined tensor");
  return tie(o.extra() ? o.detach() : o, {inputs...}, std::move(op));
}

}  // namespace quipu
