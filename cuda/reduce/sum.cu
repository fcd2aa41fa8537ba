// o (=|+=) scale * sum of f(operands), in the frame of reduce.cuh. Each operand is read once. Where
// all have one type and lie densely along a reduced or a kept dimension, a thread moves packs of 16
// bytes and has four loads of each operand in flight, 16 KiB a block; a reduced row may begin and
// end anywhere, and only its ends go one by one. Its numbers are added in pairs of f32 that keep
// what each rounding loses, as f64 would, whose units are few on most cards; a sum that overflows
// in f32 or meets an infinity or NaN is made again in f64. Else a chunk is one element, of any type
// and strides. Lanes and slices, which a second kernel adds, are f64 (i64). Bound by memory.
//
// sass sum_chunks<[^,<]*Packed: need LDG.E.128; forbid LD.E ST.E; registers 128; shared 2048
// sass sum_chunks<[^,<]*Loose: forbid LD.E ST.E; registers 96; shared 2048
// sass add_slices: forbid LD.E ST.E; registers 48; shared 0
#include <optional>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/cuda/pointwise/pointwise.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/rows.cuh"
#include "reduce.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

template <class S>
struct Add {
  __device__ __forceinline__ S operator()(S a, S b) const { return wrapping_sum(a, b); }
};

/// Where sums go: to the output, scaled, or to the slices' scratch.
struct SumTarget {
  Output out;
  std::int64_t step;  // from one sum of a chunk to the next
  double scale;
  void* partials;  // [slice][output], only used with several slices
};

template <class S>
__device__ __forceinline__ void put_sum(const SumTarget& to, std::int64_t at, S sum) {
  if (to.scale == 1.0) {
    put_element(to.out.data, to.out.dtype, at, sum, to.out.add);
  } else {
    put_element(to.out.data, to.out.dtype, at, to.scale * static_cast<double>(sum), to.out.add);
  }
}

template <class T>
struct PlainTotal {
  __device__ __forceinline__ void add(T x) { sum = wrapping_sum(sum, static_cast<Sum<T>>(x)); }
  __device__ __forceinline__ void settle() {}
  __device__ __forceinline__ bool is_finite() const { return true; }
  __device__ __forceinline__ Sum<T> value() const { return sum; }
  Sum<T> sum = 0;
};
/// A sum in two numbers: `low` gathers what the roundings of `high` lose (Knuth's TwoSum, exact
/// where nothing overflows), and stays 2^-24 times smaller where it is settled now and then. After
/// an overflow `high` stays infinite or NaN.
struct CompensatedTotal {
  __device__ __forceinline__ void add(float x) {
    const float sum = __fadd_rn(high, x), added = __fsub_rn(sum, high);
    const float of_high = __fsub_rn(high, __fsub_rn(sum, added)), of_x = __fsub_rn(x, added);
    low = __fadd_rn(low, __fadd_rn(of_high, of_x));
    high = sum;
  }
  __device__ __forceinline__ void settle() {
    const float sum = __fadd_rn(high, low);
    low = __fsub_rn(low, __fsub_rn(sum, high));
    high = sum;
  }
  __device__ __forceinline__ bool is_finite() const { return std::isfinite(high); }
  __device__ __forceinline__ double value() const {
    return static_cast<double>(high) + static_cast<double>(low);
  }
  float high = 0, low = 0;
};

/// A chunk of an operand, loaded; i counts elements.
template <class Chunk, class T>
__device__ __forceinline__ typename Chunk::Raw fetch(const Source<T>& source, std::int64_t i) {
  if constexpr (Chunk::count == 1) {
    return source.at(i);
  } else {
    if (source.kind == Source<T>::number) return {};
    const auto* const at = static_cast<const typename Chunk::Element*>(source.data) + i;
    if (source.kind == Source<T>::chunk) return *reinterpret_cast<const uint4*>(at);
    typename Chunk::Elements first{};
    first.elements[0] = *at;
    return std::bit_cast<uint4>(first);
  }
}
template <class Chunk, class T>
__device__ __forceinline__ void unpack(const Source<T>& source, const typename Chunk::Raw& raw,
                                       T (&values)[Chunk::count]) {
  Chunk::unpack(raw, values);
  if (Chunk::count == 1 || source.kind == Source<T>::chunk) return;
  const T value = source.kind == Source<T>::number ? source.value : values[0];
  for (int j = 0; j < Chunk::count; ++j) values[j] = value;
}

