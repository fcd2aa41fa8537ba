#pragma once
// The range of f16 in backward of attention.
#include <cmath>
#include <limits>

#include "quipu/cuda/tile/fragments.cuh"

namespace quipu::detail::on_cuda::attention_mma {

/// The power of two that brings numbers up to `most`, which is finite, into the range of f16.
__device__ __forceinline__ float scale_for(float most) {
  constexpr float largest_scale = 0x1p126f, usual = 0x1p14f;
  const float power = __uint_as_float(__float_as_uint(most) & 0x7f800000u);
  return fminf(usual / power, largest_scale);
}

/// Powers of two that bring the gradients of scores into the range of f16, one for each of a lane's
/// two rows. Sums of products have them as factors.
struct RowScales {
  static constexpr float most = 65000.0f;
  float scale[2] = {0x1p126f, 0x1p126f};

  /// Lowers the scales as far as `d_s` needs it, and multiplies it by them and earlier sums by the
  /// change.
  template <int columns, int tiles>
  __device__ __forceinline__ void apply(float (&d_s)[1][columns][4], float (&sums)[1][tiles][4]) {
    float change[2] = {1.0f, 1.0f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float peak = 0.0f;  // of those that are finite
#pragma unroll
      for (int j = 0; j < 2 * columns; ++j) {
        const float x = std::abs(d_s[0][j / 2][2 * half + j % 2]);
        peak = x <= std::numeric_limits<float>::max() ? fmaxf(peak, x) : peak;
      }
      peak = fold_fragment_row(peak, [](float x, float y) { return fmaxf(x, y); });
      if (peak * scale[half] > most) {
        const float lower = scale_for(peak);
        change[half] = lower / scale[half];
        scale[half] = lower;
      }
#pragma unroll
      for (int j = 0; j < 2 * columns; ++j) d_s[0][j / 2][2 * half + j % 2] *= scale[half];
    }
    if (!__any_sync(all_lanes, change[0] != 1.0f || change[1] != 1.0f)) return;
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[0][j][i] *= change[i / 2];
    }
  }
};

}  // namespace quipu::detail::on_cuda::attention_mma
