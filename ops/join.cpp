#include "quipu/ops/join.h"

#include <algorithm>

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"

namespace quipu {
using namespace detail;
namespace {

/// Each input gets its own strided part of the gradient.
struct CatRule {
  int axis;
  std::vector<std::int64_t> sizes;
  void backward(const Tensor& d_o, Grads& d) const {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const int input = static_cast<int>(i);
      if (d.wants(input)) d.pass(input, d_o.slice(axis, start, start + sizes[i]));
      start += sizes[i];
    }
  }
};

/// "tensor 2", for messages.
std::string numbered(std::size_t i) {
  return "tensor " + std::to_string(i);
}

/// All on one device and of one type.
void check_alike(const std::vector<Tensor>& tensors) {
  check(!tensors.empty(), "the list of tensors is empty");
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    check_same_device("tensor 0", tensors[0], numbered(i).c_str(), tensors[i]);
    check_same_dtype("tensor 0", tensors[0], numbered(i).c_str(), tensors[i]);
  }
}

/// The shape of all tensors side by side; throws unless they agree in the other dimensions.
Shape joined_shape(const std::vector<Tensor>& tensors, int axis) {
  Shape shape = tensors[0].shape();
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    Shape other = tensors[i].shape();
    bool fits = other.size() == shape.size();
    for (int d = 0; fits && d < shape.size(); ++d) fits = d == axis || other[d] == shape[d];
    check(fits, "tensor ", i, " has shape ", other, ", but tensor 0 has shape ", tensors[0].shape(),
          " (they must agree in all dimensions but ", axis, ")");
    check(!__builtin_add_overflow(shape[axis], other[axis], &shape[axis]),
          "the sizes in dimension ", axis, " add up to more than 2^63");
  }
  return shape;
}

Tensor join(const std::vector<Tensor>& tensors, int axis) {
  const Tensor o = empty(joined_shape(tensors, axis), tensors[0].dtype(), tensors[0].device());
  CatRule rule{axis, {}};
  std::int64_t start = 0;
  for (const Tensor& x : tensors) {
    const std::int64_t size = x.size(axis);
    copy_kernel(o.slice(axis, start, start + size), x);
    rule.sizes.push_back(size);
    start += size;
  }
  tie_all({&o, 1}, tensors, std::move(rule));
  return o;
}

std::vector<Tensor> cut(const Tensor& x, const std::vector<std::int64_t>& sizes, int axis) {
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(x.slice(axis, start, start + size));
    start += size;
  }
  return parts;
}

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  const OpScope op("cat");
  check_alike(tensors);
  return join(tensors, wrap_dim(dim, tensors[0].dim()));
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  const OpScope op("stack");
  check_alike(tensors);
  const int axis = wrap_dim(dim, tensors[0].dim() + 1);
  std::vector<Tensor> layers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check(tensors[i].shape() == tensors[0].shape(), "tensor ", i, " has shape ", tensors[i].shape(),
          ", but tensor 0 has shape ", tensors[0].shape());
    layers.push_back(tensors[i].unsqueeze(axis));
  }
  return join(layers, axis);
}

std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim) {
  const OpScope op("split");
  const int axis = wrap_dim(dim, x.dim());
  check(size > 0, "size is ", size, ", but must be positive");
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = x.size(axis); left > 0; left -= sizes.back())
    sizes.push_back(std::min(left, size));
  if (sizes.empty()) sizes.push_back(0);
  return cut(x, sizes, axis);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim) {
  const OpScope op("split");
  const int axis = wrap_dim(dim, x.dim());
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    check(size >= 0, "sizes has the entry ", size, ", but none may be negative");
    check(!__builtin_add_overflow(total, size, &total), "sizes add up to more than 2^63");
  }
  check(total == x.size(axis), "sizes add up to ", total, ", but x has shape ", x.shape(),
        " (size ", x.size(axis), " in dimension ", dim, ")");
  return cut(x, sizes, axis);
}

}  // namespace quipu
