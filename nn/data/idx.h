#pragma once
// IDX files, the format in which MNIST and its relatives come.
#include <string>

#include "quipu/core/tensor.h"

namespace quipu::nn {

/// The array of an IDX file, gzipped or not, on the CPU: bytes as u8, the other types as the next
/// wider one that a tensor can have. Throws Error, with the path, when the file is not exactly what
/// the format wants.
Tensor read_idx(const std::string& path);

}  // namespace quipu::nn
