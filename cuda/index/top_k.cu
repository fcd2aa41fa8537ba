// The best entries along an axis, a block a line. Radix select finds the key of the k-th best: a
// histogram of eight bits at a time, among the entries that agree in the digits before. Better
// entries are listed, and as many of the equal ones as are wanted, lowest index first; the list is
// sorted in shared memory, or in the workspace where k is large, by a bitonic network that works
// for any length. A line is read once a digit, 16 bytes at a time where it is dense, wherever it
// begins, mostly from the L2 cache, and once more for the list. The order is strict (by value, then
// by index), which makes the result unique.
//
// sass best_of_lines<.*Packed: need LDG.E.128 LDS.128; registers 64
// sass best_of_lines: forbid LD.E ST.E; registers 64; shared 1280
#include <algorithm>

#include "quipu/cuda/pointwise/pointwise.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/radix.cuh"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/index/top_k_kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_x, from_values, from_indices };

constexpr unsigned warps = block_threads / warp_size;

struct alignas(16) Entry {  // moves at once
  std::uint64_t key;
  std::int64_t index;
  __device__ __forceinline__ bool goes_before(const Entry& other) const {
    return key != other.key ? key < other.key : index < other.index;
  }
};

struct Lines {
  Walk<3> walk;
  std::uint32_t count;
  std::int64_t length, k;
  void* x;
  DType x_type;
  void* values;
  std::int64_t* indices;
  std::int64_t x_step, value_step, index_step;
  Entry* workspace;  // for lists that shared memory cannot hold
  bool largest;

  template <class Chunk>
  __device__ __forceinline__ ChunkedRow<Chunk> row(std::int64_t start) const {
    return {x, x_type, start, x_step, length};
  }
  template <class T>
  __device__ __forceinline__ std::uint64_t key(std::int64_t start, std::int64_t i) const {
    return key_of(load_element<T>(x, x_type, start + i * x_step), largest);
  }
};

/// The k-th best: the last entry of the list.
struct Threshold {
  std::uint64_t key;    // of the last entry
  std::int64_t equals;  // how many entries with this key are on the list
};

struct SelectScratch {
  unsigned histogram[256];
  std::int64_t sums[warps];
  unsigned slots[2][warps];
  unsigned better;
  unsigned digit;
  std::int64_t before;
};

template <class Chunk>
__device__ __forceinline__ Threshold select_threshold(const Lines& lines, std::int64_t start,
                                                      SelectScratch& work) {
  static_assert(block_threads == 256, "a thread for each value of a digit");
  using T = typename Chunk::Number;
  Threshold threshold{0, lines.k};
  for (int shift = 8 * key_digits<T> - 8; shift >= 0; shift -= 8) {
    work.histogram[threadIdx.x] = 0;
    __syncthreads();
    lines.row<Chunk>(start).template each_entry<block_threads>(threadIdx.x, [&](T x, std::int64_t) {
      const std::uint64_t key = key_of(x, lines.largest);
      if (((key ^ threshold.key) >> shift) <= 255) {
        atomicAdd(&work.histogram[key >> shift & 255], 1u);
      }
    });
    __syncthreads();
    const std::int64_t own = work.histogram[threadIdx.x];
    std::int64_t total;
    const std::int64_t before = sum_before<block_threads>(own, work.sums, total);
    if (before < threshold.equals && threshold.equals <= before + own) {  // one thread
      work.digit = threadIdx.x;
      work.before = before;
    }
    __syncthreads();
    threshold.key |= std::uint64_t{work.digit} << shift;
    threshold.equals -= work.before;
  }
  return threshold;
}

/// The k best, in any order.
template <class T>
__device__ __forceinline__ void collect(const Lines& lines, std::int64_t start,
                                        const Threshold& threshold, Entry* list,
                                        SelectScratch& work) {
  if (threadIdx.x == 0) work.better = 0;
  __syncthreads();
  std::int64_t equals = 0;
  int buffer = 0;
  for (std::int64_t base = 0; base < lines.length; base += block_threads, buffer ^= 1) {
    const std::int64_t i = base + threadIdx.x;
    const bool exists = i < lines.length;
    const std::uint64_t key = exists ? lines.key<T>(start, i) : 0;
    const bool is_equal = exists && key == threshold.key;
    const Slots slots = slots_in_order<block_threads>(is_equal, work.slots[buffer]);
    if (exists && key < threshold.key) list[atomicAdd(&work.better, 1u)] = {key, i};
    if (is_equal && equals + slots.own < threshold.equals) {
      list[lines.k - threshold.equals + equals + slots.own] = {key, i};
    }
    equals += slots.total;
  }
}

