// Updates of parameters, and the norm of all gradients. Each parameter is one launch, a thread has
// four elements (two of f64) where all operands are dense, else one: every operand moves once, 28
// bytes an element for adamw in f32, 20 for lion and for sgd with momentum; bound by memory.
// Factors that depend on the number of the step are computed before by one thread. The norm adds
// squares in f64, by chunks of fixed size, in a fixed order. Whether to skip, and the factor of the
// gradients, are read on the device.
//
// sass update_groups: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 80; shared 0
// sass add_squares<4>: need LDG.E.128; forbid LD.E ST.E; registers 48; shared 64
// sass .: forbid LD.E ST.E; registers 80; shared 64
#include <cmath>
#include <cstdint>

#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/block.cuh"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/cuda/tile/groups.cuh"
#include "quipu/ops/optimizer_kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_target, from_gradient, from_first, from_second, from_parameter };

/// Bias corrections of adamw, which depend on the step.
struct StepFactors {
  double rate, correction;
};

/// What all parameters of a list share.
struct Common {
  explicit Common(const UpdateList& list)
      : scale(list.scale.defined ? list.scale.data : nullptr),
        scale_type(list.scale.dtype),
        skip(list.skip.defined ? list.skip.as<const Truth>() : nullptr) {}
  __device__ __forceinline__ bool skips() const { return skip != nullptr && skip->bits != 0; }
  /// The factor of all gradients.
  template <class T>
  __device__ __forceinline__ T factor() const {
    return scale != nullptr ? static_cast<T>(load_element<double>(scale, scale_type, 0)) : T(1);
  }
  const void* scale;
  DType scale_type;
  const Truth* skip;
};

struct Array {
  void* data = nullptr;
  DType dtype = DType::f32;
};

struct Operands {
  Array target, gradient, first, second, copy;  // copy: a parameter that has a wider master
};

template <class T, class Change>
__global__ void __launch_bounds__(block_threads, 1)
    update_elements(Walk<5> walk, std::uint32_t n, Operands in, Common common, Change change,
                    const StepFactors* factors) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n || common.skips()) return;
  std::int64_t at[5];
  walk.find(position, at);
  const auto load = [&](const Array& p, int from) {
    return p.data != nullptr ? load_element<T>(p.data, p.dtype, at[from]) : T(0);
  };
  const auto store = [&](const Array& p, int from, T value) {
    if (p.data != nullptr) store_element(p.data, p.dtype, at[from], value);
  };
  const T scale = common.template factor<T>();
  T p = load(in.target, from_target), first = load(in.first, from_first);
  T second = load(in.second, from_second);
  change(p, load(in.gradient, from_gradient) * scale, first, second, factors);
  store(in.target, from_target, p);
  store(in.first, from_first, first);
  store(in.second, from_second, second);
  store(in.copy, from_parameter, p);
}

/// The same where all operands are dense, a group of elements a thread.
template <class T, class Change>
__global__ void __launch_bounds__(block_threads, 1)
    update_groups(std::uint32_t n, Operands in, Common common, Change change,
                  const StepFactors* factors) {
  constexpr int count = group_size<T>;
  const std::uint32_t group = blockIdx.x * block_threads + threadIdx.x;
  if (std::int64_t{group} * count >= n || common.skips()) return;
  const auto load = [&](const Array& p, T(&values)[count]) {
    for (int j = 0; j < count; ++j) values[j] = T(0);
    if (p.data != nullptr) load_group(p.data, p.dtype, group, n, values);
  };
  const auto store = [&](const Array& p, const T(&values)[count]) {
    if (p.data != nullptr) store_group(p.data, p.dtype, group, n, values);
  };
  T p[count], g[count], first[count], second[count];
  load(in.target, p);
  load(in.gradient, g);
  load(in.first, first);
  load(in.second, second);
  const T scale = common.template factor<T>();
  for (int j = 0; j < count; ++j) change(p[j], g[j] * scale, first[j], second[j], factors);
  store(in.target, p);
  store(in.first, first);
  store(in.second, second);
  store(in.copy, p);
}

/// Whether all operands are dense, in one order.
bool in_groups(const Layout<5>& layout, const Operands& in, int count) {
  bool fits = layout.shape.size() == 1;
  for (const Strides& s : layout.strides) fits = fits && s[0] == 1;
  for (const Array* p : {&in.target, &in.gradient, &in.first, &in.second, &in.copy}) {
    fits = fits && (p->data == nullptr || is_group_aligned(p->data, p->dtype, count));
  }
  return fits;
}

