#pragma once
// Part of tensor.h, for kernels: what they see of a tensor, which is pointer, sizes, strides and
// dtype. They own nothing and check nothing.
#include <cstdint>

#include "quipu/core/device.h"
#include "quipu/core/dtype.h"
#include "quipu/core/shape.h"

namespace quipu::detail {

struct View {
  void* data = nullptr;
  Shape shape;
  Strides strides;  // in elements
  DType dtype = DType::f32;
  Device device;
  bool defined = false;  // an optional argument that was not given is not defined

  int dim() const { return shape.size(); }
  std::int64_t size(int d) const { return shape[d]; }
  std::int64_t stride(int d) const { return strides[d]; }
  std::int64_t numel() const { return quipu::numel(shape); }
  bool is_contiguous() const { return detail::is_contiguous(shape, strides); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Where a kernel leaves a result, and whether it writes it or adds it to what is there. Not
/// defined: nobody wants this result. Never has stride 0.
struct Target {
  View view;
  bool add = false;

  bool wanted() const { return view.defined; }
  static Target write_to(const View& v) { return {v, false}; }
  static Target add_to(const View& v) { return {v, true}; }
};
/// A target that is a gradient: written at the first touch, added to from then on.
using Grad = Target;

/// Whether any of these gradients has elements that somebody wants.
template <class... Grads>
bool any_elements(const Grads&... grads) {
  return ((grads.wanted() && grads.view.numel() > 0) || ...);
}

}  // namespace quipu::detail
