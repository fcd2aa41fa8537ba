#pragma once
// What a back end provides for sampling. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/random/random.h"

namespace quipu::detail {

struct SampleFilter {
  double temperature;
  std::int64_t top_k;  // 0: all
  double top_p;
};

/// logits (..., c) with c > 0 and any strides, o (...) contiguous, i64. Row r draws with the
/// uniform in [0, 1) that the two words 2 r and 2 r + 1 of the stream make. Throws for a row
/// without probabilities.
inline constinit Kernel<void(View logits, View o, SampleFilter, PhiloxState)> sample_kernel{
    "sample", "logits o filter state", Agreement::drawn};

}  // namespace quipu::detail
