// Adding at indices. Every destination has one owner, which adds what goes there in the order of
// the axis, from the value that lies there, in the compute type, and rounds once: no atomics, same
// bits always. Three ways, chosen by shape:
// - One index for many lines side by side (the gradient of an embedding): a block owns a range of
//   places and some columns. It reads all indices and lists those in its range; then each of its
//   warps goes through the list for its own places and adds rows, 16 bytes a lane where they lie
//   densely. Rows move once; indices are read by every block, from the L2 cache.
// - Short lines with own indices: one thread an entry. The first entry of each place adds up all.
// - Long lines with own indices: a block owns 256 places of a line, one a thread; entries in its
//   range go through shared memory, and each thread picks its own.
#include <algorithm>
#include <cstdint>

#include "block.cuh"
#include "index_check.cuh"
#include "pointwise_map.cuh"
#include "quipu/ops/gather_kernels.h"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace {

enum { from_x, from_index, from_o };  // the views of the lines

constexpr std::int64_t short_length = 128;
constexpr unsigned list_size = 2048;
constexpr unsigned warps = block_threads / warp_size;
constexpr unsigned most_rows_of_blocks = 65535;  // in the second dimension of a grid

/// Lines of x along the axis, their indices and their destinations. Strides of the axis are apart.
struct Lines {
  Walk<3> walk;
  std::uint32_t count;
  std::int64_t length, places;
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
  __device__ __forceinline__ bool is_valid(std::int64_t place, std::uint32_t line,
                                           std::int64_t k) const {
    const std::int64_t number = first + line;
    const std::int64_t position =
        one_index ? k : (number / inner * length + k) * inner + number % inner;
    return index_is_valid(guard, place, places, position);
  }
};

// ---- one index for many lines ----

/// Four columns a lane, of any strides and types.
template <class T>
struct LooseColumns {
  static constexpr int count = 4;
  __device__ __forceinline__ LooseColumns(const Lines& all, std::uint32_t group) : lines(all) {
    for (int j = 0; j < count; ++j) {
      const std::uint32_t line =
          (group * count + static_cast<unsigned>(j)) * warp_size + threadIdx.x % warp_size;
      exists[j] = line < lines.count;
      std::int64_t at[3] = {};
      if (exists[j]) lines.walk.find(line, at);
      x_at[j] = at[from_x];
      o_at[j] = at[from_o];
    }
  }
  __device__ __forceinline__ void read(std::int64_t k, T (&values)[count]) const {
    for (int j = 0; j < count; ++j) {
      values[j] =
          exists[j] ? load_element<T>(lines.x, lines.x_type, x_at[j] + k * lines.x_step) : T(0);
    }
  }
  __device__ __forceinline__ void open(std::int64_t place, T (&sums)[count]) const {
    for (int j = 0; j < count; ++j) {
      sums[j] =
          exists[j] ? load_element<T>(lines.o, lines.o_type, o_at[j] + place * lines.o_step) : T(0);
    }
  }
  __device__ __forceinline__ void close(std::int64_t place, const T (&sums)[count]) const {
    for (int j = 0; j < count; ++j) {
      if (exists[j]) store_element(lines.o, lines.o_type, o_at[j] + place * lines.o_step, sums[j]);
    }
  }
  const Lines& lines;
  std::int64_t x_at[count], o_at[count];
  bool exists[count];
};

