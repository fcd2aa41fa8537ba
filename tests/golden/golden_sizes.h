#pragma once
// How large the terms are that a result is summed from: the same formulas with absolute values.
// Rounding is a part of these, however little is left of them.
#include <vector>

#include "quipu/ops/act.h"
#include "quipu/ops/flao/flao.h"
#include "quipu/ops/lrpe/kernels.h"
#include "quipu/ops/tpa_decode/tpa_decode.h"

namespace quipu::testing {

/// Of the output, then of the gradients of the inputs; all f64 and on the CPU.
using Sizes = std::vector<Tensor>;

/// An activation, then a position encoding whose sines and cosines count as 1.
struct SizedRows {
  detail::LrpeKind kind = detail::LrpeKind::none;
  Act act = Act::none;
  std::optional<int> dim = {};

  Tensor forward(const Tensor& x) const;
  /// What is passed to x, from the sizes of the upstream gradient.
  Tensor backward(const Tensor& x, const Tensor& d_o) const;
};

Sizes sizes_of_rows(const SizedRows& rows, const Tensor& x, const Tensor& d_o);
Sizes sizes_of_flao(const FlaoOptions& options, const std::vector<Tensor>& in, const Tensor& d_o);
Sizes sizes_of_tpa(const TpaOptions& options, const std::vector<Tensor>& in, const Tensor& d_o);

}  // namespace quipu::testing
