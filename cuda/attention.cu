// Softmax attention: which kernels run. Forward is one kernel, by tensor cores where types and
// sizes allow it (attention_mma_forward.cu); backward finds the mean of each row, the sum of o *
// d_o, in a pass that memory bounds, and then makes every gradient from the weights that it finds
// again (attention_tiles.cuh, attention_mma_backward.cu), the gradients of keys and values by
// blocks of keys, those of queries by blocks of queries, so that each element has one owner and no
// sum is shared.
//
// sass find_means: need LDG.E.128; forbid STL LDL LD.E$ ST.E$; registers 56
#include "attention_mma.cuh"
#include "quipu/core/error.h"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace {

constexpr unsigned row_team = 8;  // threads that go through a row

/// mean = the sum of o * d_o in each row.
template <class T, class E>
__global__ void __launch_bounds__(block_threads)
    find_means(Attention<T> a, AttentionView o, std::int64_t all_rows, T* mean) {
  constexpr int count = Packed<T, E>::count;
  const bool packed = o.packed && a.d_o.packed;
  const std::int64_t line =
      std::int64_t{blockIdx.x} * (block_threads / row_team) + threadIdx.x / row_team;
  T sum(0);
  if (line < all_rows) {
    const std::int64_t head = line / a.rows;
    const AttentionPlace place{static_cast<int>(head / a.key_heads),
                               static_cast<int>(head % a.key_heads)};
    const int row = static_cast<int>(line - head * a.rows);
    const std::int64_t from = place.query(a, o, row), up_from = place.query(a, a.d_o, row);
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x % row_team) * count; c < a.e;
         c += static_cast<int>(row_team) * count) {
      if (packed) {
        T out[count], up[count];
        Packed<T, E>::load(o.data, o.dtype, from + c, out);
        Packed<T, E>::load(a.d_o.data, a.d_o.dtype, up_from + c, up);
#pragma unroll
        for (int j = 0; j < count; ++j) sum += out[j] * up[j];
      } else {  // the same terms in the same order
#pragma unroll 1
        for (int j = c; j < min(c + count, a.e); ++j) {
          sum += converted<T>(static_cast<const E*>(o.data)[from + j * o.step]) *
                 converted<T>(static_cast<const E*>(a.d_o.data)[up_from + j * a.d_o.step]);
        }
      }
    }
  }
#pragma unroll
  for (int lanes = row_team / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(all_lanes, sum, lanes);
  }
  if (line < all_rows && threadIdx.x % row_team == 0) mean[line] = sum;
}

// ---- on the host ----

template <class T>
Attention<T> attention_of(const AttentionInputs& in, std::int64_t e) {
  constexpr std::int64_t most = (std::int64_t{1} << 30);
  const std::int64_t key_heads = in.k.size(1), n = in.q.size(2), m = in.k.size(2);
  const std::int64_t group = key_heads > 0 ? in.q.size(1) / key_heads : 0;
  check(group * n < most && m < most, "a head has ", group * n, " queries and ", m,
        " keys, but a device takes at most ", most, " of either");
  Attention<T> a;
  a.q = AttentionView(in.q);
  a.k = AttentionView(in.k);
  if (in.v.defined) a.v = AttentionView(in.v);
  a.scale = static_cast<T>(in.scale);
  a.causal = in.causal;
  a.key_heads = static_cast<int>(key_heads);
  a.group = static_cast<int>(group);
  a.n = static_cast<int>(n);
  a.m = static_cast<int>(m);
  a.d = static_cast<int>(in.q.size(3));
  a.e = static_cast<int>(e);
  a.rows = a.group * a.n;
  a.tokens = Divider(static_cast<std::uint32_t>(std::max(a.n, 1)));
  return a;
}

template <class T>
void set_sums(Attention<T>& a, const LogSums& sums) {
  a.lse = sums.lse.defined ? sums.lse.as<T>() : nullptr;
  a.rest = sums.rest.defined ? sums.rest.as<T>() : nullptr;
}

std::int64_t key_heads_of(const AttentionInputs& in) {
  return in.q.size(0) * in.k.size(1);
}

template <class T>
void forward_as(const AttentionInputs& in, const View& o, const LogSums& sums) {
  Attention<T> a = attention_of<T>(in, o.size(3));
  a.out = AttentionView(o);
  set_sums(a, sums);
  if constexpr (std::is_same_v<T, float>) {
    if (attend_by_fragments(in.q, a, key_heads_of(in))) return;
  }
  attend_by_tiles(in.q, a, key_heads_of(in), AttentionPass::forward);
}

void forward(const AttentionInputs& in, View o, const LogSums& sums) {
  (in.q.dtype == f64 ? forward_as<double> : forward_as<float>)(in, o, sums);
}

template <class T>
void run_means(const View& on, const Attention<T>& a, const View& o, std::int64_t all_rows,
               T* mean) {
  if (all_rows == 0) return;
  with_packed(o.dtype, [&]<class U, class E>(Packed<U, E>) {
    if constexpr (std::is_same_v<T, U>) {
      run(Queue(on), find_means<T, E>, blocks_for(all_rows, block_threads / row_team),
          block_threads, 0, a, AttentionView(o), all_rows, mean);
    }
  });
}

template <class T>
void backward_as(const AttentionInputs& in, const View& o, const LogSums& sums, const View& d_o,
                 const AttentionInputGrads& d, const View& mean) {
  const std::int64_t heads = key_heads_of(in);
  Attention<T> a = attention_of<T>(in, d_o.size(3));
  a.d_o = AttentionView(d_o);
  set_sums(a, sums);
  if (mean.defined) {
    run_means(in.q, a, o, heads * a.rows, mean.as<T>());
    a.mean = mean.as<T>();
  }
  if constexpr (std::is_same_v<T, float>) {
    if (differentiate_by_fragments(in.q, a, d, heads)) return;
  }
  const auto make = [&](const Grad& g, AttentionPass pass) {
    if (!g.wanted() || g.view.numel() == 0) return;
    a.out = AttentionView(g.view);
    a.add = g.add;
    attend_by_tiles(in.q, a, heads, pass);
  };
  make(d.v, AttentionPass::d_v);
  make(d.k, AttentionPass::d_k);
  make(d.q, AttentionPass::d_q);
}

void backward(const AttentionInputs& in, View o, const LogSums& sums, View d_o,
              const AttentionInputGrads& d, View mean, View) {
  (in.q.dtype == f64 ? backward_as<double> : backward_as<float>)(in, o, sums, d_o, d, mean);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_attention() {
  attention_forward.provide(DeviceKind::cuda, on_cuda::forward);
  attention_backward_kernel.provide(DeviceKind::cuda, on_cuda::backward);
}

}  // namespace quipu
