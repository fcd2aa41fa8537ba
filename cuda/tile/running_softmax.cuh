#pragma once
// A running softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).
#include <cmath>
#include <limits>

#include "block.cuh"

namespace quipu::detail::on_cuda {

/// The largest score of a row so far, and the sum of its weights exp(score - largest), or a
/// thread's part of it. NaN is passed over as the largest: it shows in the sum.
template <class T>
struct RunningSoftmax {
  T largest = std::numeric_limits<T>::lowest(), sum = T(0);

  /// Takes in that a further score is `most`; returns the factor that brings earlier sums to the
  /// new maximum, weight_of(difference of both).
  template <class Weight>
  __device__ __forceinline__ T raise(T most, Weight weight_of) {
    const T before = largest;
    largest = most > before ? most : before;
    const T rescale = weight_of(before - largest);
    sum *= rescale;
    return rescale;
  }
  /// Of the numbers of both.
  __device__ __forceinline__ static RunningSoftmax merged(RunningSoftmax a,
                                                          const RunningSoftmax& b) {
    a.raise(b.largest, [](T below) { return std::exp(below); });
    a.sum += b.sum * std::exp(b.largest - a.largest);
    return a;
  }
  __device__ __forceinline__ RunningSoftmax from_lane(int lanes) const {
    return {__shfl_xor_sync(all_lanes, largest, lanes), __shfl_xor_sync(all_lanes, sum, lanes)};
  }
};

}  // namespace quipu::detail::on_cuda
