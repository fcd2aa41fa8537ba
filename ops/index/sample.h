#pragma once
// sample: class numbers drawn from logits, with temperature, top-k and top-p (nucleus sampling;
// Holtzman et al. 2019, arXiv:1904.09751).
#include "quipu/core/tensor.h"

namespace quipu {

/// How classes are drawn. By default from all of them, with the probabilities of softmax.
struct SampleOptions {
  double temperature = 1;  // logits are divided by it; 0 takes the largest
  std::int64_t top_k = 0;  // draw from the k largest only; 0 from all
  double top_p = 1;        // of those, draw from the fewest most likely that have this share
  Generator* generator = nullptr;  // the default generator unless given
};

/// logits (..., c) -> class numbers (...), i64, one draw a row with probabilities
/// softmax(logits / temperature), filtered by top_k first, then by top_p.
///
/// What a row draws depends on the generator's state, its position and its logits alone. Of equal
/// logits the first is preferred, by temperature 0 and by both filters, so that exactly k classes
/// are left. At least one class passes top_p. A logit of -infinity is never drawn; a row with NaN
/// or +infinity, or with nothing but -infinity, is an error. Temperature 0 draws no random number.
/// No gradient.
Tensor sample(const Tensor& logits, const SampleOptions& options = {});

}  // namespace quipu
