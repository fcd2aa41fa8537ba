// Updates of parameters. One launch has the parameters of a table, 76 of them, which fills the 4
// KiB that kernel arguments may have: no copy, nothing for the host to keep. A block finds its
// parameter by its number and updates 4096 elements (2048 of f64), four (two) a thread and pass:
// every operand moves once, 28 bytes an element for adamw in f32, 20 for lion and for sgd with
// momentum; bound by memory. Operands that are not dense have a launch of their own, an element a
// thread. A launch before counts all steps and computes the factors that depend on them. Whether to
// skip, the factor of the gradients and, in a recorded step, the learning rate are read on the
// device.
//
// sass update_table: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 80; shared 0
// sass .: forbid LD.E ST.E; registers 80; shared 0
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "quipu/cuda/runtime/run.h"
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
        skip(list.skip.defined ? list.skip.as<const Truth>() : nullptr),
        lr(list.lr.defined ? list.lr.as<const double>() : nullptr),
        lr_factor(list.lr_factor) {}
  __device__ __forceinline__ bool skips() const { return skip != nullptr && skip->bits != 0; }
  /// The factor of all gradients.
  template <class T>
  __device__ __forceinline__ T factor() const {
    return scale != nullptr ? static_cast<T>(load_element<double>(scale, scale_type, 0)) : T(1);
  }
  /// The learning rate, where it is not that of the options.
  __device__ __forceinline__ double rate() const { return lr_factor * *lr; }
  const void* scale;
  DType scale_type;
  const Truth* skip;
  const double* lr;  // null: that of the options
  double lr_factor;
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
  if (common.lr != nullptr) change.set_rate(common.rate());
  T p = load(in.target, from_target), first = load(in.first, from_first);
  T second = load(in.second, from_second);
  change(p, load(in.gradient, from_gradient) * scale, first, second, factors);
  store(in.target, from_target, p);
  store(in.first, from_first, first);
  store(in.second, from_second, second);
  store(in.copy, from_parameter, p);
}

/// Parameters of one launch whose operands are dense: all of an update that is told by its row.
struct UpdateTable {
  static constexpr int most = 76;
  struct Pointers {
    void *target, *gradient, *first, *second, *copy;
  } data[most];
  std::uint32_t n[most], first_block[most];
  DType target_type[most], gradient_type[most], copy_type[most];
  std::uint8_t factors[most];  // which of StepFactors
  std::uint32_t rows = 0, blocks = 0;

