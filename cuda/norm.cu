// Normalisation. A row belongs to a warp, or to a block where it is long: it is read for the mean,
// for the variance and for the result, each time but the first from a cache, 16 bytes a thread
// where rows lie on such borders. Backward reads x and d_o for two sums and again for the result.
// Gradients of weight and bias are summed over a fixed number of parts of the rows, a thread a
// channel (a warp where a channel has many entries), and the parts are added in order. Bound by
// memory; sums have a fixed order.
#include <cmath>

#include "quipu/core/error.h"
#include "quipu/ops/norm_kernels.h"
#include "rows.cuh"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace {

constexpr std::int64_t warp_length = 1024;  // longer rows are a block's

/// (outer, groups, channels, inner)
struct Sizes {
  explicit Sizes(const View& x)
      : outer(x.size(0)),
        groups(x.size(1)),
        channels(x.size(2)),
        inner(x.size(3)),
        rows(static_cast<std::uint32_t>(outer * groups)),
        length(channels * inner) {
    constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
    check(length <= most && outer * groups <= most, "x is seen as ", outer * groups, " rows of ",
          length, " entries, but a device takes at most ", most, " of either");
    channel_of = Divider(static_cast<std::uint32_t>(std::max<std::int64_t>(inner, 1)));
  }
  __device__ __forceinline__ std::int64_t channel(std::int64_t k) const {
    return channel_of.quotient(static_cast<std::uint32_t>(k));
  }
  std::int64_t outer, groups, channels, inner;
  std::uint32_t rows;
  std::int64_t length;
  Divider channel_of;
};

/// A weight or bias, one number a channel.
struct PerChannel {
  PerChannel(const View& v, const Sizes& s, double number_otherwise)
      : data(v.defined ? v.data : nullptr),
        dtype(v.dtype),
        group_step(v.defined ? v.stride(0) : 0),
        step(v.defined ? v.stride(1) : 0),
        otherwise(number_otherwise),
        packed(v.defined && s.inner == 1 && has_packed_rows(v, 1)) {}

  /// Those of the entries of a row from k on.
  template <class Chunk, class T>
  __device__ __forceinline__ void load(const Sizes& s, std::int64_t group, std::int64_t k,
                                       T (&values)[Chunk::count]) const {
    if (data != nullptr && packed) return Chunk::load(data, dtype, group * group_step + k, values);
    for (int j = 0; j < Chunk::count; ++j) {
      values[j] = static_cast<T>(otherwise);
      if (data == nullptr) continue;
      values[j] = load_element<T>(data, dtype, group * group_step + s.channel(k + j) * step);
    }
  }
  void* data;
  DType dtype;
  std::int64_t group_step, step;
  double otherwise;
  bool packed;
};

template <class T>
__device__ __forceinline__ T plus(T a, T b) {
  return a + b;
}

/// The sum of term(k, values) over the chunks of a row, in all threads of the team.
template <unsigned team, class Chunk, class T, class Term>
__device__ __forceinline__ T sum_row(std::int64_t length, unsigned thread, T* room, Term term) {
  T sum(0);
  for (std::int64_t k = thread * Chunk::count; k < length; k += team * Chunk::count) sum += term(k);
  return fold_team<team>(sum, room, plus<T>);
}

template <class T>
struct Forward {
  Sizes s;
  const void* x;
  DType dtype;
  PerChannel weight, bias;
  void* o;  // may be null, as the next two
  T* mean;
  T* inverse;
  bool centered;
  T eps;
};

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads) normalise_rows(Forward<T> f) {
  __shared__ T room[block_threads / warp_size];
  const Team<team> self;
  if (self.line >= f.s.rows) return;  // a whole team
  const std::int64_t start = self.line * f.s.length, length = f.s.length;
  const auto sum_of = [&](auto term) {
    return sum_row<team, Chunk>(length, self.thread, room, [&](std::int64_t k) {
      T x[Chunk::count];
      Chunk::load(f.x, f.dtype, start + k, x);
      T sum(0);
      for (int j = 0; j < Chunk::count; ++j) sum += term(x[j]);
      return sum;
    });
  };
  T mean(0);
  if (f.centered) mean = sum_of([](T x) { return x; }) / static_cast<T>(length);
  const T squares = sum_of([=](T x) { return (x - mean) * (x - mean); });
  const T inverse = T(1) / std::sqrt(squares / static_cast<T>(length) + f.eps);
  if (self.thread == 0 && f.mean != nullptr) f.mean[self.line] = mean;
  if (self.thread == 0 && f.inverse != nullptr) f.inverse[self.line] = inverse;
  if (f.o == nullptr) return;
  const std::int64_t group = self.line % static_cast<std::uint32_t>(f.s.groups);
  for (std::int64_t k = self.thread * Chunk::count; k < length; k += team * Chunk::count) {
    T x[Chunk::count], w[Chunk::count], b[Chunk::count];
    Chunk::load(f.x, f.dtype, start + k, x);
    f.weight.template load<Chunk>(f.s, group, k, w);
    f.bias.template load<Chunk>(f.s, group, k, b);
    for (int j = 0; j < Chunk::count; ++j) x[j] = (x[j] - mean) * inverse * w[j] + b[j];
    Chunk::put(f.o, f.dtype, start + k, x, false);
  }
}

