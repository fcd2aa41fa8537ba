#pragma once
// A running softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).
#include <limits>

#include "quipu/cuda/launch.h"

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
};

}  // namespace quipu::detail::on_cuda
