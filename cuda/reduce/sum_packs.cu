// Sums of real operands of one type that lie densely along the last reduced or kept dimension, in
// the frame of reduce.cuh. A thread moves packs of 16 bytes and has four loads of each operand in
// flight, 16 KiB a block; a reduced row may begin and end anywhere, and only its ends go one by
// one. Packs are added in pairs of f32 that keep what each rounding loses, as f64 would, whose
// units are few on most cards: some ten instructions an element, which 128 lanes issue faster than
// memory brings 16-bit elements to a multiprocessor (7 a clock on an H100). A sum that overflows in
// f32 or meets an infinity or NaN is made again in f64, in which lanes and slices are added, too.
// Bound by memory.
//
// sass sum_packs<[^,<]*Packed: need LDG.E.128; forbid LD.E ST.E; registers 128; shared 2048;
//   blocks 2
// sass sum_packs<[^,<]*Packed<float,_.*{Pointwise:copy,mul,square_difference}: slots 13 LDG.E.128/8
// sass sum_packs<[^,<]*Packed<float,float.*{Pointwise:copy,mul,square_difference}: slots 15
//   LDG.E.128/4
// sass add_slices: forbid LD.E ST.E; registers 48; shared 0
#include <cmath>

#include "quipu/cuda/tile/rows.cuh"
#include "sum.cuh"

namespace quipu::detail::on_cuda {
namespace {

/// A sum in two numbers: `low` gathers what the roundings of `high` lose (Knuth's TwoSum, exact
/// where nothing overflows), and stays 2^-24 times smaller where it is settled now and then. After
/// an overflow `high` stays infinite or NaN.
struct PairSum {
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
struct WideSum {
  __device__ __forceinline__ void add(double x) { sum += x; }
  __device__ __forceinline__ void settle() {}
  __device__ __forceinline__ bool is_finite() const { return true; }
  __device__ __forceinline__ double value() const { return sum; }
  double sum = 0;
};

/// An operand of sum_packs: packs, or elements that all of a pack share.
template <class Chunk>
struct PackSource {
  using E = typename Chunk::Element;
  const E* data;
  std::int64_t step;  // from a pack to the next
  bool packed;

  __device__ __forceinline__ uint4 fetch(const E* at) const {
    if (packed) return *reinterpret_cast<const uint4*>(at);
    typename Chunk::Elements shared;
    for (E& e : shared.elements) e = *at;
    return std::bit_cast<uint4>(shared);
  }
};

/// What sum_packs sums: `outer` lines of packs for each output.
template <class Chunk>
struct PackedLines {
  Walk<4> kept, outer;
  std::uint32_t outers;
  std::int64_t length;  // rows: elements of a row
  PackSource<Chunk> a, b;
};

/// A thread's share of a line; a and b are the first elements of the line.
template <class Chunk, Pointwise F>
struct PackedLine {
  using E = typename Chunk::Element;
  using T = typename Chunk::Number;
  static constexpr int count = Chunk::count;
  static constexpr bool has_b = F != Pointwise::copy;
  const PackedLines<Chunk>& lines;
  unsigned lane, lanes;
  const E* a;
  const E* b;

