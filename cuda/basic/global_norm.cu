// The norm of all gradients: squares are added in f64, by parts of a fixed number of elements, a
// block a part, whatever tensors it spans. One launch has the tensors of a table, 180 of them,
// which fills the 4 KiB that kernel arguments may have; a part that two tables share is written by
// the first and added to by the second. Tensors that are not dense have a launch of their own. A
// block then adds the parts. All orders are fixed. Every tensor is read once, four elements a
// thread where it is aligned; bound by memory.
//
// sass add_squares: need LDG.E.128; forbid LD.E ST.E; registers 48; shared 64
// sass .: forbid LD.E ST.E; registers 64; shared 64
#include <cmath>
#include <cstdint>

#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/block.cuh"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/cuda/tile/groups.cuh"
#include "quipu/ops/optimizer_kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

constexpr unsigned group = group_size<float>;

/// Dense tensors, counted through; one without data is left out.
struct NormTable {
  static constexpr int most = 180;
  std::int64_t begin[most];  // rising
  const void* data[most];
  std::uint32_t n[most];
  DType dtype[most];
  bool in_groups[most];  // aligned for them
  std::uint32_t rows = 0;

  /// The first row that ends behind a position.
  __device__ __forceinline__ std::uint32_t row_at(std::int64_t position) const {
    std::uint32_t low = 0, high = rows;
    while (low < high) {
      const std::uint32_t middle = (low + high) / 2;
      if (begin[middle] + n[middle] > position) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  /// The position behind the last row.
  std::int64_t end() const { return begin[rows - 1] + n[rows - 1]; }
};

static_assert(sizeof(NormTable) + 2 * sizeof(std::int64_t) <= 4096);

/// Squares of elements `from` to `to` of a dense tensor of n, this thread's share of the block's.
__device__ __forceinline__ double squares_of(const void* x, DType dtype, bool in_groups,
                                             std::uint32_t n, std::uint32_t from,
                                             std::uint32_t to) {
  double sum = 0;
  for (std::uint32_t i = from / group + threadIdx.x; i * group < to; i += block_threads) {
    if (in_groups && i * group >= from && (i + 1) * group <= to) {
      float values[group];
      load_group(x, dtype, i, n, values);
      for (unsigned j = 0; j < group; ++j) sum += static_cast<double>(values[j]) * values[j];
      continue;
    }
    for (std::uint32_t k = max(i * group, from); k < min((i + 1) * group, to); ++k) {
      const double value = load_element<double>(x, dtype, k);
      sum += value * value;
    }
  }
  return sum;
}

/// The first part that the table has a share in is `first`; the block's is so many behind it.
__global__ void __launch_bounds__(block_threads, 1)
    add_squares(const __grid_constant__ NormTable table, std::int64_t first, double* parts) {
  __shared__ double scratch[block_threads / warp_size];
  const std::int64_t begin = (first + blockIdx.x) * norm_chunk, end = begin + norm_chunk;
  double sum = 0;
  for (std::uint32_t row = table.row_at(begin); row < table.rows && table.begin[row] < end; ++row) {
    if (table.data[row] == nullptr) continue;
    // positions in the row, which 32 bits have: it has fewer than 2^31 elements
    const std::int64_t start = table.begin[row];
    const std::uint32_t n = table.n[row];
    const auto from = static_cast<std::uint32_t>(max(begin - start, std::int64_t{0}));
    const auto to = static_cast<std::uint32_t>(min(end - start, std::int64_t{n}));
    sum += squares_of(table.data[row], table.dtype[row], table.in_groups[row], n, from, to);
  }
  sum = fold_team<block_threads>(sum, scratch, [](double a, double b) { return a + b; });
  if (threadIdx.x != 0) return;
  const bool is_begun = table.begin[0] > begin;  // by the table before
  parts[first + blockIdx.x] = is_begun ? parts[first + blockIdx.x] + sum : sum;
}

/// Adds the squares of a tensor that is not dense to the parts that it has a share in.
__global__ void __launch_bounds__(block_threads, 1)
    add_loose_squares(Walk<1> walk, std::int64_t begin, std::int64_t n, const void* x, DType dtype,
                      double* parts) {
  __shared__ double scratch[block_threads / warp_size];
  const std::int64_t part = begin / norm_chunk + blockIdx.x;
  const auto from = static_cast<std::uint32_t>(max(part * norm_chunk - begin, std::int64_t{0}));
  const auto to = static_cast<std::uint32_t>(min((part + 1) * norm_chunk - begin, n));
  double sum = 0;
  for (std::uint32_t i = from + threadIdx.x; i < to; i += block_threads) {
    std::int64_t at[1];
    walk.find(i, at);
    const double value = load_element<double>(x, dtype, at[0]);
    sum += value * value;
  }
  sum = fold_team<block_threads>(sum, scratch, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) parts[part] += sum;
}

__global__ void __launch_bounds__(block_threads, 1)
    finish_norm(const double* parts, std::int64_t n, void* norm, DType dtype) {
  __shared__ double scratch[block_threads / warp_size];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) sum += parts[i];
  sum = fold_team<block_threads>(sum, scratch, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) store_element(norm, dtype, 0, std::sqrt(sum));
}

/// Calls f(item, piece) for pieces of at most 2^31 - 1 elements of all tensors, in order.
template <class F>
void for_each_piece(const NormList& list, F f) {
  for (const NormItem& item : list.items) {
    const Layout<1> layout = Layout<1>{item.x.shape, {item.x.strides}}.merged(false);
    layout.for_each_part([&](const Layout<1>& piece) { f(item, piece); });
  }
}

bool is_dense(const Layout<1>& piece) {
  return piece.shape.size() == 1 && piece.strides[0][0] == 1;
}

void norm_of_list(const NormList& list, View parts, View norm) {
  const Queue queue(list.items.front().x);
  NormTable table;
  const auto flush = [&] {
    const std::int64_t first = table.begin[0] / norm_chunk;
    const auto blocks = static_cast<unsigned>((table.end() - 1) / norm_chunk - first + 1);
    run(queue, add_squares, blocks, block_threads, 0, table, first, parts.as<double>());
    table.rows = 0;
  };
  for_each_piece(list, [&](const NormItem& item, const Layout<1>& piece) {
    if (table.rows == NormTable::most) flush();
    const std::uint32_t row = table.rows++;
    const char* const data = address(item.x, piece.starts[0]);
    table.begin[row] = item.begin + piece.first;
    table.data[row] = is_dense(piece) ? data : nullptr;
    table.n[row] = static_cast<std::uint32_t>(numel(piece.shape));
    table.dtype[row] = item.x.dtype;
    table.in_groups[row] =
        item.x.dtype != f64 && is_group_aligned(data, item.x.dtype, static_cast<int>(group));
  });
  flush();
  for_each_piece(list, [&](const NormItem& item, const Layout<1>& piece) {
    if (is_dense(piece)) return;
    const std::int64_t begin = item.begin + piece.first, n = numel(piece.shape);
    const std::int64_t touched = (begin + n - 1) / norm_chunk - begin / norm_chunk + 1;
    run(queue, add_loose_squares, static_cast<unsigned>(touched), block_threads, 0, Walk<1>(piece),
        begin, n, address(item.x, piece.starts[0]), item.x.dtype, parts.as<double>());
  });
  run(queue, finish_norm, 1, block_threads, 0, parts.as<const double>(), parts.numel(), norm.data,
      norm.dtype);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_global_norm() {
  global_norm_kernel.provide(Variant::cuda, on_cuda::norm_of_list);
}

}  // namespace quipu::detail
