#include "quipu/ops/optimizer_updates.h"

#include <cmath>

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/optimizer_kernels.h"

namespace quipu {
using namespace detail;
namespace {

void check_rate(const char* name, double value) {
  check(std::isfinite(value) && value >= 0, name, " is ", value,
        ", but a finite number from 0 on is wanted");
}

void check_beta(const char* name, double value) {
  check(value >= 0 && value < 1, name, " is ", value, ", but a number in [0, 1) is wanted");
}

/// One tensor of an update: that it is there, on the parameter's device and of its shape.
void check_part(std::size_t i, const char* name, const Tensor& t, const Tensor& parameter) {
  check(t.defined(), "parameter ", i, " has no ", name, ", which this update needs");
  check(t.shape() == parameter.shape(), name, " of parameter ", i, " has shape ", t.shape(),
        ", but the parameter has shape ", parameter.shape());
  check(t.device() == parameter.device(), name, " of parameter ", i, " is on ", t.device(),
        ", but the parameter is on ", parameter.device());
}

/// Elements that are one in memory cannot each get a value.
void check_not_expanded(std::size_t i, const char* name, const Tensor& t) {
  for (int d = 0; d < t.dim(); ++d) {
    check(t.strides()[d] != 0 || t.size(d) <= 1, name, " ", i, " is expanded along dimension ", d,
          ", so several of its elements are one in memory; clone() it first");
  }
}

void check_state(std::size_t i, const char* name, const Tensor& t, const Tensor& parameter) {
  check_part(i, name, t, parameter);
  check_not_expanded(i, name, t);
  const DType wanted = compute_type(parameter.dtype());
  check(t.dtype() == wanted, name, " of parameter ", i, " is ", t.dtype(),
        ", but for a parameter of type ", parameter.dtype(), " it is kept in ", wanted);
}

void check_item(std::size_t i, const ParameterUpdate& u, int states, bool counts, Device device) {
  check(u.parameter.defined(), "parameter ", i, " is undefined");
  const DType dtype = u.parameter.dtype();
  check(is_floating(dtype), "parameter ", i, " is ", dtype,
        ", but only floating types are trained");
  check(u.parameter.device() == device, "parameter ", i, " is on ", u.parameter.device(),
        ", but parameter 0 is on ", device, "; one call updates one device");
  check_not_expanded(i, "parameter", u.parameter);
  check_part(i, "gradient", u.gradient, u.parameter);
  check(u.gradient.dtype() == dtype || u.gradient.dtype() == f32, "gradient of parameter ", i,
        " is ", u.gradient.dtype(), ", but ", dtype, " (the parameter's type) or f32 is wanted");
  if (states > 0) check_state(i, "first", u.first, u.parameter);
  if (states > 1) check_state(i, "second", u.second, u.parameter);
  if (u.master.defined()) {
    check(is_reduced(dtype), "parameter ", i, " is ", dtype,
          " and needs no master copy; only bf16 and f16 do");
    check_state(i, "master", u.master, u.parameter);
  }
  if (!counts) return;
  check(u.step.defined() && u.step.dtype() == i64 && u.step.shape() == Shape{} &&
            u.step.device() == device,
        "step of parameter ", i, " must be an i64 tensor without dimensions on ", device);
}

void check_control(const GradientControl& control, Device device) {
  const auto check_one = [&](const char* name, const Tensor& t) {
    check(t.shape() == Shape{}, name, " has shape ", t.shape(), ", but must have no dimensions");
    check(t.device() == device, name, " is on ", t.device(), ", but the parameters are on ",
          device);
  };
  if (control.scale.defined()) {
    check_floating("scale", control.scale.dtype());
    check_one("scale", control.scale);
  }
  if (control.skip.defined()) {
    check_bool("skip", control.skip);
    check_one("skip", control.skip);
  }
  if (control.lr.defined()) {
    check(control.lr.dtype() == f64, "lr is ", control.lr.dtype(), ", but must be f64");
    check_one("lr", control.lr);
  }
}

/// Everything checked, then every tensor marked as changed.
UpdateList prepare(std::span<const ParameterUpdate> list, int states, bool counts,
                   const GradientControl& control) {
  const Device device = list.front().parameter.device();
  for (std::size_t i = 0; i < list.size(); ++i) check_item(i, list[i], states, counts, device);
  check_control(control, device);
  UpdateList result;
  result.items.reserve(list.size());
  result.scale = optional_view(control.scale);
  result.skip = optional_view(control.skip);
  result.lr = optional_view(control.lr);
  result.lr_factor = control.lr_factor;
  for (const ParameterUpdate& u : list) {
    change_in_place(u.parameter);
    if (states > 0) change_in_place(u.first);
    if (states > 1) change_in_place(u.second);
    if (u.master.defined()) change_in_place(u.master);
    const std::int64_t n = u.parameter.numel();
    if (n == 0) continue;
    if (counts) change_in_place(u.step);
    result.items.push_back({u.parameter, u.gradient, states > 0 ? optional_view(u.first) : View(),
                            states > 1 ? optional_view(u.second) : View(), optional_view(u.master),
                            counts ? optional_view(u.step) : View(), result.numel, n});
    result.numel += n;
  }
  return result;
}

}  // namespace

void detail::sgd_update(std::span<const ParameterUpdate> list, const SgdOptions& options,
                        const GradientControl& control) {
  const OpScope op("sgd_update");
  check_rate("lr", options.lr);
  check_rate("weight_decay", options.weight_decay);
  check_beta("momentum", options.momentum);
  check(!options.nesterov || options.momentum > 0,
        "nesterov is set, but momentum is 0, and without one there is nothing to look ahead to");
  if (list.empty()) return;
  const UpdateList updates = prepare(list, options.momentum > 0 ? 1 : 0, false, control);
  if (updates.numel > 0) sgd_kernel(updates, options);
}

void detail::adamw_update(std::span<const ParameterUpdate> list, const AdamWOptions& options,
                          const GradientControl& control) {
  const OpScope op("adamw_update");
  check_rate("lr", options.lr);
  check_rate("weight_decay", options.weight_decay);
  check_rate("eps", options.eps);
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  if (list.empty()) return;
  const UpdateList updates = prepare(list, 2, true, control);
  if (updates.numel > 0) adamw_kernel(updates, options);
}

void detail::lion_update(std::span<const ParameterUpdate> list, const LionOptions& options,
                         const GradientControl& control) {
  const OpScope op("lion_update");
  check_rate("lr", options.lr);
  check_rate("weight_decay", options.weight_decay);
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  if (list.empty()) return;
  const UpdateList updates = prepare(list, 1, false, control);
  if (updates.numel > 0) lion_kernel(updates, options);
}

Tensor global_norm(std::span<const Tensor> tensors) {
  const OpScope op("global_norm");
  check(!tensors.empty(), "the list of tensors is empty");
  const Device device = tensors.front().device();
  DType dtype = f32;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check(is_floating(t.dtype()), "tensor ", i, " is ", t.dtype(), ", but must be floating");
    check(t.device() == device, "tensor ", i, " is on ", t.device(), ", but tensor 0 is on ",
          device);
    if (t.dtype() == f64) dtype = f64;
  }
  NormList list;
  list.items.reserve(tensors.size());
  for (const Tensor& t : tensors) {
    if (t.numel() == 0) continue;
    list.items.push_back({t, list.numel, t.numel()});
    list.numel += t.numel();
  }
  if (list.numel == 0) return zeros({}, dtype, device);
  const Tensor norm = empty({}, dtype, device);
  const Tensor parts = workspace({global_norm_parts(list.numel)}, f64, device);
  global_norm_kernel(list, parts, norm);
  return norm;
}

}  // namespace quipu