/// 16 bytes of a row a lane; x and o are of type E and lie densely.
template <class T, class E>
struct DenseColumns {
  static constexpr int count = Pack<E>::count;
  __device__ __forceinline__ DenseColumns(const Lines& all, std::uint32_t group)
      : lines(all),
        vector(group * warp_size + threadIdx.x % warp_size),
        exists(vector * count < all.count) {}
  __device__ __forceinline__ void unpack(const void* data, std::int64_t i,
                                         T (&values)[count]) const {
    Pack<E> pack{};
    if (exists) pack = load_pack<E>(data, i);
    for (int j = 0; j < count; ++j) values[j] = converted<T>(pack.elements[j]);
  }
  __device__ __forceinline__ void read(std::int64_t k, T (&values)[count]) const {
    unpack(lines.x, k * (lines.x_step / count) + vector, values);
  }
  __device__ __forceinline__ void open(std::int64_t place, T (&sums)[count]) const {
    unpack(lines.o, place * (lines.o_step / count) + vector, sums);
  }
  __device__ __forceinline__ void close(std::int64_t place, const T (&sums)[count]) const {
    Pack<E> pack;
    for (int j = 0; j < count; ++j) pack.elements[j] = converted<E>(sums[j]);
    if (exists) {
      static_cast<uint4*>(lines.o)[place * (lines.o_step / count) + vector] =
          std::bit_cast<uint4>(pack);
    }
  }
  const Lines& lines;
  std::uint32_t vector;
  bool exists;
};

/// Entries that go to a range of places, in order.
struct List {
  std::uint32_t entry[list_size];
  std::uint32_t place[list_size];  // from the start of the range
  unsigned room[2][warps];
};

/// Lists the entries with places in [low, high); gives how many there are, even if the list is too
/// short for them.
__device__ __forceinline__ std::int64_t fill_list(List& list, const Lines& lines, std::int64_t low,
                                                  std::int64_t high, bool checks) {
  constexpr int own = 4;  // entries of a lane at once
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  std::int64_t count = 0;
  int turn = 0;
  for (std::int64_t base = 0; base < lines.length; base += own * block_threads, turn ^= 1) {
    const std::int64_t first = base + warp * own * warp_size + lane;
    std::int64_t places[own];
    unsigned having[own], in_warp = 0;
    for (int j = 0; j < own; ++j) {
      const std::int64_t k = first + j * warp_size;
      places[j] = -1;
      if (k < lines.length) {
        places[j] = lines.index_at(0, k);
        if (checks) lines.is_valid(places[j], 0, k);
      }
      having[j] = __ballot_sync(all_lanes, places[j] >= low && places[j] < high);
      in_warp += static_cast<unsigned>(__popc(having[j]));
    }
    if (lane == 0) list.room[turn][warp] = in_warp;
    __syncthreads();
    std::int64_t slot = count;
    for (unsigned w = 0; w < warps; ++w) {
      slot += w < warp ? list.room[turn][w] : 0u;
      count += list.room[turn][w];
    }
    for (int j = 0; j < own; ++j) {
      const std::int64_t place = slot + __popc(having[j] & ((1u << lane) - 1u));
      slot += __popc(having[j]);
      if ((having[j] >> lane & 1u) == 0 || place >= list_size) continue;
      list.entry[place] = static_cast<std::uint32_t>(first + j * warp_size);
      list.place[place] = static_cast<std::uint32_t>(places[j] - low);
    }
  }
  __syncthreads();
  return count;
}