__global__ void count_step(std::int64_t* step, Common common, AdamWOptions o,
                           StepFactors* factors) {
  if (common.skips()) return;
  *step += *step < INT64_MAX;
  const auto count = static_cast<double>(*step);
  factors->rate = o.lr / (1 - pow(o.beta1, count));
  factors->correction = 1 / sqrt(1 - pow(o.beta2, count));
}

/// make(T()) gives the change of one element; T is the type that the item is computed in.
template <int states, class Make>
void update_all(const UpdateList& list, const AdamWOptions& options, Make make) {
  const Queue queue(list.items.front().parameter);
  const Common common(list);
  const Scratch scratch(queue);
  auto* factors = static_cast<StepFactors*>(scratch.data());
  for (const UpdateItem& item : list.items) {
    if (item.step.defined) {
      run(queue, count_step, 1, 1, 0, item.step.as<std::int64_t>(), common, options, factors);
    }
    const View& target = item.master.defined ? item.master : item.parameter;
    const auto strides = [&](const View& v) { return v.defined ? v.strides : target.strides; };
    const Layout<5> layout = Layout<5>{
        target.shape,
        {target.strides, item.gradient.strides, strides(item.first), strides(item.second),
         item.parameter.strides}}.merged();
    layout.for_each_part([&](const Layout<5>& part) {
      const auto array = [&](const View& v, int from, bool is_there) {
        const auto start = part.starts[static_cast<std::size_t>(from)];
        return is_there ? Array{address(v, start), v.dtype} : Array{};
      };
      const Operands in{array(target, from_target, true), array(item.gradient, from_gradient, true),
                        array(item.first, from_first, states > 0),
                        array(item.second, from_second, states > 1),
                        array(item.parameter, from_parameter, item.master.defined)};
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      const auto run_as = [&]<class T>(T zero) {
        const auto change = make(zero);
        if (in_groups(part, in, group_size<T>)) {
          run(queue, update_groups<T, std::remove_const_t<decltype(change)>>,
              blocks_for(n, block_threads * group_size<T>), block_threads, 0, n, in, common, change,
              factors);
          return;
        }
        run(queue, update_elements<T, std::remove_const_t<decltype(change)>>, blocks_for(n),
            block_threads, 0, Walk<5>(part), n, in, common, change, factors);
      };
      item.parameter.dtype == f64 ? run_as(0.0) : run_as(0.0f);
    });
  }
}

// In all of them the decay is subtracted together with the step: a factor 1 - lr decay would lose
// most of its digits in f32. Sums of products are written as fused multiply-adds: a compiler that
// contracts them could choose the other product in update_groups than in update_elements, but the
// layout of a parameter changes no bit.

template <class T>
struct Sgd {
  T lr, momentum, into, decay;
  bool nesterov;
  __device__ __forceinline__ void operator()(T& p, T g, T& first, T&, const StepFactors*) const {
    g = std::fma(into, p, g);
    first = std::fma(momentum, first, g);
    p -= std::fma(decay, p, lr * (nesterov ? std::fma(momentum, first, g) : first));
  }
};

template <class T>
struct AdamW {
  T decay, eps, b1, a1, b2, a2;
  __device__ __forceinline__ void operator()(T& p, T g, T& first, T& second,
                                             const StepFactors* factors) const {
    first = std::fma(b1, first, a1 * g);
    second = std::fma(b2, second, a2 * g * g);
    const T rate = static_cast<T>(factors->rate), correction = static_cast<T>(factors->correction);
    p -= std::fma(decay, p, rate * first / std::fma(std::sqrt(second), correction, eps));
  }
};

template <class T>
struct Lion {
  T lr, decay, b1, a1, b2, a2;
  __device__ __forceinline__ void operator()(T& p, T g, T& first, T&, const StepFactors*) const {
    const T c = std::fma(b1, first, a1 * g);
    // NaN is neither and stays, so that it shows.
    const T sign = c > T(0) ? T(1) : c < T(0) ? T(-1) : c;
    p -= std::fma(decay, p, lr * sign);
    first = std::fma(b2, first, a2 * g);
  }
};

void sgd(const UpdateList& list, const SgdOptions& o) {
  const bool moves = o.momentum > 0;
  // Without momentum both kinds of decay are the same.
  const bool coupled = moves && !o.decoupled;
  const auto make = [&]<class T>(T) {
    return Sgd<T>{static_cast<T>(o.lr), static_cast<T>(moves ? o.momentum : 0),
                  static_cast<T>(coupled ? o.weight_decay : 0),
                  static_cast<T>(coupled ? 0 : o.lr * o.weight_decay), moves && o.nesterov};
  };
  moves ? update_all<1>(list, {}, make) : update_all<0>(list, {}, make);
}

