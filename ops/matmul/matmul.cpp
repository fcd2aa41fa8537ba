#include "quipu/ops/matmul/matmul.h"

#include <atomic>

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/matmul/support.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

std::atomic<bool> tf32{false};

struct MatmulRule {
  Saved a, b;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      View rows = d_o, d_a = g.view;
      fold_both(rows, d_a, b.get());
      multiply(rows, transposed(b.get()), {d_a, g.add});
    });
    d.with(1, [&](const Grad& g) {
      View left = a.get(), right = d_o;
      fold_both(left, right, g.view);
      multiply(transposed(left), right, g);
    });
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  const OpScope op("matmul");
  check(a.dim() > 0 && b.dim() > 0, "a has shape ", a.shape(), " and b has shape ", b.shape(),
        ", but both need at least one dimension");
  check_same_device("a", a, "b", b);
  check_same_dtype("a", a, "b", b);
  check_floating("a", a.dtype());
  const std::int64_t inner = b.size(b.dim() == 1 ? 0 : -2);
  check(a.size(-1) == inner, "b has shape ", b.shape(), ", but a has shape ", a.shape(), " (",
        a.size(-1), " columns of a meet ", inner, " rows of b)");
  if (a.dim() == 1) return matmul(a.unsqueeze(0), b).squeeze(b.dim() == 1 ? 0 : -2);
  if (b.dim() == 1) return matmul(a, b.unsqueeze(1)).squeeze(-1);

  const auto batch_of = [](Shape shape) {
    shape.erase(shape.size() - 1);
    shape.erase(shape.size() - 1);
    return shape;
  };
  Shape shape = broadcast_shapes(batch_of(a.shape()), batch_of(b.shape()));
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  const Tensor o = empty(shape, a.dtype(), a.device());
  View rows = a, out = o;
  fold_both(rows, out, b);
  multiply(rows, b, Target::write_to(out));
  return tie(o, {a, b}, MatmulRule{save_if(b.requires_grad(), a), save_if(a.requires_grad(), b)});
}

void allow_tf32(bool allowed) {
  tf32 = allowed;
}

bool tf32_allowed() noexcept {
  return tf32;
}

}  // namespace quipu
