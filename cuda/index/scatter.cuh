#pragma once
// What the kernels that add at indices share.
#include <cstdint>

#include "index_check.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/block.cuh"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/ops/index/gather_kernels.h"
#include "row_adds.h"

namespace quipu::detail::on_cuda {

/// Lines of x along the axis, their indices and destinations. `walk` has all dimensions but the
/// axis.
struct ScatterLines {
  enum From { from_x, from_index, from_o };  // the views of the walk
  Walk<3> walk;
  std::uint32_t count;
  std::int64_t length, destinations;
  const void* x;
  const void* index;
  void* o;
  DType x_type, index_type, o_type;
  std::int64_t x_step, index_step, o_step;
  std::int64_t first, inner;  // row-major number of the first line; lines behind the axis
  bool one_index;             // for all lines
  IndexGuard guard;

  __device__ __forceinline__ std::int64_t index_at(std::int64_t start, std::int64_t k) const {
    return load_element<std::int64_t>(index, index_type, start + k * index_step);
  }
  __device__ __forceinline__ bool is_valid(std::int64_t destination, std::uint32_t line,
                                           std::int64_t k) const {
    const std::int64_t number = first + line;
    const std::int64_t position =
        one_index ? k : (number / inner * length + k) * inner + number % inner;
    return index_is_valid(guard, destination, destinations, position);
  }
};

/// An entry of the axis and where it goes; behind all destinations if its index is not valid.
struct alignas(8) SortedEntry {
  std::uint32_t destination, entry;
};
/// The entries by destination, those of one in the order of the axis. `space` has two lists of
/// them, of which one is returned, and the digits of all tiles.
const SortedEntry* sort_entries(const Queue& queue, const ScatterLines& lines, const RowAdds& cut,
                                void* space);

/// o[destination] += x[k] where one index serves many lines side by side.
void add_rows(const Queue& queue, const ScatterLines& lines, const RowAdds& cut, const View& space);
/// The same where each line has indices of its own.
void add_lines(const Queue& queue, const ScatterLines& lines);
/// Their products, largest or smallest entries likewise.
void join_lines(const Queue& queue, const ScatterLines& lines, Join join);

inline constexpr unsigned most_rows_of_blocks = 65535;  // in the second dimension of a grid

}  // namespace quipu::detail::on_cuda
