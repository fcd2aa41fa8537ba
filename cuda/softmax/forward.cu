// Softmax along any axis. Lines that fit are held in registers by a part of a warp, a warp or a
// block: read once, 16 bytes a thread at a time, and written once. Rows up to 128 KiB and columns
// up to 4096 entries do; columns come in strips of 32 bytes or more, without a transpose, and rows
// of 128 entries or more may begin anywhere. Longer lines and those of any strides are read twice:
// for the online softmax (column_softmax.cuh), then for the result; where there are few lines,
// several blocks share each (split-K) and merge their partial statistics from the workspace. Bound
// by memory; exponentials of reduced types are computed twice instead of kept.
//
// sass hold_lines<[^,<]*Packed.*,16>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$ STG.E$
//   STG.E.U16; registers 128
// sass hold_lines<[^,<]*Packed.*,4>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$ STG.E$
//   STG.E.U16; registers 64
// sass hold_lines<[^,<]*Peeled.*,16>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
//   registers 128
// sass hold_lines<[^,<]*Peeled.*,4>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
//   registers 64
// sass stream_lines<[^,<]*(Packed|Peeled): need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
//   registers 128
#include "quipu/cuda/ptx.h"
#include "quipu/ops/act_kernels.h"
#include "softmax.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_x, from_o };

template <class Chunk, bool rows, int V>
__global__ void __launch_bounds__(most_threads, V <= 4 ? 2 : 1)
    hold_lines(Lines<2> lines, const void* x, void* o) {
  using E = typename Chunk::Element;
  using T = ComputeOf<E>;
  constexpr int count = Chunk::count, S = rows ? 1 : count;
  constexpr bool keeps_exponentials = !is_reduced_v<E>;  // in the registers of x
  const LineTeam team = lines.team();
  const ThreadLine<2, Chunk> line(lines, team);
  // Such lines are short: 32 bits leave registers to f64, of which sm_120 has one too few
  // otherwise.
  const int length = static_cast<int>(line.length), edge_place = static_cast<int>(line.edge);
  const auto index = [&](int v) { return static_cast<int>(team.member + v * team.members); };
  const auto is_inside = [&](int v) { return line.active && index(v) < length; };
  const auto edge_at = [&](int v) { return line.at[v] * count + edge_place; };

  // Loops over raw[] are unrolled by order: registers have no index, and the exponential of f64 is
  // long enough for the compiler to decline.
  typename Chunk::Raw raw[V];
  T largest[S], values[count];
  for (int j = 0; j < count; ++j) values[j] = -std::numeric_limits<T>::infinity();
  for (int s = 0; s < S; ++s) largest[s] = values[0];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    raw[v] = Chunk::packed(values);
    if (is_inside(v)) {
      raw[v] = Chunk::fetch(x, {}, line.at[from_x] + index(v) * lines.step[from_x]);
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    Chunk::unpack(raw[v], values);
    for (int j = 0; j < count; ++j) largest[j % S] = max(largest[j % S], values[j]);
  }
  T edge = -std::numeric_limits<T>::infinity();
  if constexpr (is_peeled<Chunk>) {
    if (line.has_edge) edge = converted<T>(static_cast<const E*>(x)[edge_at(from_x)]);
    largest[0] = max(largest[0], edge);
  }
  T* const scratch = dynamic_shared<T>();
  team.fold(largest, scratch, Larger());
  T sum[S];
  for (int s = 0; s < S; ++s) {
    largest[s] = finite_shift(largest[s]);
    sum[s] = T(0);
  }
  if constexpr (is_peeled<Chunk>) sum[0] = edge = exp_below<E>(edge - largest[0]);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    ptx::look_new(raw[v]);
    Chunk::unpack(raw[v], values);
    for (int j = 0; j < count; ++j) {
      values[j] = exp_below<E>(values[j] - largest[j % S]);
      sum[j % S] += values[j];
    }
    if constexpr (keeps_exponentials) raw[v] = Chunk::packed(values);
  }
  team.fold(sum, scratch + LineTeam::fold_size(blockDim.x, team.lines, S), Plus());
  for (int s = 0; s < S; ++s) sum[s] = T(1) / sum[s];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (!is_inside(v)) continue;
    ptx::look_new(raw[v]);
    Chunk::unpack(raw[v], values);
    for (int j = 0; j < count; ++j) {
      if constexpr (!keeps_exponentials) values[j] = exp_below<E>(values[j] - largest[j % S]);
      values[j] *= sum[j % S];
    }
    static_cast<uint4*>(o)[line.at[from_o] + index(v) * lines.step[from_o]] = Chunk::packed(values);
  }
  if (line.has_edge) static_cast<E*>(o)[edge_at(from_o)] = converted<E>(edge * sum[0]);
}

/// Merges the statistics of the columns of a pack, where all of them belong to one row.
template <class E, int count>
__device__ __forceinline__ OnlineLines<E, 1> joined_pack(const OnlineLines<E, count>& pack) {
  OnlineLines<E, 1> row, next;
  for (int j = 0; j < count; ++j) {
    next.largest[0] = pack.largest[j];
    next.sum[0] = pack.sum[j];
    row.merge(next);
  }
  return row;
}

