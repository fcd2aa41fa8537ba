#include "quipu/core/tensor.h"

#include <cstring>

#include "quipu/core/kernels.h"

namespace quipu {

Tensor::Tensor(Ref<Storage> storage, std::int64_t offset, Shape shape, Strides strides, DType dtype)
    : impl_(new Impl) {
  impl_->numel = quipu::numel(shape);
  impl_->storage = std::move(storage);
  impl_->offset = offset;
  impl_->shape = shape;
  impl_->strides = strides;
  impl_->dtype = dtype;
}

void Tensor::throw_undefined() {
  fail("an undefined tensor was used: it was default-constructed and never assigned");
}

std::int64_t Tensor::size(int dim) const { return shape()[wrap_dim(dim, this->dim())]; }

void* Tensor::raw_data() const {
  check(!device().is_meta(), "a tensor on ", device(), " has no values: they were never computed");
  auto* base = static_cast<char*>(storage().data());
  return base ? base + static_cast<std::size_t>(offset()) * size_of(dtype()) : nullptr;
}

void Tensor::check_access(DType wanted) const {
  check(dtype() == wanted, "data<", wanted, ">() of a tensor of type ", dtype(), "; convert it with .to(", wanted,
        ")");
  check(!device().is_cuda(), "data() of a tensor on ", device(), "; bring it over with .to(cpu)");
}

View Tensor::view() const {
  auto* base = static_cast<char*>(storage().data());
  void* data = base ? base + static_cast<std::size_t>(offset()) * size_of(dtype()) : nullptr;
  return {data, shape(), strides(), dtype(), device(), true};
}

namespace {

/// The values in row-major order in `dtype`, in host memory.
Tensor on_host(const Tensor& x, DType dtype) {
  check(!x.device().is_meta(), "a tensor on ", x.device(), " has no values: they were never computed");
  Tensor dense = empty(x.shape(), dtype, x.device(), Category::workspace);
  copy_kernel(dense, x);
  if (dense.device().is_cpu()) return dense;
  Tensor host = empty(x.shape(), dtype, cpu, Category::workspace);
  download_kernel(dense, host);
  return host;
}

}  // namespace

double Tensor::item() const {
  const OpScope op("item");
  check(numel() == 1, "the tensor has shape ", shape(), ", but only a tensor with one element has an item");
  return *on_host(*this, f64).data<double>();
}

std::int64_t Tensor::item_int() const {
  const OpScope op("item_int");
  check(numel() == 1, "the tensor has shape ", shape(), ", but only a tensor with one element has an item");
  check(!is_floating(dtype()), "the tensor is ", dtype(), ", not whole; use item()");
  return *on_host(*this, i64).data<std::int64_t>();
}

std::vector<double> Tensor::to_vector() const {
  const OpScope op("to_vector");
  const Tensor host = on_host(*this, f64);
  std::vector<double> values(static_cast<std::size_t>(numel()));
  if (!values.empty()) std::memcpy(values.data(), host.data<double>(), host.nbytes());
  return values;
}

Index slice(std::int64_t start, std::optional<std::int64_t> stop, std::int64_t step) {
  Index index(start);
  index.kind = Index::Kind::range;
  index.stop = stop;
  index.step = step;
  return index;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const OpScope op("same_bits");
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = on_host(a, a.dtype()), y = on_host(b, b.dtype());
  return a.numel() == 0 || std::memcmp(x.raw_data(), y.raw_data(), x.nbytes()) == 0;
}

}  // namespace quipu
