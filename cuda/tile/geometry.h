#pragma once
// How kernels index several views of one shape together. The host merges dimensions where strides
// allow it and splits what exceeds 32-bit positions; a thread finds its element from its position
// by multiplications.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>

#include "quipu/core/dispatch/view.h"
#include "quipu/cuda/launch.h"

namespace quipu::detail::on_cuda {

/// Threads of a block. Kernels say `__launch_bounds__(block_threads, 1)`: without the 1 the
/// assembler would rather spill a register or two than let one block fewer run at a time.
inline constexpr unsigned block_threads = 256;

/// The number of blocks that gives each of n positions a thread.
inline unsigned blocks_for(std::int64_t n, std::int64_t threads = block_threads) {
  return static_cast<unsigned>((n + threads - 1) / threads);
}

/// The strides of N views of one shape, in elements.
template <int N>
struct Layout {
  Shape shape;
  std::array<Strides, N> strides;
  std::array<std::int64_t, N> starts{};  // where the first element of each lies
  std::int64_t first = 0;                // its row-major position in the whole

  /// The same positions with as few dimensions as the strides allow, at least one. Where
  /// `any_order`, positions come in the order in which the first view lies in memory.
  Layout merged(bool any_order = true) const {
    Layout sorted = without_ones();
    if (any_order) sorted.sort();
    Layout result;
    result.starts = starts;
    for (int d = 0; d < sorted.shape.size(); ++d) {
      const int last = result.shape.size() - 1;
      bool fits = last >= 0;
      for (std::size_t v = 0; v < N && fits; ++v) {
        fits = result.strides[v][last] == sorted.strides[v][d] * sorted.shape[d];
      }
      if (fits) {
        result.shape[last] *= sorted.shape[d];
        for (std::size_t v = 0; v < N; ++v) result.strides[v][last] = sorted.strides[v][d];
      } else {
        result.push(sorted, d);
      }
    }
    return result;
  }

  /// Calls f(part) for parts of at most 2^31 - 1 positions each, in order.
  template <class F>
  void for_each_part(F f) const {
    constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
    if (numel(shape) <= most) return f(*this);
    int d = 0;
    while (shape[d] == 1) ++d;
    Layout front = *this, back = *this;
    front.shape[d] = shape[d] / 2;
    back.shape[d] = shape[d] - front.shape[d];
    back.first += numel(front.shape);
    for (std::size_t v = 0; v < N; ++v) back.starts[v] += front.shape[d] * strides[v][d];
    front.for_each_part(f);
    back.for_each_part(f);
  }

 private:
  void push(const Layout& from, int d) {
    shape.push_back(from.shape[d]);
    for (std::size_t v = 0; v < N; ++v) strides[v].push_back(from.strides[v][d]);
  }
  Layout without_ones() const {
    Layout result;
    for (int d = 0; d < shape.size(); ++d) {
      if (shape[d] != 1) result.push(*this, d);
    }
    if (!result.shape.empty()) return result;
    result.shape.push_back(1);
    for (Strides& s : result.strides) s.push_back(1);
    return result;
  }
  /// By falling stride of the first view; equal ones stay as they were.
  void sort() {
    for (int d = 1; d < shape.size(); ++d) {
      for (int to = d; to > 0 && std::abs(strides[0][to - 1]) < std::abs(strides[0][to]); --to) {
        std::swap(shape[to - 1], shape[to]);
        for (Strides& s : strides) std::swap(s[to - 1], s[to]);
      }
    }
  }
};

/// Division of a number below 2^31 by one that the host knows.
struct Divider {
  Divider() = default;
  explicit Divider(std::uint32_t d)
      : divisor(d), shift(static_cast<std::uint32_t>(std::bit_width(d - 1))) {
    const std::uint64_t power = std::uint64_t{1} << shift;
    multiplier = static_cast<std::uint32_t>((((power - d) << 32) / d) + 1);
  }
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
  std::uint32_t divisor = 1, multiplier = 1, shift = 0;
};

/// A layout as a kernel gets it: at most 2^31 - 1 positions.
template <int N>
struct Walk {
  Walk() = default;
  explicit Walk(const Layout<N>& layout) : dims(layout.shape.size()) {
    for (int d = 0; d < dims; ++d) {
      size[d] = Divider(static_cast<std::uint32_t>(layout.shape[d]));
      for (std::size_t v = 0; v < N; ++v) stride[v][d] = layout.strides[v][d];
    }
  }
  /// Where a position lies in each view, in elements.
  __device__ __forceinline__ void find(std::uint32_t position, std::int64_t (&at)[N]) const {
    for (int v = 0; v < N; ++v) at[v] = 0;
    for (int d = dims - 1; d > 0; --d) {
      const std::uint32_t above = size[d].quotient(position);
      const std::int64_t index = position - above * size[d].divisor;
      for (int v = 0; v < N; ++v) at[v] += index * stride[v][d];
      position = above;
    }
    for (int v = 0; v < N; ++v) at[v] += position * stride[v][0];
  }
  int dims = 0;
  Divider size[max_dims];
  std::int64_t stride[N][max_dims] = {};
};

/// The bytes that lie `elements` elements behind the start of a view.
inline char* address(const View& v, std::int64_t elements) {
  return v.as<char>() + elements * static_cast<std::int64_t>(size_of(v.dtype));
}

}  // namespace quipu::detail::on_cuda
