#pragma once
// Tensor: a cheap handle on (storage, offset, shape, strides, dtype, device). Copies of a handle
// are the same tensor.
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quipu/core/device.h"
#include "quipu/core/dispatch/view.h"
#include "quipu/core/dtype.h"
#include "quipu/core/error.h"
#include "quipu/core/memory/storage.h"
#include "quipu/core/random/random.h"
#include "quipu/core/scalar.h"
#include "quipu/core/shape.h"

namespace quipu {

class Tensor;
class Index;
/// Called with the finished gradient of a tensor; returns what to use instead, or an undefined
/// tensor to keep it.
using Hook = std::function<Tensor(const Tensor& gradient)>;

namespace detail {
/// One entry of `x(...)`, but for tensors.
class PlainIndex {
 public:
  enum class Kind { at, range, all, new_axis, rest, tensor };
  constexpr PlainIndex(Kind k, std::int64_t i = 0) : kind(k), start(i) {}
  Kind kind;  // which of the numbers below count
  /// The position of `at`, or where a range starts.
  std::int64_t start = 0, step = 1;  // from one entry of a range to the next
  std::optional<std::int64_t> stop;  // behind the last entry of a range; none: up to the end
};
}  // namespace detail
/// Every `step`-th position from `start` to before `stop`: x(slice(1, 5), all). As in Python,
/// negative positions count from the end, those beyond an end stand for the end, and a negative
/// step goes backwards, which copies. Without `stop` as far as the dimension goes.
detail::PlainIndex slice(std::int64_t start, std::optional<std::int64_t> stop = {},
                         std::int64_t step = 1);
namespace detail {
/// `all`: an index, and a reduction.
class AllOf : public PlainIndex {
 public:
  constexpr AllOf() : PlainIndex(Kind::all) {}
  /// Whether no entry is 0 (bool), over some dimensions; none named means all, and of no entries it
  /// is true. `any` is its counterpart (ops/reduce/reduce.h).
  Tensor operator()(const Tensor& x, const Axes& axes = {}, bool keepdim = false) const;
};
}  // namespace detail
/// A whole dimension: x(all, 0). As a function, whether all entries hold: all(x > 0).
inline constexpr detail::AllOf all;
/// A dimension of size 1 that was not there.
inline constexpr detail::PlainIndex new_axis(detail::PlainIndex::Kind::new_axis);
/// As many whole dimensions as the other entries leave over; at most once in an index.
inline constexpr detail::PlainIndex rest(detail::PlainIndex::Kind::rest);

namespace detail {
/// What autograd/ knows of a tensor; core/ only keeps it alive.
struct TensorExtra : RefCounted {};
}  // namespace detail

/// An n-dimensional array. Copying it copies the handle, not the values: clone() does that. Without
/// arguments it is undefined: it has no shape, and operators on it throw Error.
class Tensor {
 public:
  Tensor() = default;
  /// A tensor on existing storage; for factories and views.
  Tensor(detail::Ref<detail::Storage> storage, std::int64_t offset, Shape shape, Strides strides,
         DType dtype);

