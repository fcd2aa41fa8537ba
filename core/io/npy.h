#pragma once
// NumPy's files: one tensor in an .npy, several with names in an .npz.
#include <string>

#include "quipu/core/io/safetensors.h"
#include "quipu/core/tensor.h"

namespace quipu {

/// The array of an .npy file, on the CPU, row-major. Types that a tensor cannot have become the
/// next wider one that it can: i1, i2 and u2 i32, u4 i64; others are an error. Throws Error, with
/// the path and the place, when the file is not exactly what the format wants.
Tensor load_npy(const std::string& path);
/// Writes x, or leaves what was at `path` as it was and throws Error. NumPy has no bf16: an error.
void save_npy(const std::string& path, const Tensor& x);

/// The arrays of an .npz file, compressed or not, in the order of the file, as load_npy reads them.
NamedTensors load_npz(const std::string& path);
/// Writes all tensors uncompressed, as save_npy does.
void save_npz(const std::string& path, const NamedTensors& tensors);

}  // namespace quipu
