// Gradients of normalisation. x and d_o of a row are held in registers by a part of a warp, a warp
// or a block, up to 64 KiB each: read once, 16 bytes a thread at a time, and d_x is written or
// added to in the same kernel. Other rows are read twice, the second time from a cache. Gradients
// of weight and bias read x and d_o once more, split-K over a fixed number of parts of the rows: a
// block has a part and a strip of channels, in packs of 16 bytes; a last kernel adds the parts in
// order. Bound by memory.
//
// sass hold_rows<.*,8>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
// sass hold_rows<.*,4>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
// sass sum_packs: need LDG.E.128; forbid STL LDL LD.E$ ST.E$; registers 96
// sass (differentiate_rows|sum_channels|add_parts)<: forbid STL LDL LD.E$ ST.E$; registers 96
#include "norm.cuh"
#include "quipu/cuda/ptx.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
struct Backward {
  NormSizes s;
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

template <class Chunk, int V>
__global__ void __launch_bounds__(most_threads, 1)
    hold_rows(Backward<typename Chunk::Number> b, GradTarget<Chunk> target, unsigned together) {
  using T = typename Chunk::Number;
  constexpr int count = Chunk::count, batch = 4;
  const LineTeam team = LineTeam::rows(together);
  const ThreadRow own(b.s, team, count);

  uint4 raw_x[V], raw_d_o[V];
  for (int v = 0; v < V; ++v) {
    raw_x[v] = raw_d_o[v] = {};
    if (!own.is_inside(v)) continue;
    raw_x[v] = Chunk::fetch(b.x, b.dtype, own.at(v));
    raw_d_o[v] = Chunk::fetch(b.d_o, b.dtype, own.at(v));
  }
  const T mean = own.active ? b.mean_of(own.row) : T(0);
  const T inverse = own.active ? b.inverse[own.row] : T(0);
  // x without its mean, and the gradient with the weight in it.
  const auto unpack = [&](int v, T(&x)[count], T(&up)[count]) {
    T w[count];
    b.weight.template load_pack<Chunk>(b.s, own.group, own.index(v), w);
    ptx::look_new(raw_x[v]);
    ptx::look_new(raw_d_o[v]);
    Chunk::unpack(raw_x[v], x);
    Chunk::unpack(raw_d_o[v], up);
    for (int j = 0; j < count; ++j) {
      x[j] -= mean;
      up[j] *= w[j];
    }
  };
  T sums[2] = {};  // of up, of up x
  for (int v = 0; v < V; ++v) {
    if (!own.is_inside(v)) continue;
    T x[count], up[count];
    unpack(v, x, up);
    for (int j = 0; j < count; ++j) {
      sums[0] += up[j];
      sums[1] += up[j] * x[j];
    }
  }
  team.fold(sums, dynamic_shared<T>(), Plus());
  const T length = static_cast<T>(b.s.length);
  const T shift = b.mean != nullptr ? sums[0] / length : T(0);
  const T slope = inverse * sums[1] / length * inverse;
  for (int first = 0; first < V; first += batch) {
    uint4 before[batch];
    for (int v = 0; v < batch; ++v) {
      before[v] = {};
      if (own.is_inside(first + v)) before[v] = target.before(own.at(first + v));
    }
    for (int v = 0; v < batch; ++v) {
      if (!own.is_inside(first + v)) continue;
      T x[count], up[count];
      unpack(first + v, x, up);
      for (int j = 0; j < count; ++j) up[j] = inverse * (up[j] - shift - x[j] * slope);
      target.put(own.at(first + v), up, before[v]);
    }
  }
}

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 1) differentiate_rows(Backward<T> b) {
  __shared__ T scratch[block_threads / warp_size];
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
  sum = b.mean != nullptr ? fold_team<team>(sum, scratch, Plus()) : T(0);
  product = inverse * fold_team<team>(product, scratch, Plus());
  const T shift = sum / static_cast<T>(length), slope = product / static_cast<T>(length) * inverse;
  for (std::int64_t k = self.thread * Chunk::count; k < length; k += team * Chunk::count) {
    T x[Chunk::count], up[Chunk::count];
    load(k, x, up);
    for (int j = 0; j < Chunk::count; ++j) up[j] = inverse * (up[j] - shift - x[j] * slope);
    Chunk::put(b.d_x, b.d_x_type, start + k, up, b.add);
  }
}