/// What a thread sums.
template <class Chunk, Pointwise F>
struct SumLoop {
  using T = typename Chunk::Number;
  const ReducePlan& plan;
  const ReduceThread& self;
  const Walk<4>& reduced;
  const Sources<T>& in;
  std::int64_t row_length;  // 0: all chunks are whole
  std::int64_t base[4] = {};
  int before = 0;  // elements of the first chunk that are not of the row

  /// Adds to totals of one number a chunk, or of one for each of its elements.
  template <int batch, class Total, int S>
  __device__ __forceinline__ void add_to(Total (&totals)[S]) const {
    constexpr int count = Chunk::count;
    for (std::uint32_t r = self.begin + self.lane; r < self.end; r += batch * plan.lanes()) {
      typename Chunk::Raw a[batch], b[batch], c[batch];
      bool whole[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const std::uint32_t chunk = r + static_cast<unsigned>(k) * plan.lanes();
        const std::int64_t first = std::int64_t{chunk} * count - before;
        const bool inside = chunk < self.end;
        whole[k] = inside && (row_length == 0 || (first >= 0 && first + count <= row_length));
        std::int64_t at[4];
        reduced.find(inside ? chunk : 0, at);
        for (int v = 0; v < 4; ++v) at[v] += base[v];
        if (whole[k]) {
          a[k] = fetch<Chunk>(in.a, at[1]);
          b[k] = fetch<Chunk>(in.b, at[2]);
          c[k] = fetch<Chunk>(in.c, at[3]);
        } else if (count > 1 && inside) {
#pragma unroll 1
          for (int j = 0; j < count; ++j) {
            if (first + j < 0 || first + j >= row_length) continue;
            totals[0].add(
                apply<F>(entry(in.a, at[1], j), entry(in.b, at[2], j), entry(in.c, at[3], j)));
          }
        }
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (!whole[k]) continue;
        T x[count], y[count], z[count];
        unpack<Chunk>(in.a, a[k], x);
        unpack<Chunk>(in.b, b[k], y);
        unpack<Chunk>(in.c, c[k], z);
        for (int j = 0; j < count; ++j) totals[j % S].add(apply<F>(x[j], y[j], z[j]));
      }
      for (Total& total : totals) total.settle();
    }
  }
  /// Moves to the boundary of 16 bytes before the row, which is as far from it in all operands.
  __device__ __forceinline__ void begin_before_row() {
    using E = typename Chunk::Element;
    const bool has_a = in.a.kind == Source<T>::chunk;
    const auto* const of_a = static_cast<const E*>(in.a.data) + base[1];
    const auto* const of_b = static_cast<const E*>(in.b.data) + base[2];
    const auto place = reinterpret_cast<std::uintptr_t>(has_a ? of_a : of_b);
    before = static_cast<int>(place % 16 / sizeof(E));
    base[1] -= in.a.kind == Source<T>::chunk ? before : 0;
    base[2] -= in.b.kind == Source<T>::chunk ? before : 0;
    base[3] -= in.c.kind == Source<T>::chunk ? before : 0;
  }
  __device__ __forceinline__ static T entry(const Source<T>& source, std::int64_t at, int j) {
    if (source.kind == Source<T>::number) return source.value;
    const auto* const elements = static_cast<const typename Chunk::Element*>(source.data);
    return converted<T>(elements[source.kind == Source<T>::chunk ? at + j : at]);
  }
};

