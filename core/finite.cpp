#include "quipu/core/dispatch/kernels.h"

namespace quipu::detail {

std::int64_t first_nonfinite(View x) {
  const Shape whole = x.shape;
  for (int d = 0; d < x.dim(); ++d) {
    if (x.strides[d] == 0 && x.shape[d] > 1) x.shape[d] = 1;
  }
  std::int64_t found = -1;
  find_nonfinite_kernel(x, View{&found, {}, {}, i64, cpu, true});
  if (found < 0) return -1;
  // Its first repetition is at 0 in the dimensions that repeat it.
  const Strides steps = contiguous_strides(whole);
  std::int64_t index = 0;
  for (int d = x.dim() - 1; d >= 0; --d) {
    index += found % x.shape[d] * steps[d];
    found /= x.shape[d];
  }
  return index;
}

}  // namespace quipu::detail