void adamw(const UpdateList& list, const AdamWOptions& o) {
  update_all<2>(list, o, [&]<class T>(T) {
    return AdamW<T>{static_cast<T>(o.lr * o.weight_decay),
                    static_cast<T>(o.eps),
                    static_cast<T>(o.beta1),
                    static_cast<T>(1 - o.beta1),
                    static_cast<T>(o.beta2),
                    static_cast<T>(1 - o.beta2)};
  });
}

void lion(const UpdateList& list, const LionOptions& o) {
  update_all<1>(list, {}, [&]<class T>(T) {
    return Lion<T>{static_cast<T>(o.lr),    static_cast<T>(o.lr * o.weight_decay),
                   static_cast<T>(o.beta1), static_cast<T>(1 - o.beta1),
                   static_cast<T>(o.beta2), static_cast<T>(1 - o.beta2)};
  });
}

/// Adds the squares of one item to the parts that it has a share in; a block a part. A dense item
/// is read in groups of `count`, which begin where the item begins.
template <int count>
__global__ void __launch_bounds__(block_threads, 1)
    add_squares(Walk<1> walk, std::int64_t begin, std::int64_t n, const void* x, DType dtype,
                double* parts) {
  __shared__ double scratch[block_threads / warp_size];
  const std::int64_t part = begin / norm_chunk + blockIdx.x;
  const std::int64_t from = max(part * norm_chunk - begin, std::int64_t{0});
  const std::int64_t to = min((part + 1) * norm_chunk - begin, n);
  double sum = 0;
  for (std::int64_t i = from / count + threadIdx.x; i * count < to; i += block_threads) {
    if constexpr (count > 1) {
      if (i * count >= from && (i + 1) * count <= to) {
        float values[count];
        load_group(x, dtype, i, n, values);
        for (int j = 0; j < count; ++j) sum += static_cast<double>(values[j]) * values[j];
        continue;
      }
    }
    for (std::int64_t k = i * count; k < (i + 1) * count; ++k) {
      if (k < from || k >= to) continue;
      std::int64_t at[1];
      walk.find(static_cast<std::uint32_t>(k), at);
      const double value = load_element<double>(x, dtype, at[0]);
      sum += value * value;
    }
  }
  sum = fold_team<block_threads>(sum, scratch, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) parts[part] += sum;
}

__global__ void __launch_bounds__(block_threads, 1)
    finish_norm(const double* parts, std::int64_t n, void* norm, DType dtype) {
  __shared__ double scratch[block_threads / warp_size];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += block_threads) sum += parts[i];
  sum = fold_team<block_threads>(sum, scratch, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) store_element(norm, dtype, 0, std::sqrt(sum));
}

void norm_of_list(const NormList& list, View parts, View norm) {
  const Queue queue(list.items.front().x);
  const auto bytes = static_cast<std::size_t>(parts.numel()) * sizeof(double);
  check_cuda(cudaMemsetAsync(parts.data, 0, bytes, queue.stream), "cudaMemsetAsync");
  for (const NormItem& item : list.items) {
    const Layout<1> layout = Layout<1>{item.x.shape, {item.x.strides}}.merged(false);
    layout.for_each_part([&](const Layout<1>& piece) {
      const std::int64_t begin = item.begin + piece.first, n = numel(piece.shape);
      const std::int64_t touched = (begin + n - 1) / norm_chunk - begin / norm_chunk + 1;
      char* const x = address(item.x, piece.starts[0]);
      constexpr int count = group_size<float>;
      const bool dense = piece.shape.size() == 1 && piece.strides[0][0] == 1 &&
                         item.x.dtype != f64 && is_group_aligned(x, item.x.dtype, count);
      run(queue, dense ? add_squares<count> : add_squares<1>, static_cast<unsigned>(touched),
          block_threads, 0, Walk<1>(piece), begin, n, x, item.x.dtype, parts.as<double>());
    });
  }
  run(queue, finish_norm, 1, block_threads, 0, parts.as<const double>(), parts.numel(), norm.data,
      norm.dtype);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_optimizer() {
  sgd_kernel.provide(Variant::cuda, on_cuda::sgd);
  adamw_kernel.provide(Variant::cuda, on_cuda::adamw);
  lion_kernel.provide(Variant::cuda, on_cuda::lion);
  global_norm_kernel.provide(Variant::cuda, on_cuda::norm_of_list);
}

}  // namespace quipu::detail
