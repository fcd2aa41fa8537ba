#include "quipu/ops/pointwise/arithmetic.h"

#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

struct AddRule {
  void backward(const Tensor& d_o, Grads& d) const {
    d.pass(0, d_o);
    d.pass(1, d_o);
  }
};

struct SubRule {
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(1, [&](const Grad& g) { map_into(g, Pointwise::neg, {d_o}, d_o.shape()); });
    d.pass(0, d_o);
  }
};

struct NegRule {
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { map_into(g, Pointwise::neg, {d_o}, d_o.shape()); });
  }
};

struct MulRule {
  SavedTerm a, b;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { map_into(g, Pointwise::mul, {d_o, b}, d_o.shape()); });
    d.with(1, [&](const Grad& g) { map_into(g, Pointwise::mul, {d_o, a}, d_o.shape()); });
  }
};

struct DivRule {
  SavedTerm b;
  Saved o;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { map_into(g, Pointwise::div, {d_o, b}, d_o.shape()); });
    d.with(1, [&](const Grad& g) {
      map_into(g, Pointwise::div_grad_b, {d_o, o.get(), b}, d_o.shape());
    });
  }
};

struct PowRule {
  SavedTerm a, b;
  Saved o;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { map_into(g, Pointwise::pow_grad_a, {d_o, a, b}, d_o.shape()); });
    d.with(1, [&](const Grad& g) {
      map_into(g, Pointwise::pow_grad_b, {d_o, a, o.get()}, d_o.shape());
    });
  }
};

/// maximum and minimum: `share` gives what its second operand gets when it meets the third.
struct ExtremumRule {
  SavedTerm a, b;
  Pointwise share;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { map_into(g, share, {d_o, a, b}, d_o.shape()); });
    d.with(1, [&](const Grad& g) { map_into(g, share, {d_o, b, a}, d_o.shape()); });
  }
};

struct RemainderRule {
  SavedTerm a, b;
  void backward(const Tensor& d_o, Grads& d) const {
    d.pass(0, d_o);
    d.with(1, [&](const Grad& g) {
      map_into(g, Pointwise::remainder_grad_b, {d_o, a, b}, d_o.shape());
    });
  }
};

struct Atan2Rule {
  SavedTerm y, x;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      map_into(g, Pointwise::atan2_grad_a, {d_o, x, y}, d_o.shape());
    });
    d.with(1, [&](const Grad& g) {
      map_into(g, Pointwise::atan2_grad_b, {d_o, y, x}, d_o.shape());
    });
  }
};

struct ClampRule {
  Saved x;
  std::optional<Scalar> low, high;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!low) return pointwise_kernel(g, Pointwise::clamp_grad_high, {d_o, x.get(), *high});
      if (!high) return pointwise_kernel(g, Pointwise::clamp_grad_low, {d_o, x.get(), *low});
      // Two bounds take two passes; the gradient itself is the buffer between them where it may be.
      const Tensor buffer = g.add ? workspace(g.view.shape, g.view.dtype, g.view.device) : Tensor();
      const View part = g.add ? buffer.view() : g.view;
      pointwise_kernel(Grad::write_to(part), Pointwise::clamp_grad_low, {d_o, x.get(), *low});
      pointwise_kernel(g, Pointwise::clamp_grad_high, {part, x.get(), *high});
    });
  }
};

Tensor extremum(Pointwise f, Pointwise share, const Term& a, const Term& b) {
  const PointwiseResult result = match_terms(a, b);
  const auto bound_in = f == Pointwise::maximum ? lower_bound_in : upper_bound_in;
  const auto fitting = [&](const Term& term) {
    return term.is_tensor() ? term : Term(bound_in(term.scalar(), result.dtype));
  };
  const Term x = fitting(a), y = fitting(b);
  const Tensor o = map(f, {operand(x), operand(y)}, result);
  const bool wanted = a.requires_grad() || b.requires_grad();
  return tie(o, {a.tensor(), b.tensor()}, ExtremumRule{{wanted, x}, {wanted, y}, share});
}

}  // namespace