  // What it is. Strides and offset (of the first element in its storage) count elements, not bytes;
  // nbytes is that of the elements, which may repeat; a negative dim counts from the end.
  bool defined() const { return static_cast<bool>(impl_); }
  const Shape& shape() const { return impl().shape; }
  const Strides& strides() const { return impl().strides; }
  std::int64_t size(int dim) const;
  int dim() const { return shape().size(); }
  std::int64_t numel() const { return impl().numel; }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype()); }
  DType dtype() const { return impl().dtype; }
  Device device() const { return storage().device(); }
  std::int64_t offset() const { return impl().offset; }
  bool is_contiguous() const { return detail::is_contiguous(shape(), strides()); }
  /// For the library itself: the memory behind the elements, shared by views.
  detail::Storage& storage() const { return *impl().storage; }
  /// True for copies of one handle; views on the same memory are other tensors.
  bool same_as(const Tensor& other) const { return impl_ == other.impl_; }

  /// The elements, on the CPU and in the tensor's own type. Writing through it is not seen by
  /// version checks.
  template <class T>
  T* data() const {
    check_access(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  /// The address of the first element on its own device, null where it has no memory. On meta:
  /// an error.
  void* raw_data() const;
  // For the library itself: the arguments of kernels.
  detail::View view() const;
  operator detail::View() const { return view(); }

  /// The one element of a one-element tensor. On meta there is none: an error.
  double item() const;
  /// As item, exact for all integers; a floating type is an error.
  std::int64_t item_int() const;
  /// All elements in row-major order, converted. Whole numbers beyond 2^53 are rounded; read_values
  /// is exact.
  std::vector<double> to_vector() const;

  // Views: they share storage, and gradients flow through them.
  Tensor reshape(
      const Shape& shape) const;  // one size may be -1; copies when strides do not allow a view
  Tensor view(const Shape& shape) const;  // as reshape, but an error where a copy would be needed
  Tensor flatten() const { return reshape({-1}); }
  Tensor transpose(int a, int b) const;
  Tensor t() const;  // the two last dimensions swapped
  Tensor permute(const Dims& order) const;
  Tensor slice(int dim, std::int64_t start, std::optional<std::int64_t> stop = {},
               std::int64_t step = 1) const;  // as the function slice() says
  Tensor select(int dim, std::int64_t index) const;
  Tensor unsqueeze(int dim) const;
  Tensor squeeze() const;
  Tensor squeeze(int dim) const;            // itself where that size is not 1
  Tensor expand(const Shape& shape) const;  // -1 keeps a size
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  /// The entries (i, i + offset) of two dimensions, which become one behind all others.
  Tensor diagonal(std::int64_t offset = 0, int first = 0, int second = 1) const;
  /// x(0, all, slice(2, 5), new_axis, rest), or with tensors, as Index says.
  template <class... I>
  Tensor operator()(const I&... indices) const;
  /// As operator(), for entries that are known at run time only.
  Tensor index(const std::vector<Index>& indices) const;

  // Copies: gradients flow through them, too.
  Tensor contiguous() const;  // itself when it is contiguous
  Tensor clone() const;
  Tensor to(DType dtype) const;  // itself when nothing changes
  Tensor to(Device device) const;
  Tensor detach() const;  // the same storage without history

  // In place. A tensor that a tape has recorded, or a parameter while a tape records, needs NoGrad.
  const Tensor& copy_from(const Tensor& source) const;  // casts and broadcasts
  const Tensor& fill_(const Scalar& value) const;
  const Tensor& zero_() const { return fill_(0); }
  const Tensor& add_(const Tensor& other, const Scalar& scale = 1) const;  // this += scale * other
  const Tensor& add_(const Scalar& value) const;
  const Tensor& sub_(const Tensor& other) const { return add_(other, -1); }
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& mul_(const Scalar& value) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& clamp_(const Scalar& low, const Scalar& high) const;
  const Tensor& lerp_(const Tensor& end,
                      const Scalar& weight) const;  // this += weight * (end - this)
  const Tensor& addcmul_(const Tensor& a, const Tensor& b,
                         const Scalar& scale = 1) const;  // += scale * a * b
  const Tensor& addcdiv_(const Tensor& a, const Tensor& b,
                         const Scalar& scale = 1) const;  // += scale * a / b
  const Tensor& operator+=(const Tensor& other) const { return add_(other); }
  const Tensor& operator-=(const Tensor& other) const { return sub_(other); }
  const Tensor& operator*=(const Tensor& other) const { return mul_(other); }
  const Tensor& operator*=(const Scalar& value) const { return mul_(value); }
  /// x(indices) = values, which broadcast, or += with `accumulate`. Where a position is named
  /// several times, the last one counts, or all of them are added.
  const Tensor& index_put_(const std::vector<Index>& indices, const Tensor& values,
                           bool accumulate = false) const;

  // Gradients; defined by autograd/.
  const Tensor& set_requires_grad(bool on = true) const;
  bool requires_grad() const;  // a leaf that asked for a gradient, or recorded on a living tape
  Tensor grad() const;         // undefined when there is none
  void set_grad(const Tensor& gradient) const;  // copies its values; undefined drops the gradient
  void zero_grad() const;                       // drops the gradient; its memory is free again
  /// The type that its gradient is summed in; the tensor's own unless set.
  const Tensor& set_grad_dtype(DType dtype) const;
  /// True after an error in the middle of backward, until zero_grad().
  bool grad_is_partial() const;
  /// Calls `hook` in every backward, hooks in the order of adding. A tensor that gets no gradient
  /// is an error.
  void add_hook(Hook hook) const;

  // For the library itself.
  detail::TensorExtra* extra() const { return defined() ? impl_->extra.get() : nullptr; }
  void set_extra(detail::Ref<detail::TensorExtra> extra) const { impl().extra = std::move(extra); }

 private:
  struct Impl : detail::RefCounted {
    detail::Ref<detail::Storage> storage;
    detail::Ref<detail::TensorExtra> extra;
    std::int64_t offset = 0;
    std::int64_t numel = 0;
    Shape shape;
    Strides strides;
    DType dtype = DType::f32;
  };
  Impl& impl() const {
    if (!impl_) [[unlikely]]
      throw_undefined();
    return *impl_;
  }
  [[noreturn]] static void throw_undefined();
  void check_access(DType wanted) const;

  detail::Ref<Impl> impl_;
};

/// One entry of `x(...)`: a position, counted from the end where negative, whose dimension is
/// dropped; slice(), all, new_axis or rest; or a tensor. One of whole numbers (i64 or i32) has
/// positions, and its shape takes the place of the dimension; a bool one says which entries of as
/// many dimensions as it has are taken, in row-major order, so the shape of the result depends on
/// its values. Several tensors broadcast and go together; their shape stands where the first of
/// them does, or in front if they do not stand side by side. With tensors the result is a copy.
class Index : public detail::PlainIndex {
 public:
  Index(std::int64_t i) : PlainIndex(Kind::at, i) {}
  Index(int i) : PlainIndex(Kind::at, i) {}
  Index(const detail::PlainIndex& i) : PlainIndex(i) {}
  Index(const Tensor& x) : PlainIndex(Kind::tensor), tensor(x) {}
  Tensor tensor;  // of Kind::tensor
};

template <class... I>
Tensor Tensor::operator()(const I&... indices) const {
  return index({Index(indices)...});
}

// Factories. dtype defaults to f32, device to the CPU.
Tensor empty(const Shape& shape, DType dtype = f32, Device device = {},
             Category category = Category::output);
Tensor empty_like(const Tensor& x);
Tensor zeros(const Shape& shape, DType dtype = f32, Device device = {},
             Category category = Category::output);
Tensor zeros_like(const Tensor& x);
Tensor ones(const Shape& shape, DType dtype = f32, Device device = {});
Tensor full(const Shape& shape, const Scalar& value, DType dtype = f32, Device device = {});
Tensor arange(std::int64_t end, DType dtype = i64, Device device = {});
Tensor arange(double start, double end, double step, DType dtype = f32, Device device = {});
Tensor linspace(double start, double end, std::int64_t count, DType dtype = f32,
                Device device = {});
Tensor eye(std::int64_t n, DType dtype = f32, Device device = {});
Tensor rand(const Shape& shape, DType dtype = f32, Device device = {},
            Generator& g = default_generator());
Tensor randn(const Shape& shape, DType dtype = f32, Device device = {},
             Generator& g = default_generator());
/// Whole numbers in [low, high).
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, DType dtype = i64,
               Device device = {}, Generator& g = default_generator());