/// Compares and swaps towards the front only, so entries behind the end need not exist.
__device__ __forceinline__ void sort(Entry* list, std::int64_t n) {
  const auto order = [&](std::int64_t a, std::int64_t b) {
    if (b >= n || !list[b].goes_before(list[a])) return;
    const Entry first = list[b];
    list[b] = list[a];
    list[a] = first;
  };
  std::int64_t pairs = 1;
  while (2 * pairs < n) pairs *= 2;
  for (std::int64_t half = 1; half < n; half *= 2) {
    for (std::int64_t t = threadIdx.x; t < pairs; t += block_threads) {
      const std::int64_t begin = t / half * 2 * half, offset = t % half;
      order(begin + offset, begin + 2 * half - 1 - offset);
    }
    __syncthreads();
    for (std::int64_t distance = half / 2; distance > 0; distance /= 2) {
      for (std::int64_t t = threadIdx.x; t < pairs; t += block_threads) {
        const std::int64_t first = t / distance * 2 * distance + t % distance;
        order(first, first + distance);
      }
      __syncthreads();
    }
  }
}

template <class Chunk, bool in_workspace>
__global__ void __launch_bounds__(block_threads, 1) best_of_lines(Lines lines) {
  using T = typename Chunk::Number;
  __shared__ SelectScratch work;
  Entry* list;
  if constexpr (in_workspace) {
    list = lines.workspace + blockIdx.x * lines.length;
  } else {
    list = dynamic_shared<Entry>();
  }
  for (std::uint32_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    std::int64_t at[3];
    lines.walk.find(line, at);
    if (lines.k < lines.length) {
      collect<T>(lines, at[from_x], select_threshold<Chunk>(lines, at[from_x], work), list, work);
    } else {
      for (std::int64_t i = threadIdx.x; i < lines.length; i += block_threads) {
        list[i] = {lines.key<T>(at[from_x], i), i};
      }
    }
    __syncthreads();
    sort(list, lines.k);
    for (std::int64_t i = threadIdx.x; i < lines.k; i += block_threads) {
      const std::int64_t index = list[i].index;
      const T value = load_element<T>(lines.x, lines.x_type, at[from_x] + index * lines.x_step);
      store_element(lines.values, lines.x_type, at[from_values] + i * lines.value_step, value);
      lines.indices[at[from_indices] + i * lines.index_step] = index;
    }
    __syncthreads();
  }
}

void find(View x, View values, View indices, View workspace, int axis, bool largest) {
  const Queue queue(x);
  Layout<3> all{x.shape, {x.strides, values.strides, indices.strides}};
  all.shape.erase(axis);
  for (Strides& s : all.strides) s.erase(axis);
  const std::int64_t k = values.size(axis);
  const bool in_workspace = workspace.numel() > 0, packed = has_chunked_rows(x, axis);
  all.merged().for_each_part([&](const Layout<3>& part) {
    const Lines lines{Walk<3>(part),
                      static_cast<std::uint32_t>(numel(part.shape)),
                      x.size(axis),
                      k,
                      address(x, part.starts[from_x]),
                      x.dtype,
                      address(values, part.starts[from_values]),
                      indices.as<std::int64_t>() + part.starts[from_indices],
                      x.stride(axis),
                      values.stride(axis),
                      indices.stride(axis),
                      in_workspace ? workspace.as<Entry>() : nullptr,
                      largest};
    const unsigned blocks =
        in_workspace ? std::min(lines.count, static_cast<std::uint32_t>(workspace.size(0)))
                     : lines.count;
    const std::size_t shared = in_workspace ? 0 : static_cast<std::size_t>(k) * sizeof(Entry);
    const auto run_as = [&]<class Chunk>(Chunk) {
      run(queue, best_of_lines<Chunk, false>, blocks, block_threads, shared, lines);
    };
    if (packed && !in_workspace) return with_packed(x.dtype, run_as);
    with_compute_type(compute_type(x.dtype), [&]<class T>(T) {
      if (!in_workspace) return run_as(Loose<T>{});
      run(queue, best_of_lines<Loose<T>, true>, blocks, block_threads, 0, lines);
    });
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_top_k() {
  top_k_kernel.provide(Variant::cuda, on_cuda::find);
}

}  // namespace quipu::detail
