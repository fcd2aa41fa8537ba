// Gradients of normalisation: 3 U, x and d_o read once and d_x written or added to once. Each of as
// many blocks as a card runs at once has a part of the rows, one after another: a part of a warp, a
// warp or the block holds x and d_o of a row in registers, 16 bytes a thread at a time, and adds
// its columns of the gradients of weight and bias to sums that stay in registers, too; the parts'
// sums go through the workspace to the kernel of column sums, which adds them in a fixed order.
// Rows beyond 16 KiB (f32, f64: 32 KiB) and channels of several entries are read twice for d_x, the
// second time from a cache, and once more for weight and bias, split-K over the same parts. Bound
// by memory.
//
// sass hold_rows<: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
// sass sum_packs: need LDG.E.128; forbid STL LDL LD.E$ ST.E$; registers 96
// sass (differentiate_rows|sum_channels)<: forbid STL LDL LD.E$ ST.E$; registers 96
#include "norm.cuh"
#include "quipu/cuda/ptx.h"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
struct Backward {
  NormSizes s;
  void* x;
  void* d_o;
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

/// Where partial sums of weight and bias go; either may be null.
template <class T>
struct ChannelSums {
  std::int64_t parts, part_step;
  T* weight;
  T* bias;
};

/// Adds what the rows of a block have summed, column by column, and stores it.
template <class Chunk, int V, class T>
__device__ __forceinline__ void store_sums(const LineTeam& team, std::int64_t channels,
                                           const T (&totals)[V][Chunk::count], T* scratch, T* to) {
  constexpr unsigned count = Chunk::count, padding = warp_size / count;
  const unsigned step = blockDim.x + padding, columns = team.members * count;
  if (to == nullptr) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    __syncthreads();
    for (unsigned j = 0; j < count; ++j) scratch[j * step + threadIdx.x] = totals[v][j];
    __syncthreads();
    for (unsigned c = threadIdx.x; c < columns; c += blockDim.x) {
      const std::int64_t channel = std::int64_t{v} * columns + c;
      if (channel >= channels) break;
      T total(0);
      for (unsigned line = 0; line < team.lines; ++line) {
        total += scratch[c % count * step + line * team.members + c / count];
      }
      to[channel] = total;
    }
  }
}

