// Cross entropy: targets are checked and counted, then each row is read once. A warp has a row, or
// a block where rows are long: each thread keeps an online softmax (column_softmax.cuh), 16 bytes
// of a dense row at a time wherever it begins, and these are merged in a fixed order. Bound by
// memory. A target that is no class leaves NaN.
//
// sass loss_rows<float,[^,<]*Packed: need LDG.E.128; forbid STL LDL LD.E$ ST.E$;
//   registers 128
// sass (loss_rows|check_and_count): forbid STL LDL LD.E$ ST.E$; registers 128
#include <cmath>
#include <limits>
#include <string>

#include "cross_entropy.cuh"
#include "quipu/cuda/index/index_check.cuh"
#include "quipu/cuda/softmax/column_softmax.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

__global__ void __launch_bounds__(block_threads, 1)
    check_and_count(Walk<1> walk, std::uint32_t n, std::int64_t first, std::int64_t start,
                    LossTargets targets, IndexGuard guard, unsigned long long* counted) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  bool counts = false;
  if (position < n) {
    std::int64_t at[1];
    walk.find(position, at);
    const std::int64_t target = targets.at(start + at[0]);
    counts = targets.count(target);
    if (counts) index_is_valid(guard, target, targets.classes, first + position);
  }
  const int total = __syncthreads_count(counts);
  if (threadIdx.x == 0) atomicAdd(counted, static_cast<unsigned long long>(total));
}

__global__ void store_scale(const unsigned long long* counted, void* scale, DType dtype) {
  const double value = *counted > 0 ? 1 / static_cast<double>(*counted) : 0.0;
  store_element(scale, dtype, 0, value);
}

void check_targets(View targets, View scale, std::int64_t classes, CrossEntropyTargets options) {
  const Queue queue(targets);
  std::string bound = ", but there are " + std::to_string(classes) + " classes";
  if (options.ignored) bound += " (and " + std::to_string(*options.ignored) + " is ignored)";
  const IndexGuard guard = index_guard(queue, targets, {"targets", bound});
  const Scratch scratch(queue);
  auto* counted = static_cast<unsigned long long*>(scratch.data());
  check_cuda(cudaMemsetAsync(counted, 0, sizeof *counted, queue.stream), "cudaMemsetAsync");
  const Layout<1> layout = Layout<1>{targets.shape, {targets.strides}}.merged(false);
  if (targets.numel() > 0) {
    layout.for_each_part([&](const Layout<1>& part) {
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      run(queue, check_and_count, blocks_for(n), block_threads, 0, Walk<1>(part), n, part.first,
          part.starts[0], LossTargets(targets, classes, options), guard, counted);
    });
  }
  if (scale.defined) run(queue, store_scale, 1, 1, 0, counted, scale.data, scale.dtype);
}

/// Running statistics of a row.
template <class T>
struct Running {
  T largest = -std::numeric_limits<T>::infinity();
  double sum = 0;    // of exp(z - largest)
  double total = 0;  // of z

  __device__ __forceinline__ Running from_lane(int lanes) const {
    return {__shfl_xor_sync(all_lanes, largest, lanes), __shfl_xor_sync(all_lanes, sum, lanes),
            __shfl_xor_sync(all_lanes, total, lanes)};
  }
};

template <class T>
__device__ __forceinline__ Running<T> merged(const Running<T>& a, const Running<T>& b) {
  const T largest = a.largest > b.largest ? a.largest : b.largest;
  // Where nothing but -infinity came, sums stay as they are: 0, or NaN.
  const auto part = [&](const Running<T>& r) {
    return r.largest == largest ? r.sum
                                : r.sum * static_cast<double>(std::exp(r.largest - largest));
  };
  return {largest, part(a) + part(b), a.total + b.total};
}

/// Subtracts first: a log-sum-exp can be far larger than the loss.
template <class T>
__device__ __forceinline__ double loss_of(const Running<T>& row, T wanted, double smoothing,
                                          std::int64_t classes) {
  const auto largest = static_cast<double>(row.largest);
  double loss = std::log(row.sum);
  if (smoothing < 1) loss += (1 - smoothing) * (largest - static_cast<double>(wanted));
  if (smoothing > 0) loss += smoothing * (largest - row.total / static_cast<double>(classes));
  return loss;
}

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 2) loss_rows(LossRows<T> rows) {
  __shared__ Running<T> scratch[block_threads / warp_size];
  const Team<team> self;
  if (self.line >= rows.count) return;  // a whole team
  std::int64_t at[4];
  rows.walk.find(self.line, at);
  const std::int64_t row = rows.first + self.line, classes = rows.targets.classes;
  const std::int64_t target = rows.targets.at(at[from_targets]);
  if (!rows.targets.count(target)) {  // nobody asks for its log-sum-exp
    if (self.thread == 0 && rows.losses != nullptr) rows.losses[row] = T(0);
    return;
  }
  constexpr int count = Chunk::count, batch = sizeof(T) == 8 ? 2 : 4;
  OnlineLines<T, count> own;
  T totals[count] = {};
  const auto logits = rows.template row<Chunk>(at[from_logits]);
  own.template take<batch>(logits.first(self.thread), classes, team * count,
                           [&](std::int64_t k, T(&z)[count]) {
                             logits.load(k, z);
                             for (int j = 0; j < count; ++j)
                               totals[j] += logits.has(k + j) ? z[j] : T(0);
                           });
  Running<T> all;
  for (int j = 0; j < count; ++j) {
    all = merged(all,
                 {own.largest[j], static_cast<double>(own.sum[j]), static_cast<double>(totals[j])});
  }
  all = fold_team<team>(all, scratch, merged<T>);
  if (self.thread != 0) return;
  if (rows.lse != nullptr) {
    const LogSum<T> whole = log_sum_of(all.largest, std::log(all.sum));
    rows.lse[row] = whole.lse;
    rows.lse[rows.rests + row] = whole.rest;
  }
  if (rows.losses == nullptr) return;
  T wanted = std::numeric_limits<T>::quiet_NaN();
  if (target >= 0 && target < classes) {
    wanted = load_element<T>(rows.logits, rows.dtype, at[from_logits] + target * rows.step);
  }
  rows.losses[row] = static_cast<T>(loss_of(all, wanted, rows.targets.smoothing, classes));
}

// ---- on the host ----

void loss_of_rows(View logits, View targets, View lse, View losses, CrossEntropyTargets options) {
  if (targets.numel() == 0) return;
  const Queue queue(logits);
  const bool packed = has_chunked_rows(logits, logits.dim() - 1);
  const Layout<4> layout = row_layout(logits, targets, {}, {});
  with_chunk(logits.dtype, logits.shape.back(), packed,
             [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
               constexpr unsigned team = Threads::value;
               layout.for_each_part([&](const Layout<4>& part) {
                 const LossRows<T> rows = rows_of<T>(part, logits, targets, lse, losses, options);
                 run(queue, loss_rows<T, Chunk, team>,
                     blocks_for(rows.count, Team<team>::per_block), block_threads, 0, rows);
               });
             });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_cross_entropy() {
  cross_entropy_targets_kernel.provide(Variant::cuda, on_cuda::check_targets);
  cross_entropy_rows_kernel.provide(Variant::cuda, on_cuda::loss_of_rows);
}

}  // namespace quipu::detail
