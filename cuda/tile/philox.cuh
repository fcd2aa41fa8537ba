#pragma once
// The random words of a call (core/random/philox.h) on the device.
#include "quipu/core/random/philox.h"
#include "quipu/core/random/random.h"
#include "quipu/cuda/launch.h"

namespace quipu::detail::on_cuda {

/// The words of one counter. In a recorded step, seed and first counter are read where each replay
/// leaves them.
__device__ __forceinline__ PhiloxBlock philox_words(const PhiloxState& state,
                                                    std::uint64_t counter) {
  const std::uint64_t seed = state.origin != nullptr ? state.origin[0] : state.seed;
  const std::uint64_t begin = state.origin != nullptr ? state.origin[1] : 0;
  return philox_block(philox_start(begin + state.offset + counter), PhiloxKey(seed));
}

}  // namespace quipu::detail::on_cuda
