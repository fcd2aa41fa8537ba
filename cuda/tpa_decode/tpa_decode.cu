// Tensor product attention of one token over a cache of factors: the entry, which chooses kernels,
// by tensor cores (mma*.cu) where types, sizes and strides allow it, else the general ones
// (general*.cu). Where entries are split among blocks (split-K), merge.cu reduces their results.
#include "quipu/core/error.h"
#include "tpa_decode.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

IndexGuard guard_of(const TpaInputs& in) {
  if (!in.lengths.defined) return {};
  return index_guard(Queue(in.aq), in.lengths,
                     {"lengths", detail::concat(", but there are ", in.ak.size(1), " entries")});
}

void forward(const TpaInputs& in, View o, const LogSums& sums, View partial) {
  if (o.size(0) * o.size(1) == 0) return;
  const TpaBlocks blocks = tpa_blocks(o.size(0), in.ak.size(1), in.split);
  const IndexGuard guard = guard_of(in);
  const auto run_with = [&]<class T>(T) {
    const ForwardTarget<T> to(o, sums, partial, blocks, in.value_scale);
    if (!try_tpa_forward_mma(in, o, sums, partial, blocks, guard)) {
      tpa_forward_general(in, to, blocks, guard);
    }
    if (blocks.count > 1) tpa_merge(to, blocks, o.size(0), Queue(o));
  };
  in.aq.dtype == f64 ? run_with(0.0) : run_with(0.0f);
}

void backward(const TpaInputs& in, View o, const LogSums& sums, View d_o, const TpaInputGrads& d,
              View partial) {
  if (d_o.size(0) == 0) return;
  const TpaBlocks blocks = tpa_blocks(d_o.size(0), in.ak.size(1), in.split);
  const auto run_with = [&]<class T>(T) {
    if (!try_tpa_backward_mma(in, o, sums, d_o, d, partial, blocks)) {
      tpa_backward_general<T>(in, o, sums, d_o, d, partial, blocks);
    }
    tpa_add_blocks<T>(d.aq, partial, 0, blocks.count);
    tpa_add_blocks<T>(d.bq, partial, in.aq.size(1) * in.aq.size(2), blocks.count);
  };
  in.aq.dtype == f64 ? run_with(0.0) : run_with(0.0f);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_tpa_decode() {
  tpa_decode_forward_kernel.provide(Variant::cuda, on_cuda::forward);
  tpa_decode_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