template <class T>
struct Backward {
  Sizes s;
  const void* x;
  const void* d_o;
  DType dtype, d_o_type;
  PerChannel weight;
  const T* mean;  // null where none was subtracted
  const T* inverse;
  void* d_x;
  DType d_x_type;
  bool add;

  __device__ __forceinline__ T mean_of(std::int64_t row) const {
    return mean != nullptr ? mean[row] : T(0);
  }
};

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads) differentiate_rows(Backward<T> b) {
  __shared__ T room[block_threads / warp_size];
  const Team<team> self;
  if (self.line >= b.s.rows) return;  // a whole team
  const std::int64_t start = self.line * b.s.length, length = b.s.length;
  const std::int64_t group = self.line % static_cast<std::uint32_t>(b.s.groups);
  const T mean = b.mean_of(self.line), inverse = b.inverse[self.line];
  // x without its mean, and the gradient with the weight in it.
  const auto load = [&](std::int64_t k, T(&x)[Chunk::count], T(&up)[Chunk::count]) {
    T w[Chunk::count];
    Chunk::load(b.x, b.dtype, start + k, x);
    Chunk::load(b.d_o, b.d_o_type, start + k, up);
    b.weight.template load<Chunk>(b.s, group, k, w);
    for (int j = 0; j < Chunk::count; ++j) {
      x[j] -= mean;
      up[j] *= w[j];
    }
  };
  T sum(0), product(0);
  for (std::int64_t k = self.thread * Chunk::count; k < length; k += team * Chunk::count) {
    T x[Chunk::count], up[Chunk::count];
    load(k, x, up);
    for (int j = 0; j < Chunk::count; ++j) {
      sum += up[j];
      product += up[j] * x[j];
    }
  }
  sum = b.mean != nullptr ? fold_team<team>(sum, room, plus<T>) : T(0);
  product = inverse * fold_team<team>(product, room, plus<T>);
  const T shift = sum / static_cast<T>(length), slope = product / static_cast<T>(length) * inverse;
  for (std::int64_t k = self.thread * Chunk::count; k < length; k += team * Chunk::count) {
    T x[Chunk::count], up[Chunk::count];
    load(k, x, up);
    for (int j = 0; j < Chunk::count; ++j) up[j] = inverse * (up[j] - shift - x[j] * slope);
    Chunk::put(b.d_x, b.d_x_type, start + k, up, b.add);
  }
}

/// Block (part and group, some channels). Either of the sums may be null.
template <class T, unsigned team>
__global__ void __launch_bounds__(block_threads)
    sum_channels(Backward<T> b, std::int64_t parts, std::int64_t part_step, T* d_weight,
                 T* d_bias) {
  const std::int64_t channel = blockIdx.y * Team<team>::per_block + threadIdx.x / team;
  const unsigned thread = threadIdx.x % team;
  const std::int64_t part = blockIdx.x / b.s.groups, group = blockIdx.x % b.s.groups;
  if (channel >= b.s.channels) return;  // a whole team
  T weight_sum(0), bias_sum(0);
  for (std::int64_t i = b.s.outer * part / parts; i < b.s.outer * (part + 1) / parts; ++i) {
    const std::int64_t row = i * b.s.groups + group;
    const std::int64_t start = row * b.s.length + channel * b.s.inner;
    const T mean = b.mean_of(row), inverse = b.inverse[row];
    for (std::int64_t k = thread; k < b.s.inner; k += team) {
      const T up = load_element<T>(b.d_o, b.d_o_type, start + k);
      bias_sum += up;
      if (d_weight == nullptr) continue;
      weight_sum += up * ((load_element<T>(b.x, b.dtype, start + k) - mean) * inverse);
    }
  }
  if constexpr (team > 1) {
    weight_sum = fold_warp(weight_sum, plus<T>);
    bias_sum = fold_warp(bias_sum, plus<T>);
  }
  if (thread != 0) return;
  const std::int64_t place = part * part_step + group * b.s.channels + channel;
  if (d_weight != nullptr) d_weight[place] = weight_sum;
  if (d_bias != nullptr) d_bias[place] = bias_sum;
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    add_parts(Walk<1> walk, std::uint32_t n, const T* sums, std::int64_t parts,
              std::int64_t part_step, void* out, DType dtype, bool add) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  T total(0);
  for (std::int64_t part = 0; part < parts; ++part) total += sums[part * part_step + position];
  std::int64_t at[1];
  walk.find(position, at);
  put_element(out, dtype, at[0], total, add);
}

