// The largest or smallest entry along an axis. x is read once, 16 bytes at a time where it is dense
// along the axis, which bounds it. Lines side by side
// have a thread each; lines along the dense dimension a warp, or a block where they are long. Few
// long lines are split into pieces (split-K), by shape alone; the best of each piece goes through
// the stream's scratch. The order (by value, NaN first, then by index) is strict: the result is
// unique.
//
// sass search_pieces<.*Packed: need LDG.E.128; forbid LD.E ST.E; registers 64; shared 128
// sass (search|compare)_pieces: forbid LD.E ST.E; registers 64; shared 128
#include <algorithm>
#include <optional>

#include "quipu/cuda/pointwise/pointwise.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/reduce/kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_x, from_values, from_index };  // the views of the lines

template <class T>
struct alignas(16) Candidate {  // moves at once
  T value;
  long long index;  // -1: none yet
  __device__ __forceinline__ Candidate from_lane(int lanes) const {
    return {__shfl_xor_sync(all_lanes, value, lanes), __shfl_xor_sync(all_lanes, index, lanes)};
  }
};

/// The better of two, of which either may be none.
template <class T>
__device__ __forceinline__ Candidate<T> better(const Candidate<T>& a, const Candidate<T>& b,
                                               bool largest) {
  if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  const bool equal = a_is_nan ? b_is_nan : a.value == b.value;
  if (equal) return a.index < b.index ? a : b;
  const bool beats = a_is_nan || (!b_is_nan && (largest ? a.value > b.value : a.value < b.value));
  return beats ? a : b;
}

struct Search {
  Walk<3> walk;
  std::uint32_t lines;
  std::int64_t length, step, piece;  // entries of x; entries that one team looks at
  void* x;
  DType x_type;
  void* values;  // may be null, as the next one
  DType values_type;
  std::int64_t* index;
  void* found;  // of the pieces, where there are several
  bool largest;
};

template <class T>
__device__ __forceinline__ void store_result(const Search& s, std::uint32_t line,
                                             const Candidate<T>& best) {
  std::int64_t at[3];
  s.walk.find(line, at);
  if (s.values != nullptr) store_element(s.values, s.values_type, at[from_values], best.value);
  if (s.index != nullptr) s.index[at[from_index]] = best.index;
}

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 4) search_pieces(Search s) {
  __shared__ Candidate<T> scratch[block_threads / warp_size];
  const Team<team> self;
  const std::int64_t begin = blockIdx.y * s.piece;
  Candidate<T> best{T(0), -1};
  if (self.line < s.lines) {
    std::int64_t at[3];
    s.walk.find(self.line, at);
    const ChunkedRow<Chunk> row(s.x, s.x_type, at[from_x], s.step, s.length);
    const auto compare = [&](T value, std::int64_t k) {
      best = better(best, {value, k}, s.largest);
    };
    const bool last = blockIdx.y + 1 == gridDim.y;
    row.template each_entry<team>(self.thread, compare, begin, last ? row.no_end : begin + s.piece);
  }
  const auto combine = [&](const Candidate<T>& a, const Candidate<T>& b) {
    return better(a, b, s.largest);
  };
  if constexpr (team > 1) best = fold_team<team>(best, scratch, combine);
  if (self.line >= s.lines || self.thread != 0) return;
  if (s.found != nullptr) {
    static_cast<Candidate<T>*>(s.found)[blockIdx.y * s.lines + self.line] = best;
  } else {
    store_result(s, self.line, best);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1) compare_pieces(Search s, unsigned pieces) {
  const std::uint32_t line = blockIdx.x * block_threads + threadIdx.x;
  if (line >= s.lines) return;
  const auto* found = static_cast<const Candidate<T>*>(s.found);
  Candidate<T> best{T(0), -1};
  for (unsigned p = 0; p < pieces; ++p) best = better(best, found[p * s.lines + line], s.largest);
  store_result(s, line, best);
}

/// How many pieces lines are cut into: some hundred blocks, no piece of less than 4096 entries.
std::int64_t pieces_for(std::int64_t blocks, std::int64_t lines, std::int64_t length) {
  const auto scratch = static_cast<std::int64_t>(scratch_bytes / sizeof(Candidate<double>));
  const std::int64_t most = std::min({256 / blocks, length / 4096, scratch / lines});
  return std::max<std::int64_t>(1, most);
}

template <class T, class Chunk, unsigned team>
void run_search(const Queue& queue, Search s) {
  const unsigned blocks = blocks_for(s.lines, Team<team>::per_block);
  const std::int64_t pieces = pieces_for(blocks, s.lines, s.length);
  s.piece = (s.length + pieces - 1) / pieces;
  s.piece = (s.piece + Chunk::count - 1) / Chunk::count * Chunk::count;
  const unsigned used = blocks_for(s.length, s.piece);
  std::optional<Scratch> scratch;
  if (used > 1) s.found = scratch.emplace(queue).data();
  run(queue, search_pieces<T, Chunk, team>, dim3(blocks, used), block_threads, 0, s);
  if (used > 1) run(queue, compare_pieces<T>, blocks_for(s.lines), block_threads, 0, s, used);
}

void extreme(View x, View values, View index, int axis, bool largest) {
  if (x.numel() == 0) return;
  const Queue queue(x);
  const Strides none = Dims::filled(x.dim(), 0);
  Layout<3> all{
      x.shape,
      {x.strides, values.defined ? values.strides : none, index.defined ? index.strides : none}};
  all.shape.erase(axis);
  for (Strides& s : all.strides) s.erase(axis);
  const std::int64_t length = x.size(axis);
  const bool packed = has_chunked_rows(x, axis);
  // Lines side by side: neighbouring threads read neighbouring entries.
  const bool aside = length <= 8 || (std::abs(x.stride(axis)) != 1 && numel(all.shape) >= 32);
  all.merged().for_each_part([&](const Layout<3>& part) {
    const Search s{
        Walk<3>(part), static_cast<std::uint32_t>(numel(part.shape)),
        length,        x.stride(axis),
        length,        address(x, part.starts[from_x]),
        x.dtype,       values.defined ? address(values, part.starts[from_values]) : nullptr,
        values.dtype,  index.defined ? index.as<std::int64_t>() + part.starts[from_index] : nullptr,
        nullptr,       largest};
    if (packed && !aside) {
      return with_packed(x.dtype, [&]<class T, class E>(Packed<T, E>) {
        length <= 1024 ? run_search<T, Packed<T, E>, warp_size>(queue, s)
                       : run_search<T, Packed<T, E>, block_threads>(queue, s);
      });
    }
    with_compute_type(compute_type(x.dtype), [&]<class T>(T) {
      if (aside) return run_search<T, Loose<T>, 1>(queue, s);
      length <= 1024 ? run_search<T, Loose<T>, warp_size>(queue, s)
                     : run_search<T, Loose<T>, block_threads>(queue, s);
    });
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_extreme() {
  extreme_kernel.provide(Variant::cuda, on_cuda::extreme);
}

}  // namespace quipu::detail