/// Where partial sums of weight and bias go; either may be null.
template <class T>
struct ChannelSums {
  std::int64_t parts, part_step;
  T* weight;
  T* bias;
};

/// A block has `together` packs of channels side by side, and one part of the rows of a group,
/// which its members share.
template <class Chunk>
__global__ void __launch_bounds__(block_threads, 1)
    sum_packs(Backward<typename Chunk::Number> b, ChannelSums<typename Chunk::Number> sums,
              unsigned together) {
  using T = typename Chunk::Number;
  constexpr int count = Chunk::count;
  const LineTeam team = LineTeam::columns(together);
  const std::int64_t packs = b.s.channels / count, pack = blockIdx.y * together + team.line;
  const std::int64_t part = blockIdx.x / b.s.groups, group = blockIdx.x % b.s.groups;
  T totals[2 * count] = {};  // of the weight, of the bias
  const std::int64_t end = pack < packs ? b.s.outer * (part + 1) / sums.parts : 0;
  for (std::int64_t i = b.s.outer * part / sums.parts + team.member; i < end; i += team.members) {
    const std::int64_t row = i * b.s.groups + group;
    T x[count] = {}, up[count];
    Chunk::unpack(Chunk::fetch(b.d_o, b.dtype, row * packs + pack), up);
    if (sums.weight != nullptr) Chunk::unpack(Chunk::fetch(b.x, b.dtype, row * packs + pack), x);
    const T mean = b.mean_of(row), inverse = b.inverse[row];
    for (int j = 0; j < count; ++j) {
      totals[j] += up[j] * ((x[j] - mean) * inverse);
      totals[count + j] += up[j];
    }
  }
  team.fold(totals, dynamic_shared<T>(), Plus());
  if (pack >= packs || team.member != 0) return;
  const std::int64_t at = part * sums.part_step + group * b.s.channels + pack * count;
  for (int j = 0; j < count; ++j) {
    if (sums.weight != nullptr) sums.weight[at + j] = totals[j];
    if (sums.bias != nullptr) sums.bias[at + j] = totals[count + j];
  }
}