/// `across`: chunks lie along a kept dimension, and each of their elements belongs to another sum.
template <class Chunk, Pointwise F, bool across>
__global__ void __launch_bounds__(block_threads, 1)
    sum_chunks(ReducePlan plan, Walk<4> kept, Walk<4> reduced, SumTarget to,
               Sources<typename Chunk::Number> in, std::int64_t row_length) {
  using T = typename Chunk::Number;
  constexpr int S = across ? Chunk::count : 1, batch = Chunk::count > 1 ? 4 : 1;
  __shared__ Sum<T> shared[block_threads];
  const ReduceThread self(plan);
  const bool active = self.output < plan.outputs;
  SumLoop<Chunk, F> loop{plan, self, reduced, in, row_length};
  if (active) kept.find(self.output, loop.base);
  if (row_length > 0) loop.begin_before_row();
  Sum<T> sums[S] = {};
  if (active) {
    constexpr bool compensates = std::is_same_v<T, float> && Chunk::count > 1;
    std::conditional_t<compensates, CompensatedTotal, PlainTotal<T>> totals[S];
    loop.template add_to<batch>(totals);
    bool finite = true;
    for (int s = 0; s < S; ++s) {
      sums[s] = totals[s].value();
      finite = finite && totals[s].is_finite();
    }
    if (!finite) {
      PlainTotal<T> again[S];
      loop.template add_to<1>(again);
      for (int s = 0; s < S; ++s) sums[s] = again[s].value();
    }
  }
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const Sum<T> sum = join_lanes(plan, self, sums[s], shared, Add<Sum<T>>{});
    if (!active || self.lane != 0) continue;
    if (plan.slices > 1) {
      const std::int64_t sum_of_slices = std::int64_t{self.slice} * plan.outputs + self.output;
      static_cast<Sum<T>*>(to.partials)[sum_of_slices * S + s] = sum;
    } else {
      put_sum(to, loop.base[0] + s * to.step, sum);
    }
  }
}

template <class T>
using SumKernel = void (*)(ReducePlan, Walk<4> kept, Walk<4> reduced, SumTarget, Sources<T>,
                           std::int64_t row_length);

/// One thread an output; slices are added in their order.
template <class S>
__global__ void __launch_bounds__(block_threads, 1)
    add_slices(std::uint32_t outputs, std::uint32_t slices, Walk<4> kept, SumTarget to) {
  const std::uint32_t output = blockIdx.x * block_threads + threadIdx.x;
  if (output >= outputs) return;
  S sum = 0;
  for (std::uint32_t slice = 0; slice < slices; ++slice) {
    sum = wrapping_sum(sum,
                       static_cast<const S*>(to.partials)[std::int64_t{slice} * outputs + output]);
  }
  std::int64_t at[4];
  kept.find(output, at);
  put_sum(to, at[0], sum);
}

/// Whether the operands lie densest along a reduced dimension.
bool densest_is_reduced(const KeptAndReduced<4>& parts) {
  const auto densest = [](const Layout<4>& part) {
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int d = 0; d < part.shape.size(); ++d) {
      std::int64_t stride = 0;
      for (std::size_t v = 1; v < 4; ++v) stride += std::abs(part.strides[v][d]);
      if (part.shape[d] > 1) best = std::min(best, stride);
    }
    return best;
  };
  return densest(parts.reduced) <= densest(parts.kept);
}

/// Functions of whole tensors; the others are gradients of broadcast operands.
constexpr bool sums_packs(Pointwise f) {
  using enum Pointwise;
  return f == copy || f == mul || f == square_difference || f == exp_difference;
}

template <class Chunk, bool across>
struct MakeSum {
  template <Pointwise F>
  static SumKernel<typename Chunk::Number> kernel() {
    if constexpr (traits_of(F).summed && (Chunk::count == 1 || sums_packs(F))) {
      return sum_chunks<Chunk, F, across>;
    } else {
      return nullptr;
    }
  }
};

/// A call, with its layout in units of chunks.
struct SumCall {
  const Target& o;
  Pointwise f;
  const Operands& in;
  double scale;
  KeptAndReduced<4> parts;
  Layout<4> sums;  // the kept part in elements
  bool across = false;
  std::int64_t row_length = 0;

