#pragma once
// One golden case: a file, read, run in all variants and types, and compared.
#include <string>
#include <vector>

#include "golden_operators.h"

namespace quipu::testing {

/// Output first, then the gradients of the inputs.
std::vector<Tensor> run_golden(const GoldenVariant& variant, const std::vector<Tensor>& in,
                               std::size_t with_gradient, const Tensor& d_o);

/// What is wrong with the case in a file on a device, a line each; an exception is one, too.
std::vector<std::string> failures_of(const std::string& path, Device device);

}  // namespace quipu::testing
