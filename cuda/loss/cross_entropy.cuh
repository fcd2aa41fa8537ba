#pragma once
// What the kernels of cross entropy share: which rows count, and the rows of logits.
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/loss/cross_entropy_kernels.h"
#include "quipu/ops/reduce/log_sum_kernels.h"

namespace quipu::detail::on_cuda {

enum { from_logits, from_targets, from_d_logits, from_d_o };  // the views of the rows

/// Which rows count.
struct LossTargets {
  LossTargets(const View& v, std::int64_t classes_of_logits, const CrossEntropyTargets& options)
      : data(v.data),
        dtype(v.dtype),
        classes(classes_of_logits),
        ignores(options.ignored.has_value()),
        ignored(options.ignored.value_or(0)),
        smoothing(options.smoothing) {}
  __device__ __forceinline__ std::int64_t at(std::int64_t offset) const {
    return load_element<std::int64_t>(data, dtype, offset);
  }
  __device__ __forceinline__ bool count(std::int64_t target) const {
    return !ignores || target != ignored;
  }
  const void* data;
  DType dtype;
  std::int64_t classes;
  bool ignores;
  std::int64_t ignored;
  double smoothing;
};

template <class T>
struct LossRows {
  Walk<4> walk;
  std::uint32_t count;
  std::int64_t first;  // the number of the first row
  void* logits;
  DType dtype;
  std::int64_t step;  // of logits within a row
  LossTargets targets;
  T* lse;              // may be null, as losses
  std::int64_t rests;  // offset from a log-sum-exp to its low part
  T* losses;           // one number a row

  template <class Chunk>
  __device__ __forceinline__ ChunkedRow<Chunk> row(std::int64_t start) const {
    return {logits, dtype, start, step, targets.classes};
  }
};

// ---- on the host ----

/// Strides of views of the leading dimensions, one position a row.
inline Layout<4> row_layout(const View& logits, const View& targets, const View& d_logits,
                            const View& d_o) {
  const int dims = targets.dim();
  const Strides none = Dims::filled(dims, 0);
  const auto leading = [&](const View& v) {
    if (!v.defined || v.dim() < dims) return none;
    Strides result = v.strides;
    if (result.size() > dims) result.erase(dims);
    return result;
  };
  return Layout<4>{targets.shape,
                   {leading(logits), targets.strides, leading(d_logits), leading(d_o)}}
      .merged(false);
}

template <class T>
LossRows<T> rows_of(const Layout<4>& part, const View& logits, const View& targets, const View& lse,
                    const View& losses, const CrossEntropyTargets& options) {
  View own = targets;
  own.data = address(targets, part.starts[from_targets]);
  return {Walk<4>(part),
          static_cast<std::uint32_t>(numel(part.shape)),
          part.first,
          address(logits, part.starts[from_logits]),
          logits.dtype,
          logits.strides.back(),
          LossTargets(own, logits.shape.back(), options),
          lse.defined ? lse.as<T>() : nullptr,
          lse.defined ? lse.stride(0) : 0,
          losses.defined ? losses.as<T>() : nullptr};
}

}  // namespace quipu::detail::on_cuda