  void add(const Operands& in, std::uint32_t elements, std::size_t step,
           std::uint32_t blocks_of_row) {
    data[rows] = {in.target.data, in.gradient.data, in.first.data, in.second.data, in.copy.data};
    n[rows] = elements;
    first_block[rows] = blocks;
    target_type[rows] = in.target.dtype;
    gradient_type[rows] = in.gradient.dtype;
    copy_type[rows] = in.copy.dtype;
    factors[rows] = static_cast<std::uint8_t>(step);
    ++rows;
    blocks += blocks_of_row;
  }
  /// The last row that begins at or before a block.
  __device__ __forceinline__ std::uint32_t row_of(std::uint32_t block) const {
    std::uint32_t low = 0, high = rows;
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

inline constexpr int update_passes = 4;

template <class T, class Change>
__global__ void __launch_bounds__(block_threads, 1)
    update_table(const __grid_constant__ UpdateTable table, Common common, Change change,
                 const StepFactors* factors) {
  constexpr int count = group_size<T>;
  if (common.skips()) return;
  const std::uint32_t row = table.row_of(blockIdx.x), n = table.n[row];
  const UpdateTable::Pointers in = table.data[row];
  const T scale = common.template factor<T>();
  if (common.lr != nullptr) change.set_rate(common.rate());
  std::uint32_t group =
      (blockIdx.x - table.first_block[row]) * (update_passes * block_threads) + threadIdx.x;
#pragma unroll 1
  for (int pass = 0; pass < update_passes; ++pass, group += block_threads) {
    if (std::int64_t{group} * count >= n) return;
    const auto load = [&](const void* data, DType dtype, T(&values)[count]) {
      for (int j = 0; j < count; ++j) values[j] = T(0);
      if (data != nullptr) load_group(data, dtype, group, n, values);
    };
    const auto store = [&](void* data, DType dtype, const T(&values)[count]) {
      if (data != nullptr) store_group(data, dtype, group, n, values);
    };
    T p[count], g[count], first[count], second[count];
    load(in.target, table.target_type[row], p);
    load(in.gradient, table.gradient_type[row], g);
    load(in.first, element_dtype<T>, first);
    load(in.second, element_dtype<T>, second);
    for (int j = 0; j < count; ++j) {
      change(p[j], g[j] * scale, first[j], second[j], factors + table.factors[row]);
    }
    store(in.target, table.target_type[row], p);
    store(in.first, element_dtype<T>, first);
    store(in.second, element_dtype<T>, second);
    store(in.copy, table.copy_type[row], p);
  }
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

/// The steps of as many parameters as a block has threads.
struct Steps {
  std::int64_t* step[block_threads];
};

__global__ void __launch_bounds__(block_threads, 1)
    count_steps(const __grid_constant__ Steps steps, std::uint32_t n, Common common, AdamWOptions o,
                StepFactors* factors) {
  if (threadIdx.x >= n || common.skips()) return;
  if (common.lr != nullptr) o.lr = common.rate();
  std::int64_t* const step = steps.step[threadIdx.x];
  *step += *step < INT64_MAX;
  const auto count = static_cast<double>(*step);
  factors[threadIdx.x] = {o.lr / (1 - pow(o.beta1, count)), 1 / sqrt(1 - pow(o.beta2, count))};
}

/// Launches for a list of parameters. make(T()) gives the change of one element; T is the type that
/// a parameter is computed in.
template <int states, class Make>
class Updates {
 public:
  Updates(const UpdateList& list, Make make)
      : list_(list), make_(make), queue_(list.items.front().parameter), scratch_(queue_) {}

  void run_all(const AdamWOptions& options) {
    for (std::size_t i = 0; i < list_.items.size(); ++i) {
      if (i % block_threads == 0) {
        flush();  // before the factors become others
        count(i, options);
      }
      list_.items[i].parameter.dtype == f64 ? add<double>(i) : add<float>(i);
    }
    flush();
  }

 private:
  /// Counts the steps of up to block_threads parameters from the i-th on.
  void count(std::size_t i, const AdamWOptions& options) {
    Steps steps;
    std::uint32_t n = 0;
    for (; n < block_threads && i + n < list_.items.size() && list_.items[i].step.defined; ++n) {
      steps.step[n] = list_.items[i + n].step.template as<std::int64_t>();
    }
    if (n > 0) run(queue_, count_steps, 1, block_threads, 0, steps, n, common_, options, factors());
  }
  template <class T>
  void add(std::size_t i) {
    const UpdateItem& item = list_.items[i];
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
      add_part<T>(
          part,
          {array(target, from_target, true), array(item.gradient, from_gradient, true),
           array(item.first, from_first, states > 0), array(item.second, from_second, states > 1),
           array(item.parameter, from_parameter, item.master.defined)},
          i % block_threads);
    });
  }
  template <class T>
  void add_part(const Layout<5>& part, const Operands& in, std::size_t step) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    if (!in_groups(part, in, group_size<T>)) {
      const auto change = make_(T());
      run(queue_, update_elements<T, std::remove_const_t<decltype(change)>>, blocks_for(n),
          block_threads, 0, Walk<5>(part), n, in, common_, change, factors() + step);
      return;
    }
    UpdateTable& table = table_of<T>();
    if (table.rows == UpdateTable::most) flush<T>();
    table.add(in, n, step, blocks_for(n, update_passes * block_threads * group_size<T>));
  }
  template <class T>
  void flush() {
    UpdateTable& table = table_of<T>();
    if (table.rows == 0) return;
    const auto change = make_(T());
    static_assert(sizeof(UpdateTable) + sizeof(Common) + sizeof(change) + sizeof(void*) <= 4096);
    run(queue_, update_table<T, std::remove_const_t<decltype(change)>>, table.blocks, block_threads,
        0, table, common_, change, factors());
    table.rows = table.blocks = 0;
  }
  void flush() {
    flush<float>();
    flush<double>();
  }
  template <class T>
  UpdateTable& table_of() {
    return tables_[std::is_same_v<T, double>];
  }
  StepFactors* factors() const { return static_cast<StepFactors*>(scratch_.data()); }

  const UpdateList& list_;
  const Make make_;
  const Queue queue_;
  const Scratch scratch_;  // factors of each step
  const Common common_{list_};
  UpdateTable tables_[2];
};

template <int states, class Make>
void update_all(const UpdateList& list, const AdamWOptions& options, Make make) {
  Updates<states, Make>(list, make).run_all(options);
}