  /// Adds packs to totals, of which there is one, or one for each element of a pack.
  template <int batch, class Total, int S>
  __device__ __forceinline__ void add_packs(std::uint32_t begin, std::uint32_t end,
                                            Total (&totals)[S]) const {
    const std::int64_t a_step = lines.a.step * lanes, b_step = lines.b.step * lanes;
    const E* next_a = a + lines.a.step * (begin + lane);
    const E* next_b = b + lines.b.step * (begin + lane);
    for (std::uint32_t r = begin + lane; r < end; r += batch * lanes) {
      uint4 raw_a[batch], raw_b[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (r + static_cast<unsigned>(k) * lanes < end) {
          raw_a[k] = lines.a.fetch(next_a);
          if constexpr (has_b) raw_b[k] = lines.b.fetch(next_b);
        }
        next_a += a_step;
        next_b += b_step;
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (r + static_cast<unsigned>(k) * lanes >= end) continue;
        T x[count], y[count] = {};
        Chunk::unpack(raw_a[k], x);
        if constexpr (has_b) Chunk::unpack(raw_b[k], y);
        for (int j = 0; j < count; ++j) totals[j % S].add(apply<F>(x[j], y[j], T(0)));
      }
      for (Total& total : totals) total.settle();
    }
  }
  /// Adds `n` elements from `first` on.
  template <class Total>
  __device__ __forceinline__ void add_elements(std::int64_t first, std::int64_t n,
                                               Total& total) const {
#pragma unroll 1
    for (std::int64_t i = first + lane; i < first + n; i += lanes) {
      total.add(apply<F>(converted<T>(a[lines.a.packed ? i : 0]),
                         converted<T>(b[lines.b.packed ? i : 0]), T(0)));
    }
  }
  /// Adds a row that begins and ends anywhere; its whole packs are those of memory.
  template <int batch, class Total>
  __device__ __forceinline__ void add_row(const ReduceThread& self, Total (&totals)[1]) {
    const auto place = reinterpret_cast<std::uintptr_t>(lines.a.packed ? a : b) / sizeof(E);
    const std::int64_t before = min(lines.length, static_cast<std::int64_t>(-place % count));
    const std::int64_t whole = (lines.length - before) / count;
    a += lines.a.packed ? before : 0;
    b += lines.b.packed ? before : 0;
    add_packs<batch>(self.begin, min(self.end, static_cast<std::uint32_t>(whole)), totals);
    if (self.begin > 0) return;
    add_elements(-before, before, totals[0]);
    add_elements(whole * count, lines.length - before - whole * count, totals[0]);
  }
};

/// `across`: packs lie along a kept dimension, and each of their elements belongs to another sum.
template <class Chunk, Pointwise F, bool across>
__global__ void __launch_bounds__(block_threads, 2)
    sum_packs(ReducePlan plan, PackedLines<Chunk> lines, SumTarget to) {
  constexpr int S = across ? Chunk::count : 1;
  __shared__ double shared[block_threads];
  const ReduceThread self(plan);
  const bool active = self.output < plan.outputs;
  std::int64_t base[4] = {};
  if (active) lines.kept.find(self.output, base);
  const auto add_lines = [&]<int batch>(auto& totals) {
    const auto slices = gridDim.z, slice = blockIdx.z;
    const auto end = static_cast<std::uint32_t>(std::uint64_t{lines.outers} * (slice + 1) / slices);
    for (auto i = static_cast<std::uint32_t>(std::uint64_t{lines.outers} * slice / slices); i < end;
         ++i) {
      std::int64_t at[4];
      lines.outer.find(i, at);
      PackedLine<Chunk, F> line{lines, self.lane, plan.lanes(), lines.a.data + base[1] + at[1],
                                lines.b.data + base[2] + at[2]};
      if constexpr (across) {
        line.template add_packs<batch>(self.begin, self.end, totals);
      } else {
        line.template add_row<batch>(self, totals);
      }
    }
  };
  double sums[S] = {};
  if (active) {
    std::conditional_t<sizeof(typename Chunk::Number) == 4, PairSum, WideSum> totals[S];
    add_lines.template operator()<4>(totals);
    bool finite = true;
    for (int s = 0; s < S; ++s) {
      sums[s] = totals[s].value();
      finite = finite && totals[s].is_finite();
    }
    if (!finite) {
      WideSum again[S];
      add_lines.template operator()<1>(again);
      for (int s = 0; s < S; ++s) sums[s] = again[s].value();
    }
  }
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const double sum = join_lanes(plan, self, sums[s], shared, Add<double>{});
    if (!active || self.lane != 0) continue;
    if (to.partials != nullptr) {
      const std::int64_t slice = std::int64_t{blockIdx.z} * plan.slices + self.slice;
      static_cast<double*>(to.partials)[(slice * plan.outputs + self.output) * S + s] = sum;
    } else {
      put_sum(to, base[0] + s * to.step, sum);
    }
  }
}

// ---- on the host ----

/// Functions of whole tensors; the others are gradients of broadcast operands.
constexpr bool sums_packs(Pointwise f) {
  using enum Pointwise;
  return f == copy || f == mul || f == square_difference || f == exp_difference;
}
template <class Chunk, bool across>
struct MakePackedSum {
  template <Pointwise F>
  static void (*kernel())(ReducePlan, PackedLines<Chunk>, SumTarget) {
    if constexpr (sums_packs(F)) {
      return sum_packs<Chunk, F, across>;
    } else {
      return nullptr;
    }
  }
};

/// How a sum is cut into lines of packs: rows, or packs of a kept dimension one below the other.
struct PackedCut {
  Layout<4> kept, outer;  // of packs, of lines
  bool across;
  bool packed[4] = {};      // operands; the others have elements that all of a pack share
  std::int64_t inner = 0;   // packs of a line
  std::int64_t length = 0;  // elements of a row
  std::array<std::int64_t, 4> step{};  // from a pack of a line to the next
};

/// Whether the packs of an operand begin at boundaries of 16 bytes or, in rows, where those of the
/// first operand do.
bool begins_alike(const SumCall& call, const PackedCut& cut, std::size_t v, std::size_t guide) {
  const auto view = [&](std::size_t i) { return call.in[static_cast<int>(i) - 1].view; };
  const auto place = [&](std::size_t i) {
    return reinterpret_cast<std::uintptr_t>(view(i).data) % 16;
  };
  const auto width = static_cast<std::int64_t>(16 / size_of(view(v).dtype));
  if (place(v) != (cut.across ? 0 : place(guide))) return false;
  for (const Layout<4>* part : {&cut.kept, &cut.outer}) {
    for (int d = 0; d < part->shape.size(); ++d) {
      if (part == (cut.across ? &cut.kept : &cut.outer) && d == part->shape.size() - 1) continue;
      const std::int64_t as_guide = cut.across ? 0 : part->strides[guide][d];
      if ((part->strides[v][d] - as_guide) % width != 0) return false;
    }
  }
  return true;
}

/// Nothing where an operand does not allow packs.
std::optional<PackedCut> cut_packs(const SumCall& call) {
  constexpr std::int64_t shortest_row = 64;
  const View* const first = call.in.first_view();
  if (!sums_packs(call.f) || first == nullptr || !is_floating(first->dtype)) return {};
  PackedCut cut{call.parts.kept, call.parts.reduced, !densest_is_reduced(call.parts)};
  const auto width = static_cast<std::int64_t>(16 / size_of(first->dtype));
  const Layout<4>& along = cut.across ? cut.kept : cut.outer;
  const std::int64_t dense = along.shape.back();
  if (cut.across ? dense % width != 0 : dense < shortest_row) return {};
  std::size_t guide = 0;  // the first operand that has packs
  for (std::size_t v = 1; v <= static_cast<std::size_t>(call.in.count); ++v) {
    const Operand& operand = call.in[static_cast<int>(v) - 1];
    if (operand.is_scalar || operand.view.dtype != first->dtype) return {};
    const std::int64_t stride = along.strides[v].back();
    cut.packed[v] = stride == 1;
    if (stride == 0) continue;
    if (guide == 0) guide = v;
    if (stride != 1 || !begins_alike(call, cut, v, guide)) return {};
  }
  if (guide == 0) return {};
  const int last = cut.outer.shape.size() - 1;
  cut.length = cut.outer.shape[last];
  cut.inner = cut.across ? cut.length : cut.length / width;
  for (std::size_t v = 0; v < 4; ++v) {
    cut.step[v] = cut.across ? cut.outer.strides[v][last] : cut.packed[v] ? width : 0;
    cut.outer.strides[v].erase(last);
    if (cut.across) cut.kept.strides[v][cut.kept.shape.size() - 1] *= width;
  }
  cut.outer.shape.erase(last);
  if (cut.across) cut.kept.shape[cut.kept.shape.size() - 1] /= width;
  return cut;
}

template <class Chunk, bool across>
void run_packs(const SumCall& call, const PackedCut& cut) {
  constexpr int S = across ? Chunk::count : 1;
  constexpr auto most_partials = static_cast<std::int64_t>(scratch_bytes / sizeof(double)) / S;
  const Queue queue(call.o.view);
  const auto source = [&](std::size_t v) {
    v = std::min(v, static_cast<std::size_t>(call.in.count));
    return PackSource<Chunk>{
        call.in[static_cast<int>(v) - 1].view.template as<typename Chunk::Element>(), cut.step[v],
        cut.packed[v]};
  };
  const std::int64_t outers = numel(cut.outer.shape);
  const ReducePlan plan =
      plan_reduction(numel(cut.kept.shape), cut.inner, !across, most_partials, true);
  const dim3 grid(blocks_for(plan.outputs, plan.outputs_per_block()), plan.slices);
  const std::int64_t slices =
      std::clamp<std::int64_t>(std::min(enough_blocks / (std::int64_t{grid.x} * grid.y),
                                        most_partials / (std::int64_t{plan.outputs} * grid.y)),
                               1, outers);
  with_slices<double>(queue, call, slices * plan.slices, [&](const SumTarget& to) {
    run(queue, kernel_of<typename Chunk::Number, MakePackedSum<Chunk, across>>(call.f),
        dim3(grid.x, grid.y, static_cast<unsigned>(slices)), block_threads, 0, plan,
        PackedLines<Chunk>{Walk<4>(cut.kept), Walk<4>(cut.outer),
                           static_cast<std::uint32_t>(outers), cut.length, source(1), source(2)},
        to);
  });
}

}  // namespace

bool sum_in_packs(const SumCall& call) {
  const std::optional<PackedCut> cut = cut_packs(call);
  if (!cut) return false;
  with_packed(call.in.first_view()->dtype, [&]<class T, class E>(Packed<T, E>) {
    cut->across ? run_packs<Packed<T, E>, true>(call, *cut)
                : run_packs<Packed<T, E>, false>(call, *cut);
  });
  return true;
}

}  // namespace quipu::detail::on_cuda