// ---- on the host ----

/// Calls f(Chunk, team) with what rows of this length, all packed or not, go through.
template <class F>
void with_chunk(DType dtype, std::int64_t length, bool packed, F f) {
  const auto with_team = [&]<class T, class Chunk>(T, Chunk chunk) {
    length <= warp_length
        ? f.template operator()<T>(chunk, std::integral_constant<unsigned, warp_size>{})
        : f.template operator()<T>(chunk, std::integral_constant<unsigned, block_threads>{});
  };
  if (packed) {
    return with_packed(dtype, [&]<class T, class E>(Packed<T, E> chunk) { with_team(T(), chunk); });
  }
  dtype == f64 ? with_team(0.0, Loose<double>{}) : with_team(0.0f, Loose<float>{});
}

bool is_packed(const View& v) {
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 &&
         v.size(2) * v.size(3) % static_cast<std::int64_t>(16 / size_of(v.dtype)) == 0;
}

void forward(View x, View weight, View bias, View o, View mean, View inverse, bool centered,
             double eps) {
  const Sizes s(x);
  if (s.rows == 0) return;
  const bool packed = is_packed(x) && (!o.defined || is_packed(o));
  with_chunk(x.dtype, s.length, packed, [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
    const Forward<T> f{s,
                       x.data,
                       x.dtype,
                       PerChannel(weight, s, 1),
                       PerChannel(bias, s, 0),
                       o.defined ? o.data : nullptr,
                       mean.defined ? mean.as<T>() : nullptr,
                       inverse.defined ? inverse.as<T>() : nullptr,
                       centered,
                       static_cast<T>(eps)};
    constexpr unsigned team = Threads::value;
    run(Queue(x), normalise_rows<T, Chunk, team>, blocks_for(s.rows, Team<team>::per_block),
        block_threads, 0, f);
  });
}

template <class T>
void sum_parts(const Queue& queue, const Backward<T>& b, const Grad& d_weight, const Grad& d_bias,
               const View& parts) {
  const std::int64_t count = norm_parts(b.s.outer), step = parts.stride(0);
  T* const weight_sums = d_weight.wanted() ? parts.as<T>() : nullptr;
  T* const bias_sums =
      d_bias.wanted() ? parts.as<T>() + (d_weight.wanted() ? parts.stride(1) : 0) : nullptr;
  const auto run_team = [&]<unsigned team>(std::integral_constant<unsigned, team>) {
    const dim3 grid(static_cast<unsigned>(count * b.s.groups),
                    blocks_for(b.s.channels, Team<team>::per_block));
    run(queue, sum_channels<T, team>, grid, block_threads, 0, b, count, step, weight_sums,
        bias_sums);
  };
  b.s.inner < 16 ? run_team(std::integral_constant<unsigned, 1>{})
                 : run_team(std::integral_constant<unsigned, warp_size>{});
  const auto finish = [&](const Grad& g, const T* sums) {
    if (sums == nullptr) return;
    const Layout<1> layout = Layout<1>{g.view.shape, {g.view.strides}}.merged(false);
    const auto n = static_cast<std::uint32_t>(g.view.numel());
    run(queue, add_parts<T>, blocks_for(n), block_threads, 0, Walk<1>(layout), n, sums, count, step,
        g.view.data, g.view.dtype, g.add);
  };
  finish(d_weight, weight_sums);
  finish(d_bias, bias_sums);
}

void backward(View x, View weight, View d_o, View mean, View inverse, Grad d_x, Grad d_weight,
              Grad d_bias, View parts) {
  const Sizes s(x);
  const Queue queue(x);
  const bool same = d_x.view.dtype == x.dtype;
  const bool packed = is_packed(x) && is_packed(d_o) && d_o.dtype == x.dtype &&
                      (!same || !d_x.wanted() || is_packed(d_x.view));
  with_chunk(x.dtype, s.length, packed, [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
    const Backward<T> b{s,
                        x.data,
                        d_o.data,
                        x.dtype,
                        d_o.dtype,
                        PerChannel(weight, s, 1),
                        mean.defined ? mean.as<T>() : nullptr,
                        inverse.as<T>(),
                        d_x.view.data,
                        d_x.view.dtype,
                        d_x.add};
    constexpr unsigned team = Threads::value;
    if (d_x.wanted() && s.rows > 0 && s.length > 0) {
      run(queue, differentiate_rows<T, Chunk, team>, blocks_for(s.rows, Team<team>::per_block),
          block_threads, 0, b);
    }
    if (parts.defined && s.groups * s.channels > 0) sum_parts(queue, b, d_weight, d_bias, parts);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_norm() {
  norm_forward.provide(DeviceKind::cuda, on_cuda::forward);
  norm_backward.provide(DeviceKind::cuda, on_cuda::backward);
}

}  // namespace quipu
