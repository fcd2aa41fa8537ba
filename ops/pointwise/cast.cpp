// Copies of a tensor: dense, in another type, on another device.
#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

struct CopyRule {
  void backward(const Tensor& d_o, Grads& d) const { d.pass(0, d_o); }
};

/// A dense copy needs no gradient of its own: whoever computes it writes it where the gradient of x
/// is gathered.
struct CloneRule {
  Tensor project(const Tensor& d_x) const { return d_x; }
  bool covers_parent() const { return true; }
  void backward(const Tensor& d_o, Grads& d) const { d.pass(0, d_o); }
};

struct MoveRule {
  Device home;
  void backward(const Tensor& d_o, Grads& d) const { d.give(0, d_o.to(home)); }
};

Tensor copied(const Tensor& x, DType dtype) {
  const Tensor o = empty(x.shape(), dtype, x.device());
  copy_kernel(o, x);
  if (!is_floating(dtype)) return no_gradient(o);
  if (dtype == x.dtype() && x.is_contiguous()) return tie(o, {x}, CloneRule{});
  return tie(o, {x}, CopyRule{});
}

/// Moves values between devices; two that are not the host meet on it.
void transfer(const Tensor& from, const Tensor& to) {
  if (from.numel() == 0 || to.device().is_meta()) return;
  if (from.device().is_cpu()) return upload_kernel(to, dense(from));
  if (to.device().is_cpu()) return download_kernel(dense(from), to);
  const Tensor host = workspace(from.shape(), from.dtype(), cpu);
  transfer(from, host);
  transfer(host, to);
}

}  // namespace

Tensor Tensor::contiguous() const {
  const OpScope op("contiguous");
  return is_contiguous() ? *this : copied(*this, dtype());
}

Tensor Tensor::clone() const {
  const OpScope op("clone");
  return copied(*this, dtype());
}

Tensor Tensor::to(DType dtype) const {
  const OpScope op("to");
  return dtype == this->dtype() ? *this : copied(*this, dtype);
}

Tensor Tensor::to(Device device) const {
  const OpScope op("to");
  if (device == this->device()) return *this;
  check(device.is_meta() || !this->device().is_meta(), "a tensor on ", this->device(),
        " has no values to move to ", device,
        "; make it there instead, as in empty(x.shape(), x.dtype(), \"", device, "\")");
  const Tensor o = empty(shape(), dtype(), device);
  transfer(*this, o);
  return tie(o, {*this}, MoveRule{this->device()});
}

}  // namespace quipu
