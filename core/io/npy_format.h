#pragma once
// An .npy file in memory: "\x93NUMPY", a version, the length of a header, the header (a Python
// dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }), and the
// elements. Internal to the library.
#include <string>
#include <string_view>

#include "quipu/core/tensor.h"

namespace quipu::detail {

/// A copy of the array. Throws Error, beginning with `where`, unless the bytes are exactly one
/// file.
Tensor parse_npy(const std::string& where, std::string_view bytes);
/// The number of elements; throws Error, beginning with `where`, for more than can be addressed.
std::int64_t elements_of(const std::string& where, const Shape& shape);
/// All of a file but the elements, which follow in row-major order.
std::string npy_header(const std::string& where, const Tensor& x);

}  // namespace quipu::detail