/// 0 to n - 1 in random order, i64 (n).
Tensor randperm(std::int64_t n, Device device = {}, Generator& g = default_generator());

/// A copy of numel(shape) values of type `source` in host memory, row-major, converted to `dtype`.
Tensor from_bytes(const void* data, DType source, const Shape& shape, DType dtype, Device device);
/// A copy of the values, row-major: from({1.0, 2.0}), from(v, {2, 3}), from(v, {2, 3}, bf16). Their
/// number must be that of the shape's elements; without a shape there is one dimension.
template <class T>
Tensor from(std::span<const T> values, const Shape& shape, DType dtype = dtype_of<T>,
            Device device = {}) {
  detail::check(numel(shape) == static_cast<std::int64_t>(values.size()), "from: ", values.size(),
                " values do not fill shape ", shape);
  return from_bytes(values.data(), dtype_of<T>, shape, dtype, device);
}
template <class T>
requires(!std::same_as<T, bool>) Tensor from(const std::vector<T>& values, const Shape& shape,
                                             DType dtype = dtype_of<T>, Device device = {}) {
  return from(std::span<const T>(values), shape, dtype, device);
}
template <class T>
Tensor from(std::initializer_list<T> values, DType dtype = dtype_of<T>, Device device = {}) {
  return from(std::span<const T>(values.begin(), values.size()),
              Shape{static_cast<std::int64_t>(values.size())}, dtype, device);
}
template <class T>
Tensor from(std::initializer_list<T> values, const Shape& shape, DType dtype = dtype_of<T>,
            Device device = {}) {
  return from(std::span<const T>(values.begin(), values.size()), shape, dtype, device);
}
/// A tensor with no dimensions.
Tensor scalar_tensor(const Scalar& value, DType dtype = f32, Device device = {});

/// Copies all elements in row-major order, converted to `dtype`, to host memory. On the CPU it
/// allocates nothing, so reading a value leaves the ledger alone.
void read_values(const Tensor& x, DType dtype, void* to);

/// How far two tensors are apart. `ok` is false when shapes or dtypes differ or a NaN stands on one
/// side only.
struct Difference {
  bool ok = false;     // every entry is within the tolerance
  double largest = 0;  // |a - b| at the worst entry
  std::string text;    // names the worst entry
  /// As `ok`.
  explicit operator bool() const { return ok; }
};
/// An entry passes when |a - b| <= absolute + relative * |b|. Infinities must be equal.
struct Tolerance {
  std::optional<double> relative;  // default: 8 epsilon of the dtype
  std::optional<double> absolute;  // default: as relative
  bool equal_nan = false;          // otherwise NaN is never equal
};
/// Compares entry by entry, on whichever devices they are. On meta there are no values: an error.
Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance = {});
/// compare() as a yes or no.
inline bool allclose(const Tensor& a, const Tensor& b, const Tolerance& t = {}) {
  return compare(a, b, t).ok;
}
/// Same shape, dtype and bits.
bool same_bits(const Tensor& a, const Tensor& b);

/// Values with shape, dtype and device; the middle of large tensors is cut out.
std::string to_string(const Tensor& x);
/// Prints to_string(x).
std::ostream& operator<<(std::ostream& out, const Tensor& x);

namespace detail {

/// Scratch memory of the running operator; dies with it.
Tensor workspace(const Shape& shape, DType dtype, Device device);

}  // namespace detail

}  // namespace quipu
