#include "quipu/ops/act.h"

#include "quipu/ops/act_kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu {
using namespace detail;
namespace {

constexpr Act all_acts[] = {Act::none, Act::relu, Act::sigmoid, Act::silu, Act::softmax};

/// The axis of softmax, 0 for the others.
int check_act(const Tensor& x, Act kind, std::optional<int> dim) {
  check_floating("x", x.dtype());
  check_enum("kind", kind, Act::softmax);
  if (kind == Act::softmax) {
    check(dim.has_value(), "softmax needs a dim");
    return wrap_dim(*dim, x.dim());
  }
  check(!dim.has_value(), kind, " was given dim ", dim.value_or(0), ", but only softmax takes one");
  return 0;
}

Pointwise function_of(Act kind) {
  return kind == Act::relu      ? Pointwise::relu
         : kind == Act::sigmoid ? Pointwise::sigmoid
                                : Pointwise::silu;
}
Pointwise gradient_of(Act kind) {
  return kind == Act::relu      ? Pointwise::relu_grad
         : kind == Act::sigmoid ? Pointwise::sigmoid_grad
                                : Pointwise::silu_grad;
}

/// Workspace of softmax, if it needs any.
struct Parts {
  Parts(const View& x, int axis) {
    const std::int64_t length = x.size(axis), lines = length > 0 ? x.numel() / length : 0;
    const Shape shape = softmax_workspace(x.device.kind(), lines, length, 2);
    if (numel(shape) > 0) room = workspace(shape, compute_type(x.dtype), x.device);
  }
  View view() const { return room.defined() ? room.view() : View(); }
  Tensor room;
};

void run_backward(const View& saved, const View& d_o, const Grad& d_x, Act kind, int axis) {
  if (kind == Act::softmax) {
    const Parts parts(saved, axis);
    return softmax_backward_kernel(saved, d_o, d_x, parts.view(), axis);
  }
  if (kind == Act::none) return pointwise_kernel(d_x, Pointwise::copy, {d_o});
  pointwise_kernel(d_x, gradient_of(kind), {d_o, saved});
}

struct ActRule {
  Saved saved;
  Act kind;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { run_backward(saved, d_o, g, kind, axis); });
  }
};

Tensor activated(const Tensor& x, Act kind, int axis) {
  if (kind == Act::none) return x;
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  if (kind == Act::softmax) {
    const Parts parts(x, axis);
    softmax_forward_kernel(x, o, parts.view(), axis);
  } else {
    pointwise_kernel(Target::write_to(o), function_of(kind), {x});
  }
  const Tensor& kept = kind == Act::softmax ? o : x;
  return tie(o, {x}, ActRule{save_if(x.requires_grad(), kept), kind, axis});
}

}  // namespace

const char* name_of(Act kind) {
  constexpr const char* names[] = {"none", "relu", "sigmoid", "silu", "softmax"};
  return kind <= Act::softmax ? names[static_cast<int>(kind)] : "no activation";
}

Act act_named(std::string_view name) {
  for (const Act kind : all_acts) {
    if (name == name_of(kind)) return kind;
  }
  fail("there is no activation \"", name, "\"; there are none, relu, sigmoid, silu and softmax");
}

Tensor act(const Tensor& x, Act kind, std::optional<int> dim) {
  const OpScope op("act");
  return activated(x, kind, check_act(x, kind, dim));
}

Tensor softmax(const Tensor& x, int dim) {
  const OpScope op("softmax");
  if (x.dim() == 0) return softmax(x.reshape({1}), dim).reshape({});
  return activated(x, Act::softmax, check_act(x, Act::softmax, dim));
}

Tensor detail::act_composed(const Tensor& x, Act kind, std::optional<int> dim) {
  check_act(x, kind, dim);
  switch (kind) {
    case Act::none: return x;
    case Act::relu: return where(x <= 0, 0, x);  // NaN is not <= 0
    case Act::sigmoid: return 1 / (1 + exp(-x));
    case Act::silu: return x / (1 + exp(-x));
    case Act::softmax: break;
  }
  if (x.size(*dim) == 0) return x;  // nothing has no largest entry
  const Tensor e = exp(x - max(x.detach(), *dim, true));
  return e / sum(e, *dim, true);
}

void detail::act_backward(const Tensor& saved, const Tensor& d_o, const Grad& d_x, Act kind,
                          std::optional<int> dim) {
  const OpScope op("act_backward");
  const int axis = check_act(d_o, kind, dim);
  check_grad("d_x", d_x, d_o.shape(), d_o.device());
  if (kind != Act::none) {
    check_same_dtype("saved", saved, "d_o", d_o);
    check_same_device("saved", saved, "d_o", d_o);
    check(saved.shape() == d_o.shape(), "saved has shape ", saved.shape(), ", but d_o has shape ",
          d_o.shape());
  }
  run_backward(kind == Act::none ? View() : saved.view(), d_o, d_x, kind, axis);
}

}  // namespace quipu
