// Adding rows at indices: one index for many lines side by side (the gradient of an embedding). A
// block owns a range of destinations and some columns. It reads all indices and lists those in its
// range; then each of its warps scans the list for its own destinations and adds rows to the old
// values, in the order of the axis, in the compute type, rounded once: no atomics, same bits
// always. Bound by rows, which move once, 16 bytes a lane where they are dense; every block reads
// all indices, from L2.
//
// sass add_rows_kernel<.*Dense: need LDG.E.128 STG.E.128; forbid LD.E ST.E;
//   registers 80; shared 16448
// sass add_rows_kernel: forbid LD.E ST.E; registers 96; shared 16448
#include <algorithm>

#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/pointwise/kernels.h"
#include "scatter.cuh"

namespace quipu::detail::on_cuda {
namespace {

constexpr unsigned list_size = 2048;
constexpr unsigned warps = block_threads / warp_size;

/// Four columns a lane, of any strides and types.
template <class T>
struct LooseColumns {
  static constexpr int count = 4;
  __device__ __forceinline__ LooseColumns(const ScatterLines& all, std::uint32_t group)
      : lines(all) {
    for (int j = 0; j < count; ++j) {
      const std::uint32_t line =
          (group * count + static_cast<unsigned>(j)) * warp_size + threadIdx.x % warp_size;
      exists[j] = line < lines.count;
      std::int64_t at[3] = {};
      if (exists[j]) lines.walk.find(line, at);
      x_at[j] = at[ScatterLines::from_x];
      o_at[j] = at[ScatterLines::from_o];
    }
  }
  __device__ __forceinline__ void read(std::int64_t k, T (&values)[count]) const {
    for (int j = 0; j < count; ++j) {
      values[j] =
          exists[j] ? load_element<T>(lines.x, lines.x_type, x_at[j] + k * lines.x_step) : T(0);
    }
  }
  __device__ __forceinline__ void open(std::int64_t destination, T (&sums)[count]) const {
    for (int j = 0; j < count; ++j) {
      sums[j] = exists[j]
                    ? load_element<T>(lines.o, lines.o_type, o_at[j] + destination * lines.o_step)
                    : T(0);
    }
  }
  __device__ __forceinline__ void close(std::int64_t destination, const T (&sums)[count]) const {
    for (int j = 0; j < count; ++j) {
      if (exists[j]) {
        store_element(lines.o, lines.o_type, o_at[j] + destination * lines.o_step, sums[j]);
      }
    }
  }
  const ScatterLines& lines;
  std::int64_t x_at[count], o_at[count];
  bool exists[count];
};

/// 16 bytes of a row a lane; x and o are dense and of type E.
template <class T, class E>
struct DenseColumns {
  using Chunk = Packed<T, E>;
  static constexpr int count = Chunk::count;
  __device__ __forceinline__ DenseColumns(const ScatterLines& all, std::uint32_t group)
      : lines(all),
        column((group * warp_size + threadIdx.x % warp_size) * count),
        exists(column < all.count) {}
  __device__ __forceinline__ void load(const void* data, std::int64_t i, T (&values)[count]) const {
    for (int j = 0; j < count; ++j) values[j] = T(0);
    if (exists) Chunk::load(data, element_dtype<E>, i, values);
  }
  __device__ __forceinline__ void read(std::int64_t k, T (&values)[count]) const {
    load(lines.x, k * lines.x_step + column, values);
  }
  __device__ __forceinline__ void open(std::int64_t destination, T (&sums)[count]) const {
    load(lines.o, destination * lines.o_step + column, sums);
  }
  __device__ __forceinline__ void close(std::int64_t destination, const T (&sums)[count]) const {
    if (exists) {
      Chunk::put(lines.o, element_dtype<E>, destination * lines.o_step + column, sums, false);
    }
  }
  const ScatterLines& lines;
  std::uint32_t column;
  bool exists;
};

/// Entries that go to a range of destinations, in order.
struct List {
  std::uint32_t entry[list_size];
  std::uint32_t destination[list_size];  // from the start of the range
  unsigned counts[2][warps];
};

/// Lists the entries whose destination is in [low, high); returns how many there are, even if the
/// list is too short for them.
__device__ __forceinline__ std::int64_t fill_list(List& list, const ScatterLines& lines,
                                                  std::int64_t low, std::int64_t high,
                                                  bool checks) {
  constexpr int own = 4;  // entries of a lane at once
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  std::int64_t count = 0;
  int buffer = 0;
  for (std::int64_t base = 0; base < lines.length; base += own * block_threads, buffer ^= 1) {
    const std::int64_t first = base + warp * own * warp_size + lane;
    std::int64_t destinations[own];
    unsigned having[own], in_warp = 0;
    for (int j = 0; j < own; ++j) {
      const std::int64_t k = first + j * warp_size;
      destinations[j] = -1;
      if (k < lines.length) {
        destinations[j] = lines.index_at(0, k);
        if (checks) lines.is_valid(destinations[j], 0, k);
      }
      having[j] = __ballot_sync(all_lanes, destinations[j] >= low && destinations[j] < high);
      in_warp += static_cast<unsigned>(__popc(having[j]));
    }
    if (lane == 0) list.counts[buffer][warp] = in_warp;
    __syncthreads();
    std::int64_t slot = count;
    for (unsigned w = 0; w < warps; ++w) {
      slot += w < warp ? list.counts[buffer][w] : 0u;
      count += list.counts[buffer][w];
    }
    for (int j = 0; j < own; ++j) {
      const std::int64_t own_slot = slot + __popc(having[j] & ((1u << lane) - 1u));
      slot += __popc(having[j]);
      if ((having[j] >> lane & 1u) == 0 || own_slot >= list_size) continue;
      list.entry[own_slot] = static_cast<std::uint32_t>(first + j * warp_size);
      list.destination[own_slot] = static_cast<std::uint32_t>(destinations[j] - low);
    }
  }
  __syncthreads();
  return count;
}

/// Adds the rows of one destination. `matches` are the lanes whose entries go there; entry(lane) is
/// the row.
template <class T, class Columns, class Entry>
__device__ __forceinline__ void add_matches(const Columns& columns, T (&sums)[Columns::count],
                                            unsigned matches, Entry entry) {
  constexpr int batch = 4;  // rows in flight
  while (matches != 0) {
    T values[batch][Columns::count];
    bool is_row[batch];
    for (int b = 0; b < batch; ++b) {
      is_row[b] = matches != 0;
      if (!is_row[b]) continue;
      columns.read(entry(__ffs(static_cast<int>(matches)) - 1), values[b]);
      matches &= matches - 1;
    }
    for (int b = 0; b < batch; ++b) {
      for (int j = 0; j < Columns::count && is_row[b]; ++j) {
        sums[j] = wrapping_sum(sums[j], values[b][j]);
      }
    }
  }
}

template <class T, class Columns>
__global__ void __launch_bounds__(block_threads, 1)
    add_rows_kernel(ScatterLines lines, std::int64_t range) {
  __shared__ List list;
  const std::int64_t low = blockIdx.x * range, high = min(lines.destinations, low + range);
  const bool checks = blockIdx.x == 0 && blockIdx.y == 0;
  const std::int64_t listed = fill_list(list, lines, low, high, checks);
  if (listed == 0) return;
  // Too many for the list: every warp scans all indices instead.
  const bool overfull = listed > list_size;
  const std::int64_t entries = overfull ? lines.length : listed;
  const unsigned lane = threadIdx.x % warp_size;
  const std::uint32_t groups =
      (lines.count + Columns::count * warp_size - 1) / (Columns::count * warp_size);
  for (std::uint32_t group = blockIdx.y; group < groups; group += gridDim.y) {
    const Columns columns(lines, group);
    for (std::int64_t destination = low + threadIdx.x / warp_size; destination < high;
         destination += warps) {
      T sums[Columns::count];
      bool opened = false;
      for (std::int64_t base = 0; base < entries; base += warp_size) {
        const std::int64_t i = base + lane;
        std::int64_t goes_to = -1;
        if (i < entries) goes_to = overfull ? lines.index_at(0, i) : low + list.destination[i];
        const unsigned matches = __ballot_sync(all_lanes, goes_to == destination);
        if (matches == 0) continue;
        if (!opened) columns.open(destination, sums);
        opened = true;
        add_matches(columns, sums, matches, [&](int from) -> std::int64_t {
          return overfull ? base + from : list.entry[base + from];
        });
      }
      if (opened) columns.close(destination, sums);
    }
  }
}

template <class T, class Columns>
void run_rows(const Queue& queue, const ScatterLines& lines) {
  // Every block reads all indices: few blocks along the destinations, enough to fill a device.
  const std::int64_t range =
      std::clamp<std::int64_t>((lines.destinations + 255) / 256, 4 * warps, 256);
  const std::int64_t groups = blocks_for(lines.count, Columns::count * warp_size);
  const dim3 grid(blocks_for(lines.destinations, range),
                  static_cast<unsigned>(std::min<std::int64_t>(groups, most_rows_of_blocks)));
  run(queue, add_rows_kernel<T, Columns>, grid, block_threads, 0, lines, range);
}

/// Whether rows of x and o are dense, of one type, and aligned to 16 bytes.
bool has_dense_rows(const ScatterLines& lines) {
  const auto width = static_cast<std::int64_t>(16 / size_of(lines.x_type));
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const bool dense = lines.walk.dims == 1 && lines.walk.stride[ScatterLines::from_x][0] == 1 &&
                     lines.walk.stride[ScatterLines::from_o][0] == 1;
  return dense && lines.x_type == lines.o_type && lines.count % width == 0 &&
         lines.x_step % width == 0 && lines.o_step % width == 0 && aligned(lines.x) &&
         aligned(lines.o);
}

}  // namespace

void add_rows(const Queue& queue, const ScatterLines& lines) {
  if (has_dense_rows(lines) && is_floating(lines.o_type)) {
    return with_packed(lines.o_type, [&]<class T, class E>(Packed<T, E>) {
      run_rows<T, DenseColumns<T, E>>(queue, lines);
    });
  }
  with_compute_type(compute_type(lines.o_type),
                    [&]<class T>(T) { run_rows<T, LooseColumns<T>>(queue, lines); });
}

}  // namespace quipu::detail::on_cuda