/// The same for any sizes: a thread has a channel, or a warp where a channel has many entries.
template <class T, unsigned team>
__global__ void __launch_bounds__(block_threads, 1)
    sum_channels(Backward<T> b, ChannelSums<T> sums) {
  const std::int64_t channel = blockIdx.y * Team<team>::per_block + threadIdx.x / team;
  const unsigned thread = threadIdx.x % team;
  const std::int64_t part = blockIdx.x / b.s.groups, group = blockIdx.x % b.s.groups;
  if (channel >= b.s.channels) return;  // a whole team
  T weight_sum(0), bias_sum(0);
  for (std::int64_t i = b.s.outer * part / sums.parts; i < b.s.outer * (part + 1) / sums.parts;
       ++i) {
    const std::int64_t row = i * b.s.groups + group;
    const std::int64_t start = row * b.s.length + channel * b.s.inner;
    const T mean = b.mean_of(row), inverse = b.inverse[row];
    for (std::int64_t k = thread; k < b.s.inner; k += team) {
      const T up = load_element<T>(b.d_o, b.d_o_type, start + k);
      bias_sum += up;
      if (sums.weight == nullptr) continue;
      weight_sum += up * ((load_element<T>(b.x, b.dtype, start + k) - mean) * inverse);
    }
  }
  if constexpr (team > 1) {
    weight_sum = fold_warp(weight_sum, Plus());
    bias_sum = fold_warp(bias_sum, Plus());
  }
  if (thread != 0) return;
  const std::int64_t at = part * sums.part_step + group * b.s.channels + channel;
  if (sums.weight != nullptr) sums.weight[at] = weight_sum;
  if (sums.bias != nullptr) sums.bias[at] = bias_sum;
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
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

template <class Chunk, class T>
bool hold(const Queue& queue, const Backward<T>& b) {
  const auto try_with = [&]<int V>(std::integral_constant<int, V>) {
    const LineCut cut = held_rows(b.s.length / Chunk::count, V);
    if (!cut.fits) return false;
    run(queue, hold_rows<Chunk, V>, blocks_for(b.s.rows, cut.threads / cut.together), cut.threads,
        2 * sizeof(T) * LineTeam::fold_size(cut.threads, 1, 2), b,
        GradTarget<Chunk>{b.d_x, b.d_x_type, b.add}, cut.together);
    return true;
  };
  return try_with(std::integral_constant<int, 4>{}) || try_with(std::integral_constant<int, 8>{});
}

/// `in_packs`: a channel has one entry a row, so that packs of a row are packs of channels.
template <class Chunk, class T>
void sum_parts(const Queue& queue, const Backward<T>& b, const ChannelSums<T>& sums,
               bool in_packs) {
  const auto rows = static_cast<unsigned>(sums.parts * b.s.groups);
  if constexpr (Chunk::count > 1) {
    if (in_packs) {
      constexpr std::int64_t widest = 8;  // packs: a line of the cache
      const std::int64_t packs = b.s.channels / Chunk::count;
      const unsigned together = power_above(std::min(packs, widest));
      return run(queue, sum_packs<Chunk>, dim3(rows, blocks_for(packs, together)), block_threads,
                 sizeof(T) * LineTeam::fold_size(block_threads, together, 2 * Chunk::count), b,
                 sums, together);
    }
  }
  const auto run_team = [&]<unsigned team>(std::integral_constant<unsigned, team>) {
    const dim3 grid(rows, blocks_for(b.s.channels, Team<team>::per_block));
    run(queue, sum_channels<T, team>, grid, block_threads, 0, b, sums);
  };
  b.s.inner < 16 ? run_team(std::integral_constant<unsigned, 1>{})
                 : run_team(std::integral_constant<unsigned, warp_size>{});
}

template <class T>
void finish(const Queue& queue, const Grad& g, const T* sums, const ChannelSums<T>& all) {
  if (sums == nullptr) return;
  const Layout<1> layout = Layout<1>{g.view.shape, {g.view.strides}}.merged(false);
  const auto n = static_cast<std::uint32_t>(g.view.numel());
  run(queue, add_parts<T>, blocks_for(n), block_threads, 0, Walk<1>(layout), n, sums, all.parts,
      all.part_step, g.view.data, g.view.dtype, g.add);
}

void backward(View x, View weight, View d_o, View mean, View inverse, Grad d_x, Grad d_weight,
              Grad d_bias, View parts) {
  const NormSizes s(x);
  const Queue queue(x);
  const bool same = d_x.view.dtype == x.dtype;
  const bool inputs_packed = is_packed(x) && is_packed(d_o) && d_o.dtype == x.dtype;
  const bool packed = inputs_packed && (!same || !d_x.wanted() || is_packed(d_x.view));
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
      bool held = false;
      if constexpr (Chunk::count > 1) held = same && b.weight.by_packs && hold<Chunk>(queue, b);
      if (!held) {
        run(queue, differentiate_rows<T, Chunk, team>, blocks_for(s.rows, Team<team>::per_block),
            block_threads, 0, b);
      }
    }
    if (!parts.defined || s.groups * s.channels == 0) return;
    T* const first = parts.as<T>();
    const ChannelSums<T> sums{
        norm_parts(s.outer), parts.stride(0), d_weight.wanted() ? first : nullptr,
        d_bias.wanted() ? first + (d_weight.wanted() ? parts.stride(1) : 0) : nullptr};
    sum_parts<Chunk>(queue, b, sums, s.inner == 1);
    finish(queue, d_weight, sums.weight, sums);
    finish(queue, d_bias, sums.bias, sums);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_norm_backward() {
  norm_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