// In all of them the decay is subtracted together with the step: a factor 1 - lr decay would lose
// most of its digits in f32. Sums of products are written as fused multiply-adds: a compiler that
// contracts them could choose the other product in update_table than in update_elements, but the
// layout of a parameter changes no bit.

template <class T>
struct Sgd {
  Sgd(double lr, double momentum, double weight_decay, bool coupled, bool ahead)
      : momentum(static_cast<T>(momentum)),
        into(static_cast<T>(coupled ? weight_decay : 0)),
        decoupled(coupled ? 0 : weight_decay),
        nesterov(ahead) {
    set_rate(lr);
  }
  __host__ __device__ __forceinline__ void set_rate(double rate) {
    lr = static_cast<T>(rate);
    decay = static_cast<T>(rate * decoupled);
  }
  __device__ __forceinline__ void operator()(T& p, T g, T& first, T&, const StepFactors*) const {
    g = std::fma(into, p, g);
    first = std::fma(momentum, first, g);
    p -= std::fma(decay, p, lr * (nesterov ? std::fma(momentum, first, g) : first));
  }
  T lr, momentum, into, decay;
  double decoupled;
  bool nesterov;
};

/// How much of a running mean stays (b), and of the new value comes in (a), for both means.
template <class T>
struct Betas {
  template <class Options>
  explicit Betas(const Options& o)
      : b1(static_cast<T>(o.beta1)),
        a1(static_cast<T>(1 - o.beta1)),
        b2(static_cast<T>(o.beta2)),
        a2(static_cast<T>(1 - o.beta2)) {}
  T b1, a1, b2, a2;
};

template <class T>
struct AdamW : Betas<T> {
  explicit AdamW(const AdamWOptions& o)
      : Betas<T>(o), weight_decay(o.weight_decay), eps(static_cast<T>(o.eps)) {
    set_rate(o.lr);
  }
  __host__ __device__ __forceinline__ void set_rate(double rate) {
    decay = static_cast<T>(rate * weight_decay);
  }
  __device__ __forceinline__ void operator()(T& p, T g, T& first, T& second,
                                             const StepFactors* factors) const {
    first = std::fma(this->b1, first, this->a1 * g);
    second = std::fma(this->b2, second, this->a2 * g * g);
    const T rate = static_cast<T>(factors->rate), correction = static_cast<T>(factors->correction);
    p -= std::fma(decay, p, rate * first / std::fma(std::sqrt(second), correction, eps));
  }
  double weight_decay;
  T decay, eps;
};

template <class T>
struct Lion : Betas<T> {
  explicit Lion(const LionOptions& o) : Betas<T>(o), weight_decay(o.weight_decay) {
    set_rate(o.lr);
  }
  __host__ __device__ __forceinline__ void set_rate(double rate) {
    lr = static_cast<T>(rate);
    decay = static_cast<T>(rate * weight_decay);
  }
  __device__ __forceinline__ void operator()(T& p, T g, T& first, T&, const StepFactors*) const {
    const T c = std::fma(this->b1, first, this->a1 * g);
    // NaN is neither and stays, so that it shows.
    const T sign = c > T(0) ? T(1) : c < T(0) ? T(-1) : c;
    p -= std::fma(decay, p, lr * sign);
    first = std::fma(this->b2, first, this->a2 * g);
  }
  double weight_decay;
  T lr, decay;
};

void sgd(const UpdateList& list, const SgdOptions& o) {
  const bool moves = o.momentum > 0;
  // Without momentum both kinds of decay are the same.
  const bool coupled = moves && !o.decoupled;
  const auto make = [&]<class T>(T) {
    return Sgd<T>(o.lr, moves ? o.momentum : 0, o.weight_decay, coupled, moves && o.nesterov);
  };
  moves ? update_all<1>(list, {}, make) : update_all<0>(list, {}, make);
}

void adamw(const UpdateList& list, const AdamWOptions& o) {
  update_all<2>(list, o, [&]<class T>(T) { return AdamW<T>(o); });
}

void lion(const UpdateList& list, const LionOptions& o) {
  update_all<1>(list, {}, [&]<class T>(T) { return Lion<T>(o); });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_optimizer() {
  sgd_kernel.provide(Variant::cuda, on_cuda::sgd);
  adamw_kernel.provide(Variant::cuda, on_cuda::adamw);
  lion_kernel.provide(Variant::cuda, on_cuda::lion);
}

}  // namespace quipu::detail
