// Sorts the entries of an index by destination, those of one in the order of the axis: a radix sort
// of eight bits a pass from the lowest on, as many passes as the number of destinations has digits.
// A block has a tile of 4096 entries. It counts their digits; one block adds all counts, digit by
// digit and tile by tile, so that each tile knows where its entries of a digit begin; then it moves
// its entries there, in order: ranks within a warp come from ballots. A single tile is sorted by
// one launch. No order depends on a race, and work grows with the entries, whatever their
// destinations. An entry with its destination moves twice a pass, 8 bytes; bound by latency for few
// tiles.
//
// sass count_digits: forbid LD.E ST.E; registers 40; shared 1024; blocks 6
// sass move_entries: forbid LD.E ST.E; registers 56; shared 9216
// sass .: forbid LD.E ST.E; registers 64; shared 9280
#include <algorithm>
#include <bit>

#include "scatter.cuh"

namespace quipu::detail::on_cuda {
namespace {

constexpr unsigned warps = block_threads / warp_size, digits = RowAdds::digits;
static_assert(digits == block_threads, "a thread for each digit");

/// A pass: reads one list, or the index itself, and writes the other.
struct SortPass {
  const SortedEntry* from;  // null: the index
  SortedEntry* to;
  unsigned shift;

  __device__ __forceinline__ SortedEntry read(const ScatterLines& lines, std::uint32_t k) const {
    if (from != nullptr) return from[k];
    const std::int64_t destination = lines.index_at(0, k);
    const bool valid = lines.is_valid(destination, 0, k);
    return {static_cast<std::uint32_t>(valid ? destination : lines.destinations), k};
  }
  __device__ __forceinline__ unsigned digit(const SortedEntry& e) const {
    return e.destination >> shift & (digits - 1);
  }
};

/// The entries of a tile.
struct Tile {
  __device__ __forceinline__ Tile(const ScatterLines& lines, unsigned tile)
      : begin(tile * static_cast<unsigned>(RowAdds::tile)),
        end(static_cast<std::uint32_t>(min(std::int64_t{begin} + RowAdds::tile, lines.length))) {}
  std::uint32_t begin, end;
};

struct MoveScratch {
  unsigned next[digits];  // where the next entry of a digit goes
  unsigned counts[warps][digits];
};

/// How often each digit occurs in a tile, into shared memory.
__device__ __forceinline__ void count_tile(const ScatterLines& lines, const SortPass& pass,
                                           const Tile& tile, unsigned* counts) {
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (std::uint32_t k = tile.begin + threadIdx.x; k < tile.end; k += block_threads) {
    atomicAdd(&counts[pass.digit(pass.read(lines, k))], 1u);
  }
  __syncthreads();
}

/// Lanes whose digit is this lane's, of those that have one.
__device__ __forceinline__ unsigned lanes_with(unsigned digit, bool exists) {
  unsigned same = __ballot_sync(all_lanes, exists);
  for (unsigned bit = 1; bit < digits; bit *= 2) {
    const unsigned set = __ballot_sync(all_lanes, (digit & bit) != 0);
    same &= (digit & bit) != 0 ? set : ~set;
  }
  return same;
}

/// Moves the entries of a tile to where s.next says, in order.
__device__ __forceinline__ void move_tile(const ScatterLines& lines, const SortPass& pass,
                                          const Tile& tile, MoveScratch& s) {
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned w = 0; w < warps; ++w) s.counts[w][threadIdx.x] = 0;
  __syncthreads();
  for (std::uint32_t base = tile.begin; base < tile.end; base += block_threads) {
    const std::uint32_t k = base + threadIdx.x;
    const bool exists = k < tile.end;
    const SortedEntry entry = exists ? pass.read(lines, k) : SortedEntry{0, 0};
    const unsigned digit = pass.digit(entry), same = lanes_with(digit, exists);
    const auto before = static_cast<unsigned>(__popc(same & ((1u << lane) - 1u)));
    if (exists && before == 0) s.counts[warp][digit] = static_cast<unsigned>(__popc(same));
    __syncthreads();
    if (exists) {
      unsigned slot = s.next[digit] + before;
      for (unsigned w = 0; w < warp; ++w) slot += s.counts[w][digit];
      pass.to[slot] = entry;
    }
    __syncthreads();
    for (unsigned w = 0; w < warps; ++w) {
      s.next[threadIdx.x] += s.counts[w][threadIdx.x];
      s.counts[w][threadIdx.x] = 0;
    }
    __syncthreads();
  }
}

/// counts (digit, tile)
__global__ void __launch_bounds__(block_threads, 1)
    count_digits(ScatterLines lines, SortPass pass, unsigned* counts) {
  __shared__ unsigned own[digits];
  count_tile(lines, pass, Tile(lines, blockIdx.x), own);
  counts[threadIdx.x * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

/// Replaces all counts by the sum of those before, a digit a thread.
__global__ void __launch_bounds__(block_threads, 1) add_counts(unsigned* counts, unsigned tiles) {
  __shared__ unsigned scratch[warps];
  unsigned* const own = counts + threadIdx.x * tiles;
  unsigned sum = 0, total;
  for (unsigned t = 0; t < tiles; ++t) sum += own[t];
  unsigned before = sum_before<block_threads>(sum, scratch, total);
  for (unsigned t = 0; t < tiles; ++t) {
    const unsigned count = own[t];
    own[t] = before;
    before += count;
  }
}

__global__ void __launch_bounds__(block_threads, 1)
    move_entries(ScatterLines lines, SortPass pass, const unsigned* counts) {
  __shared__ MoveScratch scratch;
  scratch.next[threadIdx.x] = counts[threadIdx.x * gridDim.x + blockIdx.x];
  move_tile(lines, pass, Tile(lines, blockIdx.x), scratch);
}

/// All passes over a single tile.
__global__ void __launch_bounds__(block_threads, 1)
    sort_tile(ScatterLines lines, SortedEntry* first, SortedEntry* second, unsigned bits) {
  __shared__ MoveScratch scratch;
  __shared__ unsigned sums[warps];
  const Tile tile(lines, 0);
  SortPass pass{nullptr, first, 0};
  for (; pass.shift < bits; pass.shift += 8) {
    count_tile(lines, pass, tile, scratch.next);
    unsigned total;
    const unsigned before = sum_before<block_threads>(scratch.next[threadIdx.x], sums, total);
    scratch.next[threadIdx.x] = before;
    move_tile(lines, pass, tile, scratch);
    pass.from = pass.to;
    pass.to = pass.to == first ? second : first;
  }
}

}  // namespace

const SortedEntry* sort_entries(const Queue& queue, const ScatterLines& lines, const RowAdds& cut,
                                void* space) {
  auto* const first = static_cast<SortedEntry*>(space);
  SortedEntry* const second = first + lines.length;
  auto* const counts = reinterpret_cast<unsigned*>(second + lines.length);
  const auto tiles = static_cast<unsigned>(cut.tiles);
  // one behind the last destination stands for invalid indices
  const auto bits = static_cast<unsigned>(
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(lines.destinations, 1))));
  SortPass pass{nullptr, first, 0};
  if (tiles == 1) run(queue, sort_tile, 1, block_threads, 0, lines, first, second, bits);
  for (; pass.shift < bits; pass.shift += 8) {
    if (tiles > 1) {
      run(queue, count_digits, tiles, block_threads, 0, lines, pass, counts);
      run(queue, add_counts, 1, block_threads, 0, counts, tiles);
      run(queue, move_entries, tiles, block_threads, 0, lines, pass, counts);
    }
    pass.from = pass.to;
    pass.to = pass.to == first ? second : first;
  }
  return pass.from;
}

}  // namespace quipu::detail::on_cuda