template <class Chunk, bool rows>
__global__ void __launch_bounds__(most_threads, 1)
    stream_lines(Lines<2> lines, const void* x, void* o, DType dtype, DType o_dtype,
                 LineParts<ComputeOf<typename Chunk::Element>> parts) {
  using E = typename Chunk::Element;
  using T = ComputeOf<E>;
  constexpr int count = Chunk::count, S = rows ? 1 : count;
  constexpr int batch = sizeof(T) == 8 ? 2 : 4;
  const LineTeam team = lines.team();
  const ThreadLine<2, Chunk> line(lines, team);
  const bool has_edge = line.has_edge && blockIdx.y == 0;
  const std::int64_t begin = parts.begin(line.length) + team.member;
  const std::int64_t end = line.active ? parts.end(line.length) : 0;
  const std::int64_t total = std::int64_t{lines.positions} * S,
                     first = line.position * std::int64_t{S};
  T* const scratch = dynamic_shared<T>();
  OnlineLines<E, S> state;
  if (parts.pass != Pass::result) {
    OnlineLines<E, count> own;
    own.template take<batch>(begin, end, team.members, [&](std::int64_t i, T(&values)[count]) {
      Chunk::unpack(Chunk::fetch(x, dtype, line.at[from_x] + i * lines.step[from_x]), values);
    });
    if constexpr (S == count) {
      state = own;
    } else {
      state = joined_pack<E>(own);
      if (has_edge) {
        state.template add<1>({{converted<T>(static_cast<const E*>(x)[line.edge_at(from_x)])}},
                              {{T(0)}});
      }
    }
    state.join(team, scratch);
    if (parts.pass == Pass::statistics) {
      if (line.active && team.member == 0) {
        state.store_part(parts.statistics, blockIdx.y, total, first);
      }
      return;
    }
  } else {
    state.merge_parts(team, scratch, parts.statistics, parts.count, total, first, line.active);
  }
  state.finish();
  for (std::int64_t i = begin; i < end; i += batch * team.members) {
    typename Chunk::Raw raw[batch];
    const auto index = [&](int b) { return i + std::int64_t{b} * team.members; };
    for (int b = 0; b < batch; ++b) {
      if (index(b) < end) {
        raw[b] = Chunk::fetch(x, dtype, line.at[from_x] + index(b) * lines.step[from_x]);
      }
    }
    for (int b = 0; b < batch; ++b) {
      if (index(b) >= end) continue;
      T values[count];
      Chunk::unpack(raw[b], values);
      for (int j = 0; j < count; ++j) {
        values[j] = exp_below<E>(values[j] - state.largest[j % S]) * state.sum[j % S];
      }
      const std::int64_t to = line.at[from_o] + index(b) * lines.step[from_o];
      if constexpr (count > 1) {
        static_cast<uint4*>(o)[to] = Chunk::packed(values);
      } else {
        store_element(o, o_dtype, to, values[0]);
      }
    }
  }
  if (has_edge) {
    const T z = converted<T>(static_cast<const E*>(x)[line.edge_at(from_x)]);
    const T weight = exp_below<E>(z - state.largest[0]) * state.sum[0];
    static_cast<E*>(o)[line.edge_at(from_o)] = converted<E>(weight);
  }
}

// ---- on the host ----

class Forward {
 public:
  Forward(const View& x, const View& o, int axis, const View& parts)
      : x_(x), o_(o), parts_(parts), queue_(x), plan_({&x, &o}, axis) {}

  void run() const {
    if (plan_.packed() || plan_.peeled()) {
      return with_packed(x_.dtype, [&]<class T, class E>(Packed<T, E> chunk) {
        if (plan_.peeled()) return run_packed<true>(Peeled<Packed<T, E>>{});
        plan_.rows() ? run_packed<true>(chunk) : run_packed<false>(chunk);
      });
    }
    x_.dtype == f64 ? stream<false>(Loose<double>{}) : stream<false>(Loose<float>{});
  }

 private:
  template <bool rows, class Chunk>
  void run_packed(Chunk chunk) const {
    if (const LineCut cut = plan_.held(4); cut.fits) return hold<Chunk, rows, 4>(cut);
    if (const LineCut cut = plan_.held(16); cut.fits) return hold<Chunk, rows, 16>(cut);
    stream<rows>(chunk);
  }

  template <class Chunk, bool rows, int V>
  void hold(const LineCut& cut) const {
    using T = ComputeOf<typename Chunk::Element>;
    plan_.each(cut.together, [&](const Lines<2>& lines, const Layout<2>& part) {
      on_cuda::run(queue_, hold_lines<Chunk, rows, V>, plan_.blocks(lines, cut), cut.threads,
                   plan_.fold_bytes<T>(cut, rows ? 1 : Chunk::count), lines,
                   plan_.address_in(x_, part, from_x), plan_.address_in(o_, part, from_o));
    });
  }

  template <bool rows, class Chunk>
  void stream(Chunk) const {
    using T = ComputeOf<typename Chunk::Element>;
    const LineCut cut = plan_.streamed();
    plan_.each(cut.together, [&](const Lines<2>& lines, const Layout<2>& part) {
      plan_.each_pass<T>(parts_, [&](const LineParts<T>& parts) {
        const dim3 grid(plan_.blocks(lines, cut), static_cast<unsigned>(parts.count));
        on_cuda::run(queue_, stream_lines<Chunk, rows>, grid, cut.threads,
                     plan_.fold_bytes<T>(cut, rows ? 1 : Chunk::count), lines,
                     plan_.address_in(x_, part, from_x), plan_.address_in(o_, part, from_o),
                     x_.dtype, o_.dtype, parts);
      });
    });
  }

  const View& x_;
  const View& o_;
  const View& parts_;
  Queue queue_;
  SoftmaxPlan<2> plan_;
};

void forward(View x, View o, View parts, int axis) {
  if (x.numel() > 0) Forward(x, o, axis, parts).run();
}

}  // namespace
}  // namespace on_cuda

void register_cuda_softmax_forward() {
  softmax_forward_kernel.provide(Variant::cuda, on_cuda::forward);
}

}  // namespace quipu::detail
