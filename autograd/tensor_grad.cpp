// The gradient side of Tensor.
#include "quipu/autograd/gradient_buffer.h"
#include "quipu/autograd/tensor_state.h"
#include "quipu/core/tensor.h"

namespace quipu {
using namespace detail;

AutogradMeta* detail::meta_of(const Tensor& x) {
  return static_cast<AutogradMeta*>(x.extra());
}

AutogradMeta& detail::ensure_meta(const Tensor& x) {
  if (!meta_of(x)) x.set_extra(Ref<TensorExtra>(new AutogradMeta(x)));
  return *meta_of(x);
}

void detail::make_leaf(const Tensor& x) {
  ensure_meta(x).leaf = true;
}

const Tensor& Tensor::set_requires_grad(bool on) const {
  const OpScope op("set_requires_grad");
  check(!on || is_floating(dtype()), "a tensor of type ", dtype(),
        " has no gradient; only floating types do");
  if (!on && !meta_of(*this)) return *this;
  AutogradMeta& meta = ensure_meta(*this);
  check(!meta.recorded(),
        "the tensor is the result of a recorded operator; detach() it to make a leaf");
  check(!meta.is_gradient, "the tensor is a gradient; detach() it to make a leaf");
  if (meta.leaf == on) return *this;
  meta.leaf = on;
  storage().set_category(on ? Category::parameter : Category::output);
  return *this;
}

bool Tensor::requires_grad() const {
  const AutogradMeta* meta = meta_of(*this);
  return meta && (meta->leaf || (meta->recorded() && meta->tape->alive));
}

Tensor Tensor::grad() const {
  const AutogradMeta* meta = meta_of(*this);
  return meta ? meta->grad : Tensor();
}

void Tensor::set_grad(const Tensor& gradient) const {
  const OpScope op("set_grad");
  check(!gradient.defined() || (gradient.shape() == shape() && gradient.device() == device()),
        "the gradient is ",
        gradient.defined() ? detail::concat(gradient.shape(), " on ", gradient.device()) : "",
        ", but the tensor is ", shape(), " on ", device());
  AutogradMeta& meta = ensure_meta(*this);
  check(!gradient.defined() || gradient.dtype() == meta.grad_dtype.value_or(dtype()),
        "the gradient is ", gradient.defined() ? gradient.dtype() : f32,
        ", but the tensor sums its gradient in ", meta.grad_dtype.value_or(dtype()),
        "; see set_grad_dtype()");
  for (int d = 0; gradient.defined() && d < dim(); ++d) {
    check(gradient.strides()[d] != 0 || shape()[d] <= 1,
          "the gradient is expanded along dimension ", d,
          ", so nothing can be added to it; clone() it first");
  }
  const bool own =
      gradient.defined() && meta.grad.defined() && &gradient.storage() == &meta.grad.storage() &&
      gradient.offset() == meta.grad.offset() && gradient.strides() == meta.grad.strides();
  if (!own) meta.grad = gradient.defined() ? copy_of_gradient(gradient) : gradient;
  meta.partial = false;
}

void Tensor::zero_grad() const {
  if (AutogradMeta* meta = meta_of(*this)) {
    meta->grad = Tensor();
    meta->partial = false;
  }
}

const Tensor& Tensor::set_grad_dtype(DType dtype) const {
  const OpScope op("set_grad_dtype");
  check(is_floating(dtype), "a gradient of type ", dtype,
        " is not possible; only floating types are");
  AutogradMeta& meta = ensure_meta(*this);
  check(!meta.recorded(),
        "the tensor is the result of a recorded operator; only leaves keep a gradient");
  check(!meta.grad.defined() || meta.grad.dtype() == dtype,
        "the tensor already has a gradient of type ",
        meta.grad.defined() ? meta.grad.dtype() : dtype, "; call zero_grad() first");
  meta.grad_dtype = dtype;
  return *this;
}

bool Tensor::grad_is_partial() const {
  const AutogradMeta* meta = meta_of(*this);
  return meta && meta->partial;
}

void Tensor::add_hook(Hook hook) const {
  const OpScope op("add_hook");
  check(requires_grad(), "the tensor ", shape(),
        " has no gradient: it is neither a leaf that requires one nor recorded");
  ensure_meta(*this).hooks.push_back(std::move(hook));
}

Tensor Tensor::detach() const {
  return Tensor(Ref<Storage>(&storage()), offset(), shape(), strides(), dtype());
}

}  // namespace quipu
