// Cross entropy. A row belongs to a warp, or to a block where it is long, and is read once: each
// thread keeps a running maximum and a running sum, which are merged in a fixed order. Backward
// reads a row once and writes its gradient once. 16 bytes a thread where rows lie on such borders.
// Bound by memory. Targets are checked and counted beforehand; one that is no class leaves NaN.
#include <cmath>
#include <limits>
#include <string>

#include "index_check.cuh"
#include "quipu/ops/cross_entropy_kernels.h"
#include "rows.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace {

enum { from_logits, from_targets, from_d_logits, from_d_o };  // the views of the rows

constexpr std::int64_t warp_length = 1024;  // longer rows are a block's

/// Which rows count.
struct Targets {
  Targets(const View& v, std::int64_t classes_of_logits, const CrossEntropyTargets& options)
      : data(v.data),
        dtype(v.dtype),
        classes(classes_of_logits),
        ignores(options.ignored.has_value()),
        ignored(options.ignored.value_or(0)),
        smoothing(options.smoothing) {}
  __device__ __forceinline__ std::int64_t at(std::int64_t offset) const {
    return load_element<std::int64_t>(data, dtype, offset);
  }
  __device__ __forceinline__ bool count(std::int64_t target) const {
    return !ignores || target != ignored;
  }
  const void* data;
  DType dtype;
  std::int64_t classes;
  bool ignores;
  std::int64_t ignored;
  double smoothing;
};

__global__ void __launch_bounds__(block_threads)
    check_and_count(Walk<1> walk, std::uint32_t n, std::int64_t first, std::int64_t start,
                    Targets targets, IndexGuard guard, unsigned long long* counted) {
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
  auto* counted = static_cast<unsigned long long*>(queue.scratch());
  check_cuda(cudaMemsetAsync(counted, 0, sizeof *counted, queue.stream), "cudaMemsetAsync");
  const Layout<1> layout = Layout<1>{targets.shape, {targets.strides}}.merged(false);
  if (targets.numel() > 0) {
    layout.for_each_part([&](const Layout<1>& part) {
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      run(queue, check_and_count, blocks_for(n), block_threads, 0, Walk<1>(part), n, part.first,
          part.starts[0], Targets(targets, classes, options), guard, counted);
    });
  }
  if (scale.defined) run(queue, store_scale, 1, 1, 0, counted, scale.data, scale.dtype);
}

/// What is known of a row after a part of it.
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

/// A running maximum and sums in the compute type.
template <class T>
struct OwnRunning {
  T largest = -std::numeric_limits<T>::infinity(), sum = T(0), total = T(0);

  __device__ __forceinline__ void add(T z) {
    constexpr T infinity = std::numeric_limits<T>::infinity();
    total += z;
    if (z == -infinity) return;
    if (z > largest) {
      sum = sum * std::exp(largest - z) + T(1);
      largest = z;
    } else {
      sum += std::exp(z - largest);
    }
    if (z == infinity) sum = std::numeric_limits<T>::quiet_NaN();
  }
};

/// With differences first: a log-sum-exp can be far larger than the loss.
template <class T>
__device__ __forceinline__ double loss_of(const Running<T>& row, T wanted, double smoothing,
                                          std::int64_t classes) {
  const auto largest = static_cast<double>(row.largest);
  double loss = std::log(row.sum);
  if (smoothing < 1) loss += (1 - smoothing) * (largest - static_cast<double>(wanted));
  if (smoothing > 0) loss += smoothing * (largest - row.total / static_cast<double>(classes));
  return loss;
}

template <class T>
struct Rows {
  Walk<4> walk;
  std::uint32_t count;
  std::int64_t first;  // the number of the first row
  const void* logits;
  DType dtype;
  std::int64_t step;  // of logits within a row
  Targets targets;
  T* lse;     // may be null, as the next one
  T* losses;  // one number a row
};

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads) loss_rows(Rows<T> rows) {
  __shared__ Running<T> room[block_threads / warp_size];
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
  OwnRunning<T> own;
  for (std::int64_t k = self.thread * Chunk::count; k < classes; k += team * Chunk::count) {
    T z[Chunk::count];
    Chunk::load(rows.logits, rows.dtype, at[from_logits] + k * rows.step, z);
    for (int j = 0; j < Chunk::count; ++j) own.add(z[j]);
  }
  Running<T> all{own.largest, static_cast<double>(own.sum), static_cast<double>(own.total)};
  all = fold_team<team>(all, room, merged<T>);
  if (self.thread != 0) return;
  if (rows.lse != nullptr) {
    rows.lse[row] = static_cast<T>(static_cast<double>(all.largest) + std::log(all.sum));
  }
  if (rows.losses == nullptr) return;
  T wanted = std::numeric_limits<T>::quiet_NaN();
  if (target >= 0 && target < classes) {
    wanted = load_element<T>(rows.logits, rows.dtype, at[from_logits] + target * rows.step);
  }
  rows.losses[row] = static_cast<T>(loss_of(all, wanted, rows.targets.smoothing, classes));
}

