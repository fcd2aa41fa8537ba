#pragma once
// Single elements of any type as numbers, where plainness counts and speed does not.
// Internal to the library.
#include <cstdint>
#include <type_traits>

#include "quipu/core/dispatch/view.h"

namespace quipu::detail {

/// Element i from `data` on, as T: a double, or a whole number where the type is whole.
template <class T>
T load_element(const void* data, DType dtype, std::int64_t i) {
  const auto at = [&]<class E>(E) { return static_cast<const E*>(data)[i]; };
  switch (dtype) {
    case DType::f64: return static_cast<T>(at(double{}));
    case DType::f32: return static_cast<T>(at(float{}));
    case DType::bf16: return static_cast<T>(to_float(at(BFloat16{})));
    case DType::f16: return static_cast<T>(to_float(at(Half{})));
    case DType::i64: return static_cast<T>(at(std::int64_t{}));
    case DType::i32: return static_cast<T>(at(std::int32_t{}));
    default: return static_cast<T>(at(std::uint8_t{}));  // bool is 0 or 1
  }
}

/// Writes a number as element i, rounded once. Whole numbers wrap; what is not 0 is true.
template <class T>
void store_element(void* data, DType dtype, std::int64_t i, T value) {
  const auto put = [&]<class E>(E e) { static_cast<E*>(data)[i] = e; };
  switch (dtype) {
    case DType::f64: return put(static_cast<double>(value));
    case DType::f32: return put(static_cast<float>(value));
    case DType::bf16: return put(to_bf16(static_cast<double>(value)));
    case DType::f16: return put(to_f16(static_cast<double>(value)));
    case DType::i64: return put(static_cast<std::int64_t>(value));
    case DType::i32: return put(static_cast<std::int32_t>(static_cast<std::int64_t>(value)));
    case DType::u8: return put(static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
    default: return put(static_cast<std::uint8_t>(value != T(0)));
  }
}

/// Calls f(position, offset) for every element of a shape, row-major; the offset is in elements.
template <class F>
void for_each_element(const Shape& shape, const Strides& strides, F f) {
  const std::int64_t count = numel(shape);
  Dims index = Dims::filled(shape.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t position = 0; position < count; ++position) {
    f(position, offset);
    for (int d = shape.size() - 1; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
}

}  // namespace quipu::detail