  /// Changes to packs if all operands allow it: whole ones, aligned; or, along the only reduced
  /// dimension, rows that all begin as far from a boundary of 16 bytes.
  bool change_to_packs() {
    constexpr std::int64_t shortest_row = 64;
    const View* const first = in.first_view();
    if (!sums_packs(f) || first == nullptr || !is_floating(first->dtype)) return false;
    Layout<4>& along = across ? parts.kept : parts.reduced;
    const int last = along.shape.size() - 1;
    const bool rows = !across && last == 0;
    const auto count = static_cast<std::int64_t>(16 / size_of(first->dtype));
    if (rows ? along.shape[last] < shortest_row : along.shape[last] % count != 0) return false;
    const auto behind = [](const View& v) { return reinterpret_cast<std::uintptr_t>(v.data) % 16; };
    std::size_t guide = 0;  // the first operand that has packs
    for (std::size_t v = 1; v <= static_cast<std::size_t>(in.count); ++v) {
      const Operand& operand = in[static_cast<int>(v) - 1];
      if (operand.is_scalar) continue;
      if (operand.view.dtype != first->dtype) return false;
      if (along.strides[v][last] == 0) continue;
      if (along.strides[v][last] != 1) return false;
      if (guide == 0) guide = v;
      if (behind(operand.view) != (rows ? behind(in[static_cast<int>(guide) - 1].view) : 0)) {
        return false;
      }
      for (const Layout<4>* part : {&parts.kept, &parts.reduced}) {
        for (int d = 0; d < part->shape.size(); ++d) {
          if (part == &along && d == last) continue;
          const std::int64_t as_guide = rows ? part->strides[guide][d] : 0;
          if ((part->strides[v][d] - as_guide) % count != 0) return false;
        }
      }
    }
    if (guide == 0) return false;
    row_length = rows ? along.shape[last] : 0;
    along.shape[last] = (along.shape[last] + (rows ? 2 * (count - 1) : 0)) / count;
    for (Strides& strides : along.strides) strides[last] *= count;
    return true;
  }

  template <class Chunk, bool by_element>
  void run_chunks(Chunk) const {
    using T = typename Chunk::Number;
    constexpr int S = by_element ? Chunk::count : 1;
    const Queue queue(o.view);
    const SumKernel<T> kernel = kernel_of<T, MakeSum<Chunk, by_element>>(f);
    ensure(kernel != nullptr, "pointwise function ", static_cast<int>(f),
           " is not summed, or not for whole numbers");
    const ReducePlan plan = plan_reduction(
        numel(parts.kept.shape), numel(parts.reduced.shape), !across,
        static_cast<std::int64_t>(scratch_bytes / sizeof(Sum<T>)) / S, Chunk::count > 1);
    std::optional<Scratch> scratch;
    if (plan.slices > 1) scratch.emplace(queue);
    const SumTarget to{{o.view.data, o.view.dtype, o.add},
                       sums.strides[0].back(),
                       scale,
                       scratch ? scratch->data() : nullptr};
    run(queue, kernel, dim3(blocks_for(plan.outputs, plan.outputs_per_block()), plan.slices),
        block_threads, 0, plan, Walk<4>(parts.kept), Walk<4>(parts.reduced), to,
        sources_of<T>(in, across ? parts.kept : parts.reduced), row_length);
    if (plan.slices == 1) return;
    run(queue, add_slices<Sum<T>>, blocks_for(plan.outputs * S), block_threads, 0, plan.outputs * S,
        plan.slices, Walk<4>(sums), to);
  }
};

void run_sum(SumCall call) {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
  const std::int64_t outputs = numel(call.parts.kept.shape);
  const std::int64_t reduced = numel(call.parts.reduced.shape);
  check(outputs <= most && reduced <= most, "a sum of ", reduced, " elements for each of ", outputs,
        " results is beyond what device ", call.o.view.device, " can do (2^31 each)");
  call.sums = call.parts.kept;
  call.across = !densest_is_reduced(call.parts);
  if (call.change_to_packs()) {
    return with_packed(call.in.first_view()->dtype, [&]<class T, class E>(Packed<T, E> chunk) {
      call.across ? call.run_chunks<Packed<T, E>, true>(chunk)
                  : call.run_chunks<Packed<T, E>, false>(chunk);
    });
  }
  with_compute_type(pointwise_type(call.in),
                    [&]<class T>(T) { call.run_chunks<Loose<T>, false>(Loose<T>{}); });
}

void pointwise_sum(Target o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  if (o.view.numel() == 0) return;
  if (numel(over) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Layout<4> layout{over, pointwise_strides(o.view, in, over)};
  run_sum({o, f, in, scale, KeptAndReduced<4>(layout), {}});
}

}  // namespace
}  // namespace on_cuda

void register_cuda_reduce_sum() {
  pointwise_sum_kernel.provide(Variant::cuda, on_cuda::pointwise_sum);
}

}  // namespace quipu::detail
