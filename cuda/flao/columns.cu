// What gated linear attention does beside its products: the layout of its workspace, the statistics
// of softmax over the sequence (running maximum and sum of each column), and the reduction of
// split-K partial sums. Columns are read once: a thread has one column and every eighth token of a
// part; partial statistics are merged in order. Bound by memory.
//
// sass sum_columns|merge_columns|add_parts: forbid STL LDL LD.E$ ST.E$; registers 64
#include "quipu/cuda/runtime/run.h"
#include "transform.cuh"

namespace quipu::detail {
namespace on_cuda {
using namespace gated;

namespace {

constexpr unsigned strip = warp_size, strip_rows = block_threads / strip;

/// A block has a strip of columns and a part of the tokens of a unit.
template <class T>
__global__ void __launch_bounds__(block_threads, 4)
    sum_columns(FlaoView x, std::uint32_t heads, std::uint32_t tokens, std::uint32_t parts,
                std::uint32_t length, T* sums) {
  __shared__ T largest[strip_rows][strip], sum[strip_rows][strip];
  const FlaoUnit unit(blockIdx.x / parts, heads);
  const std::uint32_t part = blockIdx.x % parts, begin = min(part * length, tokens);
  const std::uint32_t end = min(begin + length, tokens);
  const unsigned column = threadIdx.x % strip, row = threadIdx.x / strip;
  const unsigned c = blockIdx.y * strip + column;
  RunningSoftmax<T> found;
  for (std::uint32_t t = begin + row; t < end && c < x.features; t += strip_rows) {
    const T number = load_element<T>(x.data, x.dtype, x.start(unit, t) + c * x.feature_step);
    found.raise(number, [](T below) { return std::exp(below); });
    found.sum += std::exp(number - found.largest);
  }
  largest[row][column] = found.largest;
  sum[row][column] = found.sum;
  __syncthreads();
  if (row != 0 || c >= x.features) return;
  for (unsigned r = 1; r < strip_rows; ++r) {
    found = RunningSoftmax<T>::merged(found, {largest[r][column], sum[r][column]});
  }
  T* const to = sums + static_cast<std::int64_t>(blockIdx.x) * 2 * x.features;
  to[c] = found.largest;
  to[x.features + c] = found.sum;
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    merge_columns(const T* sums, std::uint32_t parts, std::uint32_t features, std::uint32_t n,
                  T* largest, T* inverse) {
  const std::uint32_t i = blockIdx.x * block_threads + threadIdx.x;
  if (i >= n) return;
  const std::uint32_t unit = i / features, c = i - unit * features;
  RunningSoftmax<T> found;
  for (std::uint32_t part = 0; part < parts; ++part) {
    const T* const from = sums + (static_cast<std::int64_t>(unit) * parts + part) * 2 * features;
    found = RunningSoftmax<T>::merged(found, {from[c], from[features + c]});
  }
  const auto softmax = SoftmaxStats<T>::of(found);
  largest[i] = softmax.largest;
  inverse[i] = softmax.inverse;
}

/// Split-K reduction: (units, size) = the sum of (units, parts, size) over parts, in order. A
/// thread has `width` numbers.
template <class T, unsigned width>
__global__ void __launch_bounds__(block_threads)
    add_parts(const T* sums, std::uint32_t parts, std::int64_t units, std::int64_t size, T* to) {
  const std::int64_t vector = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const std::int64_t vectors = size / width;
  if (vector >= units * vectors) return;
  const std::int64_t unit = vector / vectors, i = vector - unit * vectors;
  Vector<T> total{};
#pragma unroll 4
  for (std::uint32_t part = 0; part < parts; ++part) {
    const std::int64_t at = (unit * parts + part) * vectors + i;
    if constexpr (width == 1) {
      total[0] += sums[at];
    } else {
      const auto term = std::bit_cast<Vector<T>>(reinterpret_cast<const uint4*>(sums)[at]);
      for (unsigned j = 0; j < width; ++j) total[j] += term[j];
    }
  }
  if constexpr (width == 1) {
    to[vector] = total[0];
  } else {
    reinterpret_cast<uint4*>(to)[vector] = std::bit_cast<uint4>(total);
  }
}

// ---- on the host ----

/// Calls f with a zero of a view's type, f64 or f32.
template <class F>
void with_real(const View& v, F f) {
  v.dtype == f64 ? f(0.0) : f(0.0f);
}

void reduce_parts(const View& sums, std::int64_t parts, std::int64_t units, std::int64_t size,
                  const View& to) {
  if (units * size == 0) return;
  with_real(to, [&]<class T>(T) {
    constexpr unsigned width = vector_width<T>;
    const auto is_aligned = [](const View& v) {
      return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
    };
    const bool vectors = size % width == 0 && is_aligned(sums) && is_aligned(to);
    const std::int64_t threads = units * size / (vectors ? width : 1);
    auto* kernel = &add_parts<T, 1>;
    if (vectors) kernel = &add_parts<T, width>;
    run(Queue(to), kernel, blocks_for(threads), block_threads, 0, sums.as<T>(),
        static_cast<std::uint32_t>(parts), units, size, to.as<T>());
  });
}

View dense(const View& workspace, std::int64_t& first, const Shape& shape) {
  View v = workspace;
  v.data = address(workspace, first);
  v.shape = shape;
  v.strides = contiguous_strides(shape);
  first += numel(shape);
  return v;
}

}  // namespace

FlaoWorkspace::FlaoWorkspace(const FlaoSizes& s, const FlaoTransforms& transforms,
                             const View& workspace, bool over_queries, bool over_keys) {
  if (!workspace.defined) return;
  std::int64_t first = 0;
  const std::int64_t size = flao_sum_space(s, over_queries, over_keys);
  if (size > 0) sums = dense(workspace, first, {size});
  const auto columns = [&](const RowTransform& transform, std::int64_t tokens,
                           std::int64_t features) {
    if (!transform.softmax_over_sequence()) return FlaoSoftmaxStats();
    const Shape shape{s.units, features};
    FlaoSoftmaxStats found;
    found.largest = dense(workspace, first, shape);
    found.inverse = dense(workspace, first, shape);
    found.mean = dense(workspace, first, shape);
    found.parts = dense(workspace, first, {s.units, flao_parts(tokens, s.units), 2, features});
    return found;
  };
  q = columns(transforms.q, s.n, s.d);
  k = columns(transforms.k, s.m, s.d);
  v = columns(transforms.v, s.m, s.e);
  g = columns(transforms.g, s.n, s.e);
}

FlaoWorkspace FlaoWorkspace::of_forward(const FlaoSizes& s, const FlaoTransforms& transforms,
                                        const View& workspace, const View& o) {
  const bool in_output = flao_sums_fit_output(s, o.dtype);
  FlaoWorkspace result(s, transforms, workspace, false, !in_output);
  if (!in_output) return result;
  result.sums = o;
  result.sums.dtype = compute_type(o.dtype);
  result.sums.shape = {flao_sum_space(s, false, true)};
  result.sums.strides = {1};
  return result;
}

void find_flao_softmax(const View& x, const RowTransform& transform,
                       const FlaoSoftmaxStats& columns) {
  if (!transform.softmax_over_sequence() || !x.defined || x.numel() == 0) return;
  const Queue queue(x);
  const std::int64_t units = x.size(0) * x.size(1), features = x.size(3);
  const FlaoParts parts(x.size(2), units);
  with_real(columns.largest, [&]<class T>(T) {
    const auto count = static_cast<std::uint32_t>(parts.count);
    const dim3 grid(static_cast<unsigned>(units * parts.count), blocks_for(features, strip));
    run(queue, sum_columns<T>, grid, block_threads, 0, FlaoView(x),
        static_cast<std::uint32_t>(x.size(1)), static_cast<std::uint32_t>(x.size(2)), count,
        static_cast<std::uint32_t>(parts.length), columns.parts.as<T>());
    const auto n = static_cast<std::uint32_t>(units * features);
    run(queue, merge_columns<T>, blocks_for(n), block_threads, 0, columns.parts.as<T>(), count,
        static_cast<std::uint32_t>(features), n, columns.largest.as<T>(), columns.inverse.as<T>());
  });
}

void reduce_flao_means(const FlaoSoftmaxStats& columns) {
  const Shape& shape = columns.parts.shape;
  if (!columns.parts.defined) return;
  reduce_parts(columns.parts, shape[1], shape[0], shape[3], columns.mean);
}

void reduce_flao_parts(const View& sums, std::int64_t parts, const View& to) {
  const std::int64_t units = to.size(0) * to.size(1);
  reduce_parts(sums, parts, units, to.size(2) * to.size(3), to);
}

}  // namespace on_cuda
}  // namespace quipu::detail
