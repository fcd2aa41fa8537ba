#pragma once
// Matrix products.
#include <string>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

/// a (..., m, k), b (..., k, n) -> (..., m, n). Batch dimensions broadcast; a vector a counts as
/// one row, a vector b as one column, and the result lacks that dimension. Floating types only,
/// both the same; sums are f32 (f64 for f64). Transposed operands are read as they lie. Keeps each
/// side that the other's gradient needs.
Tensor matmul(const Tensor& a, const Tensor& b);

/// bias + a b, with a bias that broadcasts to the product.
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b);
/// All products of an entry of a (m) and one of b (n): (m, n).
Tensor outer(const Tensor& a, const Tensor& b);
/// Products summed as letters say, a letter a dimension: "ij,jk->ik" is a matrix product, "bii->bi"
/// a diagonal, "ij->" a sum. Without "->" the result has the letters that stand once, in
/// alphabetical order; "..." is whatever dimensions are left, which broadcast. Two operands at a
/// time, from the left, by matmul. Floating types.
Tensor einsum(const std::string& formula, const std::vector<Tensor>& operands);

/// Lets products of f32 matrices on GPUs round their operands to TF32, which has 10 bits behind the
/// point instead of 23: several times faster, each term with a relative error of up to 2^-10. Off
/// until it is called; holds for all threads, for `matmul`, `linear` and their gradients. Products
/// on the CPU and of other types stay as they are.
void allow_tf32(bool allowed);
/// What was said last.
bool tf32_allowed() noexcept;

}  // namespace quipu
