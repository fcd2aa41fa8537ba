// Adding rows at indices: one index for many lines side by side (the gradient of an embedding). The
// entries are sorted by destination (sort_entries.cu) and cut into pieces of 64, more only where
// there are more than 65536. A warp has a piece and some columns: it adds the rows of a run, which
// is what goes to one destination, to the old values, in the order of the axis, in the compute
// type, rounded once. A run that leaves its piece leaves partial sums, which a second launch adds
// in the order of the pieces. No atomics, same bits always, and no destination that many entries
// have keeps one warp busy while others wait. Bound by rows, which move once, 16 bytes a lane where
// they are dense; beside them each entry is 8 bytes, and partial sums are two rows a piece.
//
// sass add_pieces<.*Dense: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 128; shared 0
// sass add_partials<.*Dense: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 96; shared 0
// sass .: forbid LD.E ST.E; registers 128; shared 0
#include <algorithm>

#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/pointwise/kernels.h"
#include "scatter.cuh"

namespace quipu::detail::on_cuda {
namespace {

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

/// The sorted entries and their pieces.
template <class T>
struct Pieces {
  const SortedEntry* entries;
  T* partials;  // (piece, at its front or back, column)
  std::uint32_t length, count, piece;
  std::int64_t columns;

  __device__ __forceinline__ std::uint32_t begin(std::uint32_t p) const { return p * piece; }
  __device__ __forceinline__ std::uint32_t end(std::uint32_t p) const {
    return p + 1 < count ? (p + 1) * piece : length;
  }
  /// Partial sums of a lane's columns.
  template <int columns_of_lane>
  __device__ __forceinline__ T* partial(std::uint32_t p, bool at_back, std::uint32_t group) const {
    return partials + (2 * std::int64_t{p} + at_back) * columns +
           (std::int64_t{group} * warp_size + threadIdx.x % warp_size) * columns_of_lane;
  }
};

constexpr std::uint32_t nowhere = ~std::uint32_t{0};
constexpr int batch = 4;  // rows in flight

template <int count, class T>
__device__ __forceinline__ void add_to(T (&sums)[count], const T (&values)[count]) {
  for (int j = 0; j < count; ++j) sums[j] = wrapping_sum(sums[j], values[j]);
}

template <class T, class Columns>
__global__ void __launch_bounds__(block_threads, 2)
    add_pieces(ScatterLines lines, Pieces<T> pieces) {
  constexpr int count = Columns::count;
  const std::uint32_t p = blockIdx.y * warps + threadIdx.x / warp_size, group = blockIdx.x;
  if (p >= pieces.count) return;
  const Columns columns(lines, group);
  const std::uint32_t begin = pieces.begin(p), end = pieces.end(p);
  const std::uint32_t before = p > 0 ? pieces.entries[begin - 1].destination : nowhere;
  const std::uint32_t after = p + 1 < pieces.count ? pieces.entries[end].destination : nowhere;
  const auto stays = [&](std::uint32_t d) { return d != before && d != after; };
  std::uint32_t run = nowhere;  // the destination of the run that is being added
  T sums[count];
  const auto close_run = [&] {
    if (run == nowhere) return;
    if (stays(run)) return columns.close(run, sums);
    T* const to = pieces.template partial<count>(p, run != before, group);
    for (int j = 0; j < count; ++j) to[j] = sums[j];
  };
  for (std::uint32_t base = begin; base < end; base += warp_size) {
    const std::uint32_t i = base + threadIdx.x % warp_size;
    const SortedEntry own = i < end ? pieces.entries[i] : SortedEntry{nowhere, 0};
    for (int first = 0; first < static_cast<int>(warp_size); first += batch) {
      T values[batch][count], old[batch][count];
      std::uint32_t destination[batch];
      for (int b = 0; b < batch; ++b) {
        destination[b] = __shfl_sync(all_lanes, own.destination, first + b);
        const std::uint32_t entry = __shfl_sync(all_lanes, own.entry, first + b);
        if (destination[b] >= lines.destinations) continue;
        columns.read(entry, values[b]);
        for (int j = 0; j < count; ++j) old[b][j] = T(0);
        const bool begins = destination[b] != (b > 0 ? destination[b - 1] : run);
        if (begins && stays(destination[b])) columns.open(destination[b], old[b]);
      }
      for (int b = 0; b < batch; ++b) {
        if (destination[b] >= lines.destinations) continue;
        if (destination[b] != run) {
          close_run();
          run = destination[b];
          for (int j = 0; j < count; ++j) sums[j] = old[b][j];
        }
        add_to(sums, values[b]);
      }
    }
  }
  close_run();
}

/// Adds the partial sums of the run that begins in a piece and leaves it.
template <class T, class Columns>
__global__ void __launch_bounds__(block_threads, 1)
    add_partials(ScatterLines lines, Pieces<T> pieces) {
  constexpr int count = Columns::count;
  const std::uint32_t p = blockIdx.y * warps + threadIdx.x / warp_size, group = blockIdx.x;
  if (p + 1 >= pieces.count) return;
  const std::uint32_t begin = pieces.begin(p), end = pieces.end(p);
  const std::uint32_t run = pieces.entries[end].destination;
  if (run >= lines.destinations || pieces.entries[end - 1].destination != run) return;
  if (p > 0 && pieces.entries[begin - 1].destination == run) return;  // it began before
  const Columns columns(lines, group);
  T sums[count], values[batch][count];
  const auto load = [&](std::uint32_t from, bool at_back, T(&to)[count]) {
    const T* const partial = pieces.template partial<count>(from, at_back, group);
    for (int j = 0; j < count; ++j) to[j] = partial[j];
  };
  columns.open(run, sums);
  load(p, true, values[0]);
  add_to(sums, values[0]);
  for (std::uint32_t next = p + 1; next < pieces.count; next += warp_size) {
    const std::uint32_t q = next + threadIdx.x % warp_size;
    const bool in_run = q < pieces.count && pieces.entries[pieces.begin(q)].destination == run;
    const int further = __ffs(static_cast<int>(~__ballot_sync(all_lanes, in_run))) - 1;
    const int here = further < 0 ? static_cast<int>(warp_size) : further;
    for (int first = 0; first < here; first += batch) {
      for (int b = 0; b < batch; ++b) {
        if (first + b < here) load(next + static_cast<unsigned>(first + b), false, values[b]);
      }
      for (int b = 0; b < batch; ++b) {
        if (first + b < here) add_to(sums, values[b]);
      }
    }
    if (here < static_cast<int>(warp_size)) break;
  }
  columns.close(run, sums);
}

template <class T, class Columns>
void run_rows(const Queue& queue, const ScatterLines& lines, const RowAdds& cut,
              const View& space) {
  auto* const partials = space.as<T>();
  const SortedEntry* const entries = sort_entries(queue, lines, cut, partials + cut.partials());
  const Pieces<T> pieces{entries,
                         partials,
                         static_cast<std::uint32_t>(lines.length),
                         static_cast<std::uint32_t>(cut.pieces),
                         static_cast<std::uint32_t>(cut.piece),
                         cut.columns};
  const dim3 grid(blocks_for(lines.count, Columns::count * warp_size),
                  blocks_for(cut.pieces, warps));  // at most 128
  run(queue, add_pieces<T, Columns>, grid, block_threads, 0, lines, pieces);
  if (cut.pieces > 1) run(queue, add_partials<T, Columns>, grid, block_threads, 0, lines, pieces);
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

void add_rows(const Queue& queue, const ScatterLines& lines, const RowAdds& cut,
              const View& space) {
  if (has_dense_rows(lines) && is_floating(lines.o_type)) {
    return with_packed(lines.o_type, [&]<class T, class E>(Packed<T, E>) {
      run_rows<T, DenseColumns<T, E>>(queue, lines, cut, space);
    });
  }
  with_compute_type(compute_type(lines.o_type),
                    [&]<class T>(T) { run_rows<T, LooseColumns<T>>(queue, lines, cut, space); });
}

}  // namespace quipu::detail::on_cuda