/// A block has a part of the rows of a group; its threads keep the sums of their columns.
template <class Chunk, int V>
__global__ void __launch_bounds__(most_threads, 1)
    hold_rows(Backward<typename Chunk::Number> b, GradTarget<Chunk> target,
              ChannelSums<typename Chunk::Number> to, unsigned together) {
  using T = typename Chunk::Number;
  constexpr int count = Chunk::count;
  const LineTeam team = LineTeam::rows(together);
  const std::int64_t part = blockIdx.x / b.s.groups, group = blockIdx.x % b.s.groups;
  const std::int64_t packs = b.s.length / count, end = b.s.outer * (part + 1) / to.parts;
  const T length = static_cast<T>(b.s.length);
  const auto index = [&](int v) { return team.member + std::int64_t{v} * team.members; };
  T of_weight[V][count] = {}, of_bias[V][count] = {};
  int buffer = 0;
  for (std::int64_t first = b.s.outer * part / to.parts; first < end; first += team.lines) {
    const bool active = first + team.line < end;
    const std::int64_t row = (first + team.line) * b.s.groups + group;
    uint4 raw_x[V], raw_d_o[V];
    for (int v = 0; v < V; ++v) {
      raw_x[v] = raw_d_o[v] = {};
      if (!active || index(v) >= packs) continue;
      raw_x[v] = Chunk::fetch(b.x, b.dtype, row * packs + index(v));
      raw_d_o[v] = Chunk::fetch(b.d_o, b.dtype, row * packs + index(v));
    }
    const T mean = active ? b.mean_of(row) : T(0), inverse = active ? b.inverse[row] : T(0);
    // x without its mean, the gradient, and the weight.
    const auto unpack = [&](int v, T(&x)[count], T(&up)[count], T(&w)[count]) {
      b.weight.template load_pack<Chunk>(b.s, group, index(v), w);
      ptx::look_new(raw_x[v]);
      ptx::look_new(raw_d_o[v]);
      Chunk::unpack(raw_x[v], x);
      Chunk::unpack(raw_d_o[v], up);
      for (int j = 0; j < count; ++j) x[j] -= mean;
    };
    T sums[2] = {};  // of up w, of up w x
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (!active || index(v) >= packs) continue;
      T x[count], up[count], w[count];
      unpack(v, x, up, w);
      for (int j = 0; j < count; ++j) {
        of_weight[v][j] += up[j] * (x[j] * inverse);
        of_bias[v][j] += up[j];
        sums[0] += up[j] * w[j];
        sums[1] += up[j] * w[j] * x[j];
      }
    }
    if (target.data == nullptr) continue;
    team.fold(sums, dynamic_shared<T>() + buffer * LineTeam::fold_size(blockDim.x, 1, 2), Plus());
    buffer ^= 1;
    const T shift = b.mean != nullptr ? sums[0] / length : T(0);
    const T slope = inverse * sums[1] / length * inverse;
    uint4 before[V];
    for (int v = 0; v < V; ++v) {
      before[v] = {};
      if (active && index(v) < packs) before[v] = target.before(row * packs + index(v));
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (!active || index(v) >= packs) continue;
      T x[count], up[count], w[count];
      unpack(v, x, up, w);
      for (int j = 0; j < count; ++j) up[j] = inverse * (up[j] * w[j] - shift - x[j] * slope);
      target.put(row * packs + index(v), up, before[v]);
    }
  }
  const std::int64_t at = part * to.part_step + group * b.s.channels;
  const auto store = [&](const T(&totals)[V][count], T* sums) {
    store_sums<Chunk, V>(team, b.s.channels, totals, dynamic_shared<T>(),
                         sums != nullptr ? sums + at : nullptr);
  };
  store(of_weight, to.weight);
  store(of_bias, to.bias);
}

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 1) differentiate_rows(Backward<T> b) {
  constexpr int count = Chunk::count;
  __shared__ T scratch[block_threads / warp_size];
  const Team<team> self;
  if (self.line >= b.s.rows) return;  // a whole team
  const std::int64_t start = self.line * b.s.length, length = b.s.length;
  const std::int64_t group = self.line % static_cast<std::uint32_t>(b.s.groups);
  const T mean = b.mean_of(self.line), inverse = b.inverse[self.line];
  const ChunkedRow<Chunk> row(b.x, b.dtype, start, 1, length);
  const ChunkedRow<Chunk> d_o(b.d_o, b.d_o_type, start, 1, length);
  const ChunkedRow<Chunk> d_x(b.d_x, b.d_x_type, start, 1, length);
  // Calls f(k, x without its mean, the gradient with the weight in it); both are 0 outside the row.
  const auto each_chunk = [&](auto f) {
    row.template each_chunk<team>(self.thread, mean, [&](std::int64_t k, T(&x)[count]) {
      T up[count] = {}, w[count];
      d_o.load(k, up);
      b.weight.template load<Chunk>(b.s, group, k, w);
      for (int j = 0; j < count; ++j) {
        x[j] -= mean;
        up[j] *= w[j];
      }
      f(k, x, up);
    });
  };
  T sum(0), product(0);
  each_chunk([&](std::int64_t, const T(&x)[count], const T(&up)[count]) {
    for (int j = 0; j < count; ++j) {
      sum += up[j];
      product += up[j] * x[j];
    }
  });
  sum = b.mean != nullptr ? fold_team<team>(sum, scratch, Plus()) : T(0);
  product = inverse * fold_team<team>(product, scratch, Plus());
  const T shift = sum / static_cast<T>(length), slope = product / static_cast<T>(length) * inverse;
  each_chunk([&](std::int64_t k, const T(&x)[count], T(&up)[count]) {
    for (int j = 0; j < count; ++j) up[j] = inverse * (up[j] - shift - x[j] * slope);
    d_x.put(k, up, b.add);
  });
}

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

// ---- on the host ----

