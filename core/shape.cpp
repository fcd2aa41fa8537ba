#include "quipu/core/shape.h"

#include <ostream>

#include <algorithm>

#include "quipu/core/error.h"

namespace quipu {
using namespace detail;

void Dims::require_room(std::size_t size) const {
  check(size <= max_dims, "a tensor has at most ", max_dims, " dimensions, but ", size,
        " were asked for");
}

Dims::Dims(std::initializer_list<std::int64_t> values)
    : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
Dims::Dims(const std::vector<std::int64_t>& values) : Dims(std::span<const std::int64_t>(values)) {}
Dims::Dims(std::span<const std::int64_t> values) {
  require_room(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

Dims Dims::filled(int size, std::int64_t value) {
  Dims dims;
  dims.require_room(static_cast<std::size_t>(size));
  dims.size_ = size;
  std::fill_n(dims.values_.begin(), size, value);
  return dims;
}

void Dims::push_back(std::int64_t value) {
  insert(size_, value);
}

void Dims::insert(int position, std::int64_t value) {
  require_room(static_cast<std::size_t>(size_) + 1);
  for (int i = size_; i > position; --i) (*this)[i] = (*this)[i - 1];
  ++size_;
  (*this)[position] = value;
}

void Dims::erase(int position) {
  for (int i = position; i + 1 < size_; ++i) (*this)[i] = (*this)[i + 1];
  --size_;
}

bool Dims::operator==(const Dims& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

std::string to_string(const Dims& dims) {
  std::string text = "(";
  for (int i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + (dims.size() == 1 ? ",)" : ")");
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  return out << to_string(dims);
}

std::int64_t numel(const Shape& shape) {
  // Sizes of 0 count as 1 here, so that strides fit as well, also those of an empty tensor.
  std::int64_t n = 1;
  bool overflow = false, empty = false;
  for (const std::int64_t size : shape) {
    check(size >= 0, "shape ", shape, " has a negative size");
    empty = empty || size == 0;
    overflow = __builtin_mul_overflow(n, std::max<std::int64_t>(size, 1), &n) || overflow;
  }
  check(!overflow && n <= (std::int64_t{1} << 59), "shape ", shape,
        " has more elements than can be addressed");
  return empty ? 0 : n;
}

Strides detail::contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.size(), 1);
  std::int64_t step = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    strides[d] = step;
    // Nobody steps along a tensor without elements, so a product that does not fit is harmless.
    if (__builtin_mul_overflow(step, std::max<std::int64_t>(shape[d], 1), &step)) step = 1;
  }
  return strides;
}

bool detail::is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t step = 1;
  bool dense = true;
  for (int d = shape.size() - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    dense = dense && (shape[d] == 1 || strides[d] == step);
    step *= shape[d];
  }
  return dense;
}

int detail::wrap_dim(std::int64_t dim, int dims) {
  check(dim >= -dims && dim < dims, "dimension ", dim, " is out of range for a tensor with ", dims,
        dims == 1 ? " dimension" : " dimensions");
  return static_cast<int>(dim < 0 ? dim + dims : dim);
}

bool can_broadcast(const Shape& from, const Shape& to) {
  const int lead = to.size() - from.size();
  if (lead < 0) return false;
  for (int d = 0; d < from.size(); ++d) {
    if (from[d] != 1 && from[d] != to[lead + d]) return false;
  }
  return true;
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const int dims = std::max(a.size(), b.size());
  Shape shape = Dims::filled(dims, 1);
  for (int i = 1; i <= dims; ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    check(x == y || x == 1 || y == 1, "shapes ", a, " and ", b, " do not broadcast: sizes ", x,
          " and ", y, " differ in dimension ", -i, " and neither is 1");
    shape[dims - i] = x == 1 ? y : x;
  }
  return shape;
}

Strides detail::broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target) {
  Strides wide = Dims::filled(target.size(), 0);
  const int lead = target.size() - shape.size();
  for (int d = 0; d < shape.size(); ++d) {
    wide[lead + d] = shape[d] == 1 && target[lead + d] != 1 ? 0 : strides[d];
  }
  return wide;
}

std::array<bool, max_dims> Axes::resolve(int ndim) const {
  std::array<bool, max_dims> reduced{};
  if (ndim == 0 && dims_.size() == 1 && (dims_[0] == 0 || dims_[0] == -1)) return reduced;
  for (int d = 0; d < ndim && dims_.empty(); ++d) reduced[static_cast<std::size_t>(d)] = true;
  for (const std::int64_t dim : dims_) {
    const auto d = static_cast<std::size_t>(wrap_dim(dim, ndim));
    check(!reduced[d], "dimension ", dim, " is named twice");
    reduced[d] = true;
  }
  return reduced;
}

}  // namespace quipu