/// Adds the rows of one place. `matches` are lanes whose entries go there; entry(lane) is the row.
template <class T, class Columns, class Entry>
__device__ __forceinline__ void add_rows(const Columns& columns, T (&sums)[Columns::count],
                                         unsigned matches, Entry entry) {
  constexpr int batch = 4;  // rows on their way at once
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
__global__ void __launch_bounds__(block_threads) add_rows_kernel(Lines lines, std::int64_t range) {
  __shared__ List list;
  const std::int64_t low = blockIdx.x * range, high = min(lines.places, low + range);
  const bool checks = blockIdx.x == 0 && blockIdx.y == 0;
  const std::int64_t listed = fill_list(list, lines, low, high, checks);
  if (listed == 0) return;
  // Too many for the list: every warp looks through all indices instead.
  const bool overfull = listed > list_size;
  const std::int64_t entries = overfull ? lines.length : listed;
  const unsigned lane = threadIdx.x % warp_size;
  const std::uint32_t groups =
      (lines.count + Columns::count * warp_size - 1) / (Columns::count * warp_size);
  for (std::uint32_t group = blockIdx.y; group < groups; group += gridDim.y) {
    const Columns columns(lines, group);
    for (std::int64_t place = low + threadIdx.x / warp_size; place < high; place += warps) {
      T sums[Columns::count];
      bool opened = false;
      for (std::int64_t base = 0; base < entries; base += warp_size) {
        const std::int64_t i = base + lane;
        std::int64_t goes_to = -1;
        if (i < entries) goes_to = overfull ? lines.index_at(0, i) : low + list.place[i];
        const unsigned matches = __ballot_sync(all_lanes, goes_to == place);
        if (matches == 0) continue;
        if (!opened) columns.open(place, sums);
        opened = true;
        add_rows(columns, sums, matches, [&](int from) -> std::int64_t {
          return overfull ? base + from : list.entry[base + from];
        });
      }
      if (opened) columns.close(place, sums);
    }
  }
}

template <class T, class Columns>
void run_rows(const Queue& queue, const Lines& lines) {
  // Every block reads all indices: few blocks along the places, enough to fill a device.
  const std::int64_t range = std::clamp<std::int64_t>((lines.places + 255) / 256, 4 * warps, 256);
  const std::int64_t groups = blocks_for(lines.count, Columns::count * warp_size);
  const dim3 grid(blocks_for(lines.places, range),
                  static_cast<unsigned>(std::min<std::int64_t>(groups, most_rows_of_blocks)));
  run(queue, add_rows_kernel<T, Columns>, grid, block_threads, 0, lines, range);
}

// ---- every line has its own indices ----

/// Thread (line, k).
template <class T>
__global__ void __launch_bounds__(block_threads) add_short_lines(Lines lines) {
  const std::uint32_t line = blockIdx.x * block_threads + threadIdx.x;
  const std::int64_t own = blockIdx.y;
  if (line >= lines.count) return;
  std::int64_t at[3];
  lines.walk.find(line, at);
  const std::int64_t place = lines.index_at(at[from_index], own);
  if (!lines.is_valid(place, line, own)) return;
  for (std::int64_t k = 0; k < own; ++k) {
    if (lines.index_at(at[from_index], k) == place) return;
  }
  const std::int64_t target = at[from_o] + place * lines.o_step;
  T sum = load_element<T>(lines.o, lines.o_type, target);
  for (std::int64_t k = own; k < lines.length; ++k) {
    if (lines.index_at(at[from_index], k) != place) continue;
    sum = wrapping_sum(sum, load_element<T>(lines.x, lines.x_type, at[from_x] + k * lines.x_step));
  }
  store_element(lines.o, lines.o_type, target, sum);
}

template <class T>
__global__ void __launch_bounds__(block_threads) add_long_lines(Lines lines) {
  __shared__ T values[block_threads];
  __shared__ std::uint32_t places[block_threads];
  __shared__ unsigned room[warps];
  const std::int64_t low = static_cast<std::int64_t>(blockIdx.x) * block_threads;
  const std::int64_t own = low + threadIdx.x;
  for (std::uint32_t line = blockIdx.y; line < lines.count; line += gridDim.y) {
    std::int64_t at[3];
    lines.walk.find(line, at);
    const std::int64_t target = at[from_o] + own * lines.o_step;
    T sum(0);
    bool opened = false;
    for (std::int64_t base = 0; base < lines.length; base += block_threads) {
      const std::int64_t k = base + threadIdx.x;
      std::int64_t place = -1;
      if (k < lines.length) {
        place = lines.index_at(at[from_index], k);
        if (blockIdx.x == 0) lines.is_valid(place, line, k);
      }
      const bool mine = place >= low && place < min(lines.places, low + block_threads);
      const Slots slots = slots_in_order<block_threads>(mine, room);
      if (mine) {
        places[slots.own] = static_cast<std::uint32_t>(place - low);
        values[slots.own] = load_element<T>(lines.x, lines.x_type, at[from_x] + k * lines.x_step);
      }
      __syncthreads();
      for (unsigned i = 0; i < slots.total; ++i) {
        if (places[i] != threadIdx.x) continue;
        if (!opened) sum = load_element<T>(lines.o, lines.o_type, target);
        opened = true;
        sum = wrapping_sum(sum, values[i]);
      }
      __syncthreads();
    }
    if (opened) store_element(lines.o, lines.o_type, target, sum);
  }
}

template <class T>
void run_lines(const Queue& queue, const Lines& lines) {
  if (lines.length <= short_length) {
    const dim3 grid(blocks_for(lines.count), static_cast<unsigned>(lines.length));
    return run(queue, add_short_lines<T>, grid, block_threads, 0, lines);
  }
  const dim3 grid(blocks_for(lines.places), std::min(lines.count, most_rows_of_blocks));
  run(queue, add_long_lines<T>, grid, block_threads, 0, lines);
}

// ---- on the host ----

/// Whether rows of x and o are dense, of one type, and lie on 16-byte borders.
bool has_dense_rows(const Lines& lines) {
  const auto width = static_cast<std::int64_t>(16 / size_of(lines.x_type));
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  const bool dense = lines.walk.dims == 1 && lines.walk.stride[from_x][0] == 1 &&
                     lines.walk.stride[from_o][0] == 1;
  return dense && lines.x_type == lines.o_type && lines.count % width == 0 &&
         lines.x_step % width == 0 && lines.o_step % width == 0 && aligned(lines.x) &&
         aligned(lines.o);
}

template <class T>
void run_rows_of_any_type(const Queue& queue, const Lines& lines) {
  if (has_dense_rows(lines)) {
    switch (lines.o_type) {
      case DType::f64: return run_rows<double, DenseColumns<double, double>>(queue, lines);
      case DType::f32: return run_rows<float, DenseColumns<float, float>>(queue, lines);
      case DType::bf16: return run_rows<float, DenseColumns<float, __nv_bfloat16>>(queue, lines);
      case DType::f16: return run_rows<float, DenseColumns<float, __half>>(queue, lines);
      default: break;
    }
  }
  run_rows<T, LooseColumns<T>>(queue, lines);
}

/// `index` is the tensor of indices; `index_strides` are its strides over the shape of x.
void scatter(const View& o, const View& index, const Strides& index_strides, const View& x,
             int axis, bool one_index) {
  if (x.numel() == 0) return;
  const Queue queue(o);
  Layout<3> all{x.shape, {x.strides, index_strides, o.strides}};
  std::int64_t inner = 1;
  for (int d = axis + 1; d < x.dim(); ++d) inner *= x.size(d);
  all.shape.erase(axis);
  for (Strides& s : all.strides) s.erase(axis);
  const IndexGuard guard = index_guard(queue, index, o.size(axis), axis);
  // Few lines do not fill a warp.
  const bool by_rows = one_index && numel(all.shape) >= 8;
  all.merged(false).for_each_part([&](const Layout<3>& part) {
    const Lines lines{Walk<3>(part),
                      static_cast<std::uint32_t>(numel(part.shape)),
                      x.size(axis),
                      o.size(axis),
                      address(x, part.starts[from_x]),
                      address(index, part.starts[from_index]),
                      address(o, part.starts[from_o]),
                      x.dtype,
                      index.dtype,
                      o.dtype,
                      x.stride(axis),
                      index_strides[axis],
                      o.stride(axis),
                      part.first,
                      inner,
                      one_index,
                      guard};
    with_compute_type(compute_type(o.dtype), [&]<class T>(T) {
      by_rows ? run_rows_of_any_type<T>(queue, lines) : run_lines<T>(queue, lines);
    });
  });
}

void scatter_add(View o, View index, View x, int axis) {
  scatter(o, index, index.strides, x, axis, false);
}

void index_add(View o, View index, View x, int axis) {
  Strides along = Dims::filled(x.dim(), 0);
  along[axis] = index.stride(0);
  scatter(o, index, along, x, axis, true);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_scatter() {
  scatter_add_kernel.provide(DeviceKind::cuda, on_cuda::scatter_add);
  index_add_kernel.provide(DeviceKind::cuda, on_cuda::index_add);
}

}  // namespace quipu