/// Whether the rows were held, and with them the sums of channels made.
template <class Chunk, class T>
bool hold(const Queue& queue, const Backward<T>& b, ChannelSums<T> sums) {
  const auto try_with = [&]<int V>(std::integral_constant<int, V>) {
    const LineCut cut = held_rows(b.s.length / Chunk::count, V);
    if (!cut.fits) return false;
    const std::int64_t lines = cut.threads / cut.together;
    if (sums.weight == nullptr && sums.bias == nullptr)
      sums.parts = (b.s.outer + lines - 1) / lines;
    const unsigned numbers = std::max(2 * LineTeam::fold_size(cut.threads, 1, 2),
                                      Chunk::count * cut.threads + warp_size);
    run(queue, hold_rows<Chunk, V>, static_cast<unsigned>(sums.parts * b.s.groups), cut.threads,
        sizeof(T) * numbers, b, GradTarget<Chunk>{b.d_x, b.d_x_type, b.add}, sums, cut.together);
    return true;
  };
  if (try_with(std::integral_constant<int, 2>{})) return true;
  if constexpr (Chunk::count <= 4) return try_with(std::integral_constant<int, 4>{});
  return false;
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

/// Adds the parts, in order.
void finish(const Grad& g, View parts, std::int64_t which) {
  if (!g.wanted()) return;
  parts.data =
      parts.as<char>() + which * parts.stride(1) * static_cast<std::int64_t>(size_of(parts.dtype));
  parts.shape.erase(1);
  parts.strides.erase(1);
  View sum = g.view;
  sum.shape.insert(0, 1);
  sum.strides.insert(0, 0);
  pointwise_sum_kernel({sum, g.add}, Pointwise::copy, {parts}, parts.shape, 1);
}

void backward(View x, View weight, View d_o, View mean, View inverse, Grad d_x, Grad d_weight,
              Grad d_bias, View parts) {
  const NormSizes s(x);
  const Queue queue(x);
  const bool same = d_x.view.dtype == x.dtype;
  const View& to = same && d_x.wanted() ? d_x.view : x;
  const bool whole = is_packed(x) && is_packed(d_o) && d_o.dtype == x.dtype && is_packed(to);
  const bool packed = whole || (d_o.dtype == x.dtype && (same || !d_x.wanted()) &&
                                is_chunked(x, d_o) && is_chunked(x, to));
  with_chunk(x.dtype, s.length, packed, [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
    const Backward<T> b{s,
                        x.data,
                        d_o.data,
                        x.dtype,
                        d_o.dtype,
                        PerChannel(weight, s, 1),
                        mean.defined ? mean.as<T>() : nullptr,
                        inverse.as<T>(),
                        d_x.wanted() ? d_x.view.data : nullptr,
                        d_x.view.dtype,
                        d_x.add};
    const bool has_sums = parts.defined && s.groups * s.channels > 0;
    T* const first = has_sums ? parts.as<T>() : nullptr;
    const ChannelSums<T> sums{
        has_sums ? parts.size(0) : 1, has_sums ? parts.stride(0) : 0,
        has_sums && d_weight.wanted() ? first : nullptr,
        has_sums && d_bias.wanted() ? first + (d_weight.wanted() ? parts.stride(1) : 0) : nullptr};
    constexpr unsigned team = Threads::value;
    const bool has_rows = s.rows > 0 && s.length > 0;
    bool held = false;
    if constexpr (Chunk::count > 1) {
      held = whole && has_rows && s.inner == 1 && b.weight.by_packs && (same || !d_x.wanted()) &&
             hold<Chunk>(queue, b, sums);
    }
    if (!held && has_rows && d_x.wanted()) {
      run(queue, differentiate_rows<T, Chunk, team>, blocks_for(s.rows, Team<team>::per_block),
          block_threads, 0, b);
    }
    if (!has_sums) return;
    if (!held) sum_parts<Chunk>(queue, b, sums, whole && s.inner == 1);
    finish(d_weight, parts, 0);
    finish(d_bias, parts, d_weight.wanted());
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_norm_backward() {
  norm_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
