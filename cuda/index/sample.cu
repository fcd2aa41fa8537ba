// Sampling. A block takes a row (a block of one warp if the row is short). Nothing is sorted and
// nothing stored: a filter is the key of the smallest logit that is kept, found by radix select
// (histograms of 8-bit digits: of counts for top_k, of probabilities for top_p), and the draw is a
// prefix sum over the kept classes in order. Probabilities are fixed-point numbers, so that their
// sums do not depend on the order. Random numbers are those of Philox (Salmon et al., SC 2011). A
// row is read three times, and five times more for each filter (nine in f64), 16 bytes at a time
// where it is long and dense, wherever it begins, mostly from the L2 cache. A row of few classes
// has one thread, which finds the keys of a filter one after another.
//
// sass draw_rows<.*Packed: need LDG.E.128; forbid LD.E ST.E; registers 96; shared 3400
// sass draw_rows: forbid LD.E ST.E; registers 96 112@120; shared 3400
#include <bit>
#include <cmath>

#include "quipu/cuda/runtime/run.h"
#include "quipu/ops/index/sample_kernels.h"
#include "sample_row.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

constexpr std::int64_t few_classes = 32, warp_classes = 1024;

template <class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 1) draw_rows(SampledRows rows) {
  using T = typename Chunk::Number;
  constexpr unsigned warps = SampleScratch::warps;
  __shared__ SampleScratch work;
  __shared__ T largest_scratch[warps];
  __shared__ long long class_scratch[warps];
  const std::uint32_t line = team == 1 ? blockIdx.x * block_threads + threadIdx.x : blockIdx.x;
  if (line >= rows.count) return;  // a whole team
  std::int64_t at[1];
  rows.walk.find(line, at);
  const std::int64_t number = rows.first + line;
  SampledRow<Chunk, team> row{rows, work, at[0]};
  std::int64_t chosen = 0;
  if (!row.find_largest(largest_scratch)) {
    if (row.thread == 0) leave_note(rows.guard, 0, number);
  } else if (!isfinite(static_cast<T>(rows.inverse))) {  // the temperature leaves the largest alone
    chosen = row.best(class_scratch);
  } else {
    row.keep();
    const Weight total = row.total();
    const PhiloxBlock w = philox_words(rows.state, static_cast<std::uint64_t>(number) / 2);
    const Weight bits = number % 2 == 0 ? (Weight{w.w0} << 32 | w.w1) : (Weight{w.w2} << 32 | w.w3);
    chosen = row.draw(__umul64hi(bits >> 11 << 11, total), class_scratch);
  }
  if (row.thread == 0) rows.o[number] = chosen;
}

template <class T>
void run_rows(const Queue& queue, const SampledRows& rows, bool packed) {
  if (rows.classes <= few_classes) {
    run(queue, draw_rows<Loose<T>, 1>, blocks_for(rows.count), block_threads, 0, rows);
  } else if (rows.classes <= warp_classes) {
    run(queue, draw_rows<Loose<T>, warp_size>, rows.count, warp_size, 0, rows);
  } else if (packed && rows.dtype != f64) {
    with_packed(rows.dtype, [&]<class V, class E>(Packed<V, E>) {
      if constexpr (std::is_same_v<V, float>) {
        run(queue, draw_rows<Packed<V, E>, block_threads>, rows.count, block_threads, 0, rows);
      }
    });
  } else {
    run(queue, draw_rows<Loose<T>, block_threads>, rows.count, block_threads, 0, rows);
  }
}

void sample(View logits, View o, SampleFilter filter, PhiloxState state) {
  if (o.numel() == 0) return;
  const Queue queue(logits);
  const int last = logits.dim() - 1;
  const std::int64_t classes = logits.size(last);
  Layout<1> rows{o.shape, {logits.strides}};
  rows.strides[0].erase(last);
  const IndexGuard guard = index_guard(
      queue, o,
      {"logits", " hold NaN, +infinity, or nothing but -infinity, so there are no probabilities",
       false});
  const bool packed = has_chunked_rows(logits, last);
  // All weights together, each at most one unit of rounding too large, fit into 63 bits.
  const int bits = 61 - std::bit_width(static_cast<std::uint64_t>(classes));
  rows.merged(false).for_each_part([&](const Layout<1>& part) {
    const SampledRows all{Walk<1>(part),
                          static_cast<std::uint32_t>(numel(part.shape)),
                          part.first,
                          address(logits, part.starts[0]),
                          logits.dtype,
                          logits.stride(last),
                          classes,
                          o.as<std::int64_t>(),
                          1 / filter.temperature,
                          filter.top_k,
                          filter.top_p,
                          std::ldexp(1.0, bits),
                          state,
                          guard};
    logits.dtype == f64 ? run_rows<double>(queue, all, packed)
                        : run_rows<float>(queue, all, packed);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_sample() {
  sample_kernel.provide(Variant::cuda, on_cuda::sample);
}

}  // namespace quipu::detail