template <class T>
struct Gradient {
  Rows<T> rows;  // its lse is read
  const T* scale;
  const void* d_o;
  DType d_o_type;
  void* d_logits;
  DType d_type;
  std::int64_t d_step;
  bool add;
};

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads) gradient_rows(Gradient<T> g) {
  const Team<team> self;
  if (self.line >= g.rows.count) return;
  std::int64_t at[4];
  g.rows.walk.find(self.line, at);
  const Targets& targets = g.rows.targets;
  const std::int64_t target = targets.at(at[from_targets]);
  const bool counts = targets.count(target);
  if (!counts && g.add) return;
  const T up = load_element<T>(g.d_o, g.d_o_type, at[from_d_o]);
  const T factor = up * (g.scale != nullptr ? *g.scale : T(1));
  const T log_sum = counts ? g.rows.lse[g.rows.first + self.line] : T(0);
  const T smoothing = static_cast<T>(targets.smoothing);
  const T spread = smoothing / static_cast<T>(targets.classes);
  for (std::int64_t k = self.thread * Chunk::count; k < targets.classes; k += team * Chunk::count) {
    T z[Chunk::count] = {};
    if (counts) {
      Chunk::load(g.rows.logits, g.rows.dtype, at[from_logits] + k * g.rows.step, z);
      for (int j = 0; j < Chunk::count; ++j) {
        const T difference = std::exp(z[j] - log_sum) - spread;
        z[j] = factor * (k + j == target ? difference - (T(1) - smoothing) : difference);
      }
    }
    Chunk::put(g.d_logits, g.d_type, at[from_d_logits] + k * g.d_step, z, g.add);
  }
}

// ---- on the host ----

/// Strides of views of the leading dimensions, one position a row.
Layout<4> row_layout(const View& logits, const View& targets, const View& d_logits,
                     const View& d_o) {
  const int dims = targets.dim();
  const Strides none = Dims::filled(dims, 0);
  const auto leading = [&](const View& v) {
    if (!v.defined || v.dim() < dims) return none;
    Strides result = v.strides;
    if (result.size() > dims) result.erase(dims);
    return result;
  };
  return Layout<4>{targets.shape,
                   {leading(logits), targets.strides, leading(d_logits), leading(d_o)}}
      .merged(false);
}

/// Calls f(Chunk, team) with what rows of so many classes, all packed or not, go through.
template <class F>
void with_chunk(DType dtype, std::int64_t classes, bool packed, F f) {
  const auto with_team = [&]<class T, class Chunk>(T, Chunk chunk) {
    classes <= warp_length
        ? f.template operator()<T>(chunk, std::integral_constant<unsigned, warp_size>{})
        : f.template operator()<T>(chunk, std::integral_constant<unsigned, block_threads>{});
  };
  if (packed) {
    return with_packed(dtype, [&]<class T, class E>(Packed<T, E> chunk) { with_team(T(), chunk); });
  }
  dtype == f64 ? with_team(0.0, Loose<double>{}) : with_team(0.0f, Loose<float>{});
}

template <class T>
Rows<T> rows_of(const Layout<4>& part, const View& logits, const View& targets, const View& lse,
                const View& losses, const CrossEntropyTargets& options) {
  View own = targets;
  own.data = address(targets, part.starts[from_targets]);
  return {Walk<4>(part),
          static_cast<std::uint32_t>(numel(part.shape)),
          part.first,
          address(logits, part.starts[from_logits]),
          logits.dtype,
          logits.strides.back(),
          Targets(own, logits.shape.back(), options),
          lse.defined ? lse.as<T>() : nullptr,
          losses.defined ? losses.as<T>() : nullptr};
}

void loss_of_rows(View logits, View targets, View lse, View losses, CrossEntropyTargets options) {
  if (targets.numel() == 0) return;
  const Queue queue(logits);
  const bool packed = has_packed_rows(logits, logits.dim() - 1);
  const Layout<4> layout = row_layout(logits, targets, {}, {});
  with_chunk(logits.dtype, logits.shape.back(), packed,
             [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
               constexpr unsigned team = Threads::value;
               layout.for_each_part([&](const Layout<4>& part) {
                 const Rows<T> rows = rows_of<T>(part, logits, targets, lse, losses, options);
                 run(queue, loss_rows<T, Chunk, team>,
                     blocks_for(rows.count, Team<team>::per_block), block_threads, 0, rows);
               });
             });
}

void gradient_of_rows(View logits, View targets, View lse, View scale, View d_o, Grad d_logits,
                      CrossEntropyTargets options) {
  if (logits.numel() == 0) return;
  const Queue queue(logits);
  const View& d = d_logits.view;
  const int last = logits.dim() - 1;
  const bool packed =
      has_packed_rows(logits, last) && d.dtype == logits.dtype && has_packed_rows(d, last);
  const Layout<4> layout = row_layout(logits, targets, d, d_o);
  with_chunk(logits.dtype, logits.shape.back(), packed,
             [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
               constexpr unsigned team = Threads::value;
               layout.for_each_part([&](const Layout<4>& part) {
                 const Gradient<T> g{rows_of<T>(part, logits, targets, lse, {}, options),
                                     scale.defined ? scale.as<T>() : nullptr,
                                     address(d_o, part.starts[from_d_o]),
                                     d_o.dtype,
                                     address(d, part.starts[from_d_logits]),
                                     d.dtype,
                                     d.strides.back(),
                                     d_logits.add};
                 run(queue, gradient_rows<T, Chunk, team>,
                     blocks_for(g.rows.count, Team<team>::per_block), block_threads, 0, g);
               });
             });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_cross_entropy() {
  cross_entropy_targets.provide(DeviceKind::cuda, on_cuda::check_targets);
  cross_entropy_rows.provide(DeviceKind::cuda, on_cuda::loss_of_rows);
  cross_entropy_gradient.provide(DeviceKind::cuda, on_cuda::gradient_of_rows);
}

}  // namespace quipu
