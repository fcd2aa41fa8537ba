#pragma once
// Shapes and strides: small fixed-capacity lists of integers, and the arithmetic on them.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace quipu {

/// Most dimensions that a tensor can have.
inline constexpr int max_dims = 8;

/// Up to `max_dims` integers, held in place; more throw Error.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values);
  Dims(const std::vector<std::int64_t>& values);
  explicit Dims(std::span<const std::int64_t> values);
  /// `size` times the same value.
  static Dims filled(int size, std::int64_t value);

  // As of a std::vector. Positions are from 0 and not checked.
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t back() const { return (*this)[size_ - 1]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }

  // Changes in place. Positions are not checked; one value too many throws Error.
  void push_back(std::int64_t value);
  void insert(int position, std::int64_t value);
  void erase(int position);
  /// Same length and same values.
  bool operator==(const Dims& other) const;

 private:
  void require_room(std::size_t size) const;
  std::array<std::int64_t, max_dims> values_{};
  int size_ = 0;
};

/// Sizes of a tensor's dimensions, the outermost first; () is a single value.
using Shape = Dims;
/// Elements (not bytes) from one entry of a dimension to the next; 0 where a value repeats.
using Strides = Dims;

/// "(2, 3)"
std::string to_string(const Dims& dims);
/// Prints to_string(dims).
std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Number of elements; throws when a size is negative or the product is beyond 2^59.
std::int64_t numel(const Shape& shape);
/// The shape of both broadcast together; throws naming both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b);
/// Whether `from` expands to `to`: aligned at the last dimension, sizes are equal or 1 in `from`.
bool can_broadcast(const Shape& from, const Shape& to);

/// A list of dimensions to reduce over; empty means all of them.
class Axes {
 public:
  Axes() = default;
  Axes(int dim) : dims_{dim} {}
  Axes(std::initializer_list<std::int64_t> dims) : dims_(dims) {}
  Axes(const Dims& dims) : dims_(dims) {}
  /// As given: negative ones still count from the end.
  const Dims& dims() const { return dims_; }
  /// One flag per dimension; throws on a dimension that is out of range or named twice. Without
  /// dimensions 0 and -1 stand for none.
  std::array<bool, max_dims> resolve(int ndim) const;

 private:
  Dims dims_;
};

namespace detail {

/// Row-major strides.
Strides contiguous_strides(const Shape& shape);
/// True when the elements lie row-major without gaps (dimensions of size 1 do not count).
bool is_contiguous(const Shape& shape, const Strides& strides);
/// A dimension counted from the front; negative ones count from the end; throws when out of range.
int wrap_dim(std::int64_t dim, int dims);
/// Strides of `shape` seen as `target` (stride 0 where it repeats).
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& target);

}  // namespace detail

}  // namespace quipu
