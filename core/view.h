#pragma once
// What kernels see of a tensor: pointer, sizes, strides, dtype. They own nothing and check nothing.
#include <cstdint>

#include "quipu/core/device.h"
#include "quipu/core/dtype.h"
#include "quipu/core/shape.h"

namespace quipu {

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
  bool is_contiguous() const { return quipu::is_contiguous(shape, strides); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// Where a backward kernel leaves a gradient: it writes at the first touch and adds from then on.
/// Not defined: nobody wants this gradient. Never has stride 0.
struct Grad {
  View view;
  bool add = false;

  bool wanted() const { return view.defined; }
  static Grad write_to(const View& v) { return {v, false}; }
  static Grad add_to(const View& v) { return {v, true}; }
};

/// Whether any of these gradients has elements that somebody wants.
template <class... Grads>
bool any_elements(const Grads&... grads) {
  return ((grads.wanted() && grads.view.numel() > 0) || ...);
}

}  // namespace quipu
