// Copies of a tensor: dense, in another type, on another device, in pinned memory.
#include "quipu/autograd/knot.h"
#include "quipu/core/devices.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/memory/allocator.h"
#include "quipu/core/memory/allocator_modes.h"
#include "quipu/core/streams.h"
#include "quipu/ops/pinned.h"
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

/// Moves values between devices.
void transfer(const Tensor& from, const Tensor& to, bool async) {
  if (from.numel() == 0 || to.device().is_meta()) return;
  const DeviceFunctions& functions = device_functions(DeviceKind::cuda);
  if (from.device().is_cpu() && async) return functions.upload_async(to, dense(from));
  if (from.device().is_cpu()) return upload_kernel(to, dense(from));
  if (to.device().is_cpu()) return download_kernel(dense(from), to);
  functions.copy_between_devices(to, dense(from));
}

Tensor moved(const Tensor& x, Device device, bool async) {
  if (device == x.device()) return x;
  check(device.is_meta() || !x.device().is_meta(), "a tensor on ", x.device(),
        " has no values to move to ", device,
        "; make it there instead, as in empty(x.shape(), x.dtype(), \"", device, "\")");
  const Tensor o = empty(x.shape(), x.dtype(), device);
  transfer(x, o, async);
  return tie(o, {x}, MoveRule{x.device()});
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
  return moved(*this, device, false);
}

Tensor to_async(const Tensor& x, Device device) {
  const OpScope op("to_async");
  return moved(x, device, true);
}

bool is_pinned(const Tensor& x) {
  const auto function = device_functions(DeviceKind::cuda).is_pinned;
  return x.device().is_cpu() && function && function(x);
}

Tensor pin_memory(const Tensor& x) {
  const OpScope op("pin_memory");
  check(x.device().kind() == DeviceKind::cpu, "x is on ", x.device(),
        ", but only memory of the CPU can be pinned; take x.to(cpu)");
  const bool useful = x.device().is_cpu() && device_count(DeviceKind::cuda) > 0 && caching_mode();
  if (!useful || is_pinned(x)) return x;
  const PinnedScope pinned;
  return copied(x, x.dtype());
}

}  // namespace quipu