Tensor add(const Term& a, const Term& b) {
  const OpScope op("add");
  const Tensor o = map(Pointwise::add, {operand(a), operand(b)}, match_terms(a, b));
  return tie(o, {a.tensor(), b.tensor()}, AddRule{});
}

Tensor sub(const Term& a, const Term& b) {
  const OpScope op("sub");
  const Tensor o = map(Pointwise::sub, {operand(a), operand(b)}, match_terms(a, b));
  return tie(o, {a.tensor(), b.tensor()}, SubRule{});
}

Tensor mul(const Term& a, const Term& b) {
  const OpScope op("mul");
  const Tensor o = map(Pointwise::mul, {operand(a), operand(b)}, match_terms(a, b));
  return tie(o, {a.tensor(), b.tensor()}, MulRule{{b.requires_grad(), a}, {a.requires_grad(), b}});
}

Tensor div(const Term& a, const Term& b) {
  const OpScope op("div");
  const PointwiseResult result = match_terms(a, b);
  check_floating("the quotient", result.dtype);
  const Tensor o = map(Pointwise::div, {operand(a), operand(b)}, result);
  const bool wanted = a.requires_grad() || b.requires_grad();
  return tie(o, {a.tensor(), b.tensor()}, DivRule{{wanted, b}, save_if(b.requires_grad(), o)});
}

Tensor pow(const Term& a, const Term& b) {
  const OpScope op("pow");
  const PointwiseResult result = match_terms(a, b);
  check_floating("the power", result.dtype);
  const Tensor o = map(Pointwise::pow, {operand(a), operand(b)}, result);
  const bool wanted = a.requires_grad() || b.requires_grad();
  return tie(o, {a.tensor(), b.tensor()},
             PowRule{{wanted, a}, {a.requires_grad(), b}, save_if(b.requires_grad(), o)});
}

Tensor maximum(const Term& a, const Term& b) {
  const OpScope op("maximum");
  return extremum(Pointwise::maximum, Pointwise::maximum_grad, a, b);
}

Tensor minimum(const Term& a, const Term& b) {
  const OpScope op("minimum");
  return extremum(Pointwise::minimum, Pointwise::minimum_grad, a, b);
}

Tensor remainder(const Term& a, const Term& b) {
  const OpScope op("remainder");
  const Tensor o = map(Pointwise::remainder, {operand(a), operand(b)}, match_terms(a, b));
  const bool wanted = b.requires_grad();
  return tie(o, {a.tensor(), b.tensor()}, RemainderRule{{wanted, a}, {wanted, b}});
}

Tensor atan2(const Term& y, const Term& x) {
  const OpScope op("atan2");
  const PointwiseResult result = match_terms(y, x);
  check_floating("the angle", result.dtype);
  const Tensor o = map(Pointwise::atan2, {operand(y), operand(x)}, result);
  const bool wanted = y.requires_grad() || x.requires_grad();
  return tie(o, {y.tensor(), x.tensor()}, Atan2Rule{{wanted, y}, {wanted, x}});
}

Tensor neg(const Tensor& x) {
  const OpScope op("neg");
  const Tensor o = map(Pointwise::neg, {x}, {x.shape(), x.dtype(), x.device()});
  return tie(o, {x}, NegRule{});
}

Tensor clamp(const Tensor& x, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
  const OpScope op("clamp");
  check(low || high, "neither low nor high is given");
  std::optional<Scalar> from = low, to = high;
  if (from) from = lower_bound_in(*from, x.dtype());
  if (to) to = upper_bound_in(*to, x.dtype());
  const PointwiseResult result{x.shape(), x.dtype(), x.device()};
  const Tensor o = from && to ? map(Pointwise::clamp, {x, *from, *to}, result)
                   : from     ? map(Pointwise::maximum, {x, *from}, result)
                              : map(Pointwise::minimum, {x, *to}, result);
  return tie(o, {x}, ClampRule{save_if(x.requires_grad(), x), from, to});
}

}  // namespace quipu
