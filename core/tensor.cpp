#include "quipu/core/tensor.h"

#include "quipu/core/context.h"
#include "quipu/core/dispatch/kernels.h"

namespace quipu {
using namespace detail;

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

std::int64_t Tensor::size(int dim) const {
  return shape()[wrap_dim(dim, this->dim())];
}

void* Tensor::raw_data() const {
  check(!device().is_meta(), "a tensor on ", device(), " has no values: they were never computed");
  auto* base = static_cast<char*>(storage().data());
  return base ? base + static_cast<std::size_t>(offset()) * size_of(dtype()) : nullptr;
}

void Tensor::check_access(DType wanted) const {
  check(dtype() == wanted, "data<", wanted, ">() of a tensor of type ", dtype(),
        "; convert it with .to(", wanted, ")");
  check(!device().is_cuda(), "data() of a tensor on ", device(), "; bring it over with .to(cpu)");
}

View Tensor::view() const {
  auto* base = static_cast<char*>(storage().data());
  void* data = base ? base + static_cast<std::size_t>(offset()) * size_of(dtype()) : nullptr;
  return {data, shape(), strides(), dtype(), device(), true};
}

void read_values(const Tensor& x, DType dtype, void* to) {
  check_enum("dtype", dtype, DType::boolean);
  check(!x.device().is_meta(), "a tensor on ", x.device(),
        " has no values: they were never computed");
  if (x.numel() == 0) return;
  const View values{to, x.shape(), contiguous_strides(x.shape()), dtype, cpu, true};
  if (x.device().is_cpu()) return copy_kernel(values, x);
  Tensor dense = x;
  if (!x.is_contiguous()) {
    dense = workspace(x.shape(), x.dtype(), x.device());
    copy_kernel(dense, x);
  }
  const Tensor host = workspace(x.shape(), x.dtype(), cpu);
  download_kernel(dense, host);
  copy_kernel(values, host);
}

namespace {

/// The one value of a tensor, as T.
template <class T>
T only_value(const Tensor& x) {
  check(x.numel() == 1, "the tensor has shape ", x.shape(),
        ", but only a tensor with one element has an item");
  T value{};
  read_values(x, dtype_of<T>, &value);
  return value;
}

}  // namespace

double Tensor::item() const {
  const OpScope op("item");
  return only_value<double>(*this);
}

std::int64_t Tensor::item_int() const {
  const OpScope op("item_int");
  check(!is_floating(dtype()), "the tensor is ", dtype(), ", not whole; use item()");
  return only_value<std::int64_t>(*this);
}

std::vector<double> Tensor::to_vector() const {
  const OpScope op("to_vector");
  std::vector<double> values(static_cast<std::size_t>(numel()));
  read_values(*this, f64, values.data());
  return values;
}

detail::PlainIndex slice(std::int64_t start, std::optional<std::int64_t> stop, std::int64_t step) {
  detail::PlainIndex index(detail::PlainIndex::Kind::range, start);
  index.stop = stop;
  index.step = step;
  return index;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const OpScope op("same_bits");
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  std::vector<char> x(a.nbytes()), y(b.nbytes());
  read_values(a, a.dtype(), x.data());
  read_values(b, b.dtype(), y.data());
  return x == y;
}

}  // namespace quipu
