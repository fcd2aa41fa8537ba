// Normalisation. A row is held in registers by a part of a warp, a warp or a block, up to 64 KiB:
// it is read once, 16 bytes a thread at a time, and written once; mean and variance are sums over
// what is held. Rows that begin inside of 16 bytes, longer ones and channels of odd sizes are read
// for the mean, for the variance and for the result, each time but the first from a cache; but for
// their ends, rows of 128 entries and more move 16 bytes at a time there, too.
// Bound by memory; sums have a fixed order.
//
// sass hold_rows<.*,8>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
// sass hold_rows<.*,4>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 96
// sass normalise_rows: forbid STL LDL LD.E$ ST.E$; registers 96
#include "norm.cuh"
#include "quipu/cuda/ptx.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
struct Forward {
  NormSizes s;
  void* x;
  DType dtype;
  PerChannel weight, bias;
  void* o;  // may be null, as the next two
  T* mean;
  T* inverse;
  bool centered;
  T eps;
};

template <class Chunk, int V>
__global__ void __launch_bounds__(most_threads, 1)
    hold_rows(Forward<typename Chunk::Number> f, unsigned together) {
  using T = typename Chunk::Number;
  constexpr int count = Chunk::count;
  const LineTeam team = LineTeam::rows(together);
  const ThreadRow own(f.s, team, count);
  T* const scratch = dynamic_shared<T>();
  const T length = static_cast<T>(f.s.length);

  uint4 raw[V];
  for (int v = 0; v < V; ++v) {
    raw[v] = {};
    if (own.is_inside(v)) raw[v] = Chunk::fetch(f.x, f.dtype, own.at(v));
  }
  T mean[1] = {T(0)}, squares[1] = {T(0)}, x[count];
  if (f.centered) {
    for (int v = 0; v < V; ++v) {
      Chunk::unpack(raw[v], x);
      for (int j = 0; j < count; ++j) mean[0] += x[j];
    }
    team.fold(mean, scratch, Plus());
    mean[0] /= length;
  }
  for (int v = 0; v < V; ++v) {
    ptx::look_new(raw[v]);
    if (!own.is_inside(v)) continue;
    Chunk::unpack(raw[v], x);
    for (int j = 0; j < count; ++j) squares[0] += (x[j] - mean[0]) * (x[j] - mean[0]);
  }
  team.fold(squares, scratch + LineTeam::fold_size(blockDim.x, 1, 1), Plus());
  const T inverse = T(1) / std::sqrt(squares[0] / length + f.eps);
  if (own.active && team.member == 0) {
    if (f.mean != nullptr) f.mean[own.row] = mean[0];
    if (f.inverse != nullptr) f.inverse[own.row] = inverse;
  }
  if (f.o == nullptr) return;
  for (int v = 0; v < V; ++v) {
    if (!own.is_inside(v)) continue;
    T w[count], b[count];
    f.weight.template load_pack<Chunk>(f.s, own.group, own.index(v), w);
    f.bias.template load_pack<Chunk>(f.s, own.group, own.index(v), b);
    ptx::look_new(raw[v]);
    Chunk::unpack(raw[v], x);
    for (int j = 0; j < count; ++j) x[j] = (x[j] - mean[0]) * inverse * w[j] + b[j];
    static_cast<uint4*>(f.o)[own.at(v)] = Chunk::packed(x);
  }
}

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 1) normalise_rows(Forward<T> f) {
  constexpr int count = Chunk::count;
  __shared__ T scratch[block_threads / warp_size];
  const Team<team> self;
  if (self.line >= f.s.rows) return;  // a whole team
  const std::int64_t start = self.line * f.s.length, length = f.s.length;
  const ChunkedRow<Chunk> row(f.x, f.dtype, start, 1, length);
  const auto sum_of = [&](auto term) {
    T sum(0);
    row.template each_entry<team>(self.thread, [&](T x, std::int64_t) { sum += term(x); });
    return fold_team<team>(sum, scratch, Plus());
  };
  T mean(0);
  if (f.centered) mean = sum_of([](T x) { return x; }) / static_cast<T>(length);
  const T squares = sum_of([=](T x) { return (x - mean) * (x - mean); });
  const T inverse = T(1) / std::sqrt(squares / static_cast<T>(length) + f.eps);
  if (self.thread == 0 && f.mean != nullptr) f.mean[self.line] = mean;
  if (self.thread == 0 && f.inverse != nullptr) f.inverse[self.line] = inverse;
  if (f.o == nullptr) return;
  const std::int64_t group = self.line % static_cast<std::uint32_t>(f.s.groups);
  const ChunkedRow<Chunk> o(f.o, f.dtype, start, 1, length);
  row.template each_chunk<team>(self.thread, T(0), [&](std::int64_t k, T(&x)[count]) {
    T w[count], b[count];
    f.weight.template load<Chunk>(f.s, group, k, w);
    f.bias.template load<Chunk>(f.s, group, k, b);
    for (int j = 0; j < count; ++j) x[j] = (x[j] - mean) * inverse * w[j] + b[j];
    o.put(k, x, false);
  });
}

// ---- on the host ----

template <class T>
Forward<T> arguments(const NormSizes& s, const View& x, const View& weight, const View& bias,
                     const View& o, const View& mean, const View& inverse, bool centered,
                     double eps) {
  return {s,
          x.data,
          x.dtype,
          PerChannel(weight, s, 1),
          PerChannel(bias, s, 0),
          o.defined ? o.data : nullptr,
          mean.defined ? mean.as<T>() : nullptr,
          inverse.defined ? inverse.as<T>() : nullptr,
          centered,
          static_cast<T>(eps)};
}

/// Whether the rows were held.
template <class Chunk, class T>
bool hold(const Queue& queue, const Forward<T>& f) {
  const auto try_with = [&]<int V>(std::integral_constant<int, V>) {
    const LineCut cut = held_rows(f.s.length / Chunk::count, V);
    if (!cut.fits) return false;
    run(queue, hold_rows<Chunk, V>, blocks_for(f.s.rows, cut.threads / cut.together), cut.threads,
        2 * sizeof(T) * LineTeam::fold_size(cut.threads, 1, 1), f, cut.together);
    return true;
  };
  return try_with(std::integral_constant<int, 4>{}) || try_with(std::integral_constant<int, 8>{});
}

void forward(View x, View weight, View bias, View o, View mean, View inverse, bool centered,
             double eps) {
  const NormSizes s(x);
  if (s.rows == 0) return;
  const Queue queue(x);
  const bool whole = is_packed(x) && (!o.defined || is_packed(o));
  const bool packed = is_chunked(x, o.defined ? o : x);
  with_chunk(x.dtype, s.length, packed, [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
    const Forward<T> f = arguments<T>(s, x, weight, bias, o, mean, inverse, centered, eps);
    if constexpr (Chunk::count > 1) {
      if (whole && f.weight.by_packs && f.bias.by_packs && hold<Chunk>(queue, f)) return;
    }
    constexpr unsigned team = Threads::value;
    run(queue, normalise_rows<T, Chunk, team>, blocks_for(s.rows, Team<team>::per_block),
        block_threads, 0, f);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_norm() {
  norm_forward_kernel.provide(Variant::cuda, on_cuda::forward);
}

}  // namespace quipu::detail
