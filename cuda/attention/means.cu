// The first pass of backward of softmax attention: the row sums of o * d_o (D in FlashAttention-2).
// Eight threads have a row, 16 bytes each at a time; o and d_o are read once. Bound by memory. On
// the way it finds the sizes of d_o and clears the turns that the second pass takes.
//
// sass find_means: need LDG.E.128; forbid STL LDL LD.E$ ST.E$; registers 56
#include "attention.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail::on_cuda {
namespace {

constexpr unsigned row_team = 8;  // threads of a row

template <class T, class E>
__global__ void __launch_bounds__(block_threads)
    find_means(Attention<T> a, AttentionView o, std::int64_t all_rows, AttentionMeans<T> to) {
  constexpr int count = Packed<T, E>::count;
  const bool packed = o.packed && a.d_o.packed;
  const std::int64_t line =
      std::int64_t{blockIdx.x} * (block_threads / row_team) + threadIdx.x / row_team;
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (thread < to.turn_count) to.turns[thread] = 0;
  T sum(0), size(0);
  if (line < all_rows) {
    const std::int64_t head = line / a.rows;
    const HeadOffsets offsets{static_cast<int>(head / a.key_heads),
                              static_cast<int>(head % a.key_heads)};
    const int row = static_cast<int>(line - head * a.rows);
    const std::int64_t from = offsets.query(a, o, row), up_from = offsets.query(a, a.d_o, row);
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x % row_team) * count; c < a.e;
         c += static_cast<int>(row_team) * count) {
      if (packed) {
        T out[count], up[count];
        Packed<T, E>::load(o.data, o.dtype, from + c, out);
        Packed<T, E>::load(a.d_o.data, a.d_o.dtype, up_from + c, up);
#pragma unroll
        for (int j = 0; j < count; ++j) {
          sum += out[j] * up[j];
          size += std::abs(up[j]);
        }
      } else {  // the same terms in the same order
#pragma unroll 1
        for (int j = c; j < min(c + count, a.e); ++j) {
          const T up = converted<T>(static_cast<const E*>(a.d_o.data)[up_from + j * a.d_o.step]);
          sum += converted<T>(static_cast<const E*>(o.data)[from + j * o.step]) * up;
          size += std::abs(up);
        }
      }
    }
  }
#pragma unroll
  for (int lanes = row_team / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(all_lanes, sum, lanes);
    size += __shfl_xor_sync(all_lanes, size, lanes);
  }
  if (line >= all_rows || threadIdx.x % row_team != 0) return;
  to.mean[line] = sum;
  if (to.sizes != nullptr) to.sizes[line] = size;
}

}  // namespace

template <class T>
void attention_means(const View& on, const Attention<T>& a, const View& o, std::int64_t all_rows,
                     const AttentionMeans<T>& to) {
  if (all_rows == 0) return;
  with_packed(o.dtype, [&]<class U, class E>(Packed<U, E>) {
    if constexpr (std::is_same_v<T, U>) {
      run(Queue(on), find_means<T, E>, blocks_for(all_rows, block_threads / row_team),
          block_threads, 0, a, AttentionView(o), all_rows, to);
    }
  });
}

template void attention_means(const View&, const Attention<float>&, const View&, std::int64_t,
                              const AttentionMeans<float>&);
template void attention_means(const View&, const Attention<double>&, const View&, std::int64_t,
                              const AttentionMeans<double>&);

}  // namespace quipu::detail::on_cuda
