// Gradients of softmax along any axis, with the work split as in forward.cu: o and d_o of a line
// are held in registers, read once, and d_x is written or added to in the same kernel. Rows up to
// 64 KiB and columns up to 2048 entries fit, and rows of 128 entries or more may begin anywhere;
// for longer ones and any strides the mean of d_o under the softmax is found in a first pass,
// split-K where there are few lines. Bound by memory.
//
// Where o was rounded to bf16 or f16 it no longer adds up to one, and the mean is divided by its
// sum.
//
// sass hold_lines<[^,<]*Packed.*,8>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$ STG.E$
//   STG.E.U16; registers 128
// sass hold_lines<[^,<]*Packed.*,4>: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$ STG.E$
//   STG.E.U16; registers 96
// sass hold_lines<[^,<]*Peeled: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128
// sass stream_lines<[^,<]*(Packed|Peeled): need LDG.E.128 STG.E.128; forbid STL LDL LD.E$ ST.E$;
//   registers 128
#include "quipu/cuda/ptx.h"
#include "quipu/ops/act_kernels.h"
#include "softmax.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_o, from_d_o, from_d_x };

/// Sums along S lines: o d_o, then o.
template <class T, int S>
struct Sums {
  T values[2 * S] = {};
  template <int count>
  __device__ __forceinline__ void add(const T (&o)[count], const T (&d_o)[count]) {
    for (int j = 0; j < count; ++j) {
      values[j % S] += o[j] * d_o[j];
      values[S + j % S] += o[j];
    }
  }
  /// Where a line is so long that all of o was rounded to 0, the gradient is 0.
  __device__ __forceinline__ void find_means(bool rounded, T (&means)[S]) const {
    for (int s = 0; s < S; ++s) {
      const T sum = rounded ? values[S + s] : T(1);
      means[s] = sum == T(0) ? T(0) : values[s] / sum;
    }
  }
};

template <class T>
struct Inputs {
  const void* o;
  const void* d_o;
  DType dtype;
  bool rounded;
};

/// A thread's single element of a peeled row, if it has one.
template <class Chunk>
struct Edge {
  using T = typename Chunk::Number;
  using E = typename Chunk::Element;
  __device__ __forceinline__ Edge(const Inputs<T>& in, const ThreadLine<3, Chunk>& line, bool there)
      : exists(there) {
    if (!exists) return;
    o = converted<T>(static_cast<const E*>(in.o)[line.edge_at(from_o)]);
    d_o = converted<T>(static_cast<const E*>(in.d_o)[line.edge_at(from_d_o)]);
  }
  template <int S>
  __device__ __forceinline__ void add_to(Sums<T, S>& sums) const {
    if constexpr (is_peeled<Chunk>) sums.template add<1>({o}, {d_o});
  }
  __device__ __forceinline__ void put(const GradTarget<Chunk>& target,
                                      const ThreadLine<3, Chunk>& line, T mean) const {
    if (!exists) return;
    put_element(target.data, element_dtype<E>, line.edge_at(from_d_x), o * (d_o - mean),
                target.add);
  }
  bool exists;
  T o = 0, d_o = 0;
};

template <class Chunk, bool rows, int V>
__global__ void __launch_bounds__(most_threads, 1)
    hold_lines(Lines<3> lines, Inputs<ComputeOf<typename Chunk::Element>> in,
               GradTarget<Chunk> target) {
  using T = ComputeOf<typename Chunk::Element>;
  constexpr int count = Chunk::count, S = rows ? 1 : count, together = 4;
  const LineTeam team = lines.team();
  const ThreadLine<3, Chunk> line(lines, team);
  const auto index = [&](int v) { return team.member + std::int64_t{v} * team.members; };
  const auto is_inside = [&](int v) { return line.active && index(v) < line.length; };
  const auto at = [&](int view, int v) { return line.at[view] + index(v) * lines.step[view]; };

  typename Chunk::Raw o[V], d_o[V];
  for (int v = 0; v < V; ++v) {
    o[v] = d_o[v] = {};
    if (!is_inside(v)) continue;
    o[v] = Chunk::fetch(in.o, in.dtype, at(from_o, v));
    d_o[v] = Chunk::fetch(in.d_o, in.dtype, at(from_d_o, v));
  }
  Sums<T, S> sums;
  for (int v = 0; v < V; ++v) {
    T a[count], b[count];
    Chunk::unpack(o[v], a);
    Chunk::unpack(d_o[v], b);
    sums.add(a, b);
  }
  const Edge<Chunk> edge(in, line, line.has_edge);
  edge.add_to(sums);
  team.fold(sums.values, dynamic_shared<T>(), Plus());
  T means[S];
  sums.find_means(in.rounded, means);
  edge.put(target, line, means[0]);
  for (int first = 0; first < V; first += together) {
    typename Chunk::Raw before[together];
    for (int v = 0; v < together; ++v) {
      before[v] = {};
      if (is_inside(first + v)) before[v] = target.before(at(from_d_x, first + v));
    }
    for (int v = 0; v < together; ++v) {
      if (!is_inside(first + v)) continue;
      T a[count], b[count];
      ptx::look_new(o[first + v]);
      ptx::look_new(d_o[first + v]);
      Chunk::unpack(o[first + v], a);
      Chunk::unpack(d_o[first + v], b);
      for (int j = 0; j < count; ++j) a[j] *= b[j] - means[j % S];
      target.put(at(from_d_x, first + v), a, before[v]);
    }
  }
}

template <class Chunk, bool rows>
__global__ void __launch_bounds__(most_threads, 1)
    stream_lines(Lines<3> lines, Inputs<ComputeOf<typename Chunk::Element>> in,
                 GradTarget<Chunk> target, LineParts<ComputeOf<typename Chunk::Element>> parts) {
  using T = ComputeOf<typename Chunk::Element>;
  using Raw = typename Chunk::Raw;
  constexpr int count = Chunk::count, S = rows ? 1 : count, batch = 4;
  const LineTeam team = lines.team();
  const ThreadLine<3, Chunk> line(lines, team);
  const std::int64_t begin = parts.begin(line.length) + team.member;
  const std::int64_t end = line.active ? parts.end(line.length) : 0;
  const Edge<Chunk> edge(in, line, line.has_edge && blockIdx.y == 0);
  const std::int64_t total = std::int64_t{lines.positions} * S;
  const std::int64_t first = line.position * std::int64_t{S};
  const auto at = [&](int view, std::int64_t i) { return line.at[view] + i * lines.step[view]; };
  /// Calls f(index, o, d_o) for all of the thread's packs; loads of `batch` packs are in flight
  /// together.
  const auto each_batch = [&](auto f) {
    for (std::int64_t i = begin; i < end; i += batch * team.members) {
      std::int64_t index[batch];
      Raw o[batch], d_o[batch];
      for (int b = 0; b < batch; ++b) {
        index[b] = i + std::int64_t{b} * team.members;
        o[b] = d_o[b] = {};
        if (index[b] >= end) continue;
        o[b] = Chunk::fetch(in.o, in.dtype, at(from_o, index[b]));
        d_o[b] = Chunk::fetch(in.d_o, in.dtype, at(from_d_o, index[b]));
      }
      f(index, o, d_o);
    }
  };
  Sums<T, S> sums;
  if (parts.pass != Pass::result) {
    each_batch([&](const std::int64_t(&)[batch], const Raw(&o)[batch], const Raw(&d_o)[batch]) {
      for (int b = 0; b < batch; ++b) {
        T x[count], y[count];
        Chunk::unpack(o[b], x);
        Chunk::unpack(d_o[b], y);
        sums.add(x, y);
      }
    });
    edge.add_to(sums);
  } else {
    for (std::int64_t part = team.member; part < parts.count && line.active; part += team.members) {
      const T* const from = parts.statistics + 2 * total * part + first;
      for (int s = 0; s < S; ++s) {
        sums.values[s] += from[s];
        sums.values[S + s] += from[total + s];
      }
    }
  }
  team.fold(sums.values, dynamic_shared<T>(), Plus());
  if (parts.pass == Pass::statistics) {
    if (!line.active || team.member != 0) return;
    T* const to = parts.statistics + 2 * total * blockIdx.y + first;
    for (int s = 0; s < S; ++s) {
      to[s] = sums.values[s];
      to[total + s] = sums.values[S + s];
    }
    return;
  }
  T means[S];
  sums.find_means(in.rounded, means);
  edge.put(target, line, means[0]);
  each_batch([&](const std::int64_t(&index)[batch], const Raw(&o)[batch], const Raw(&d_o)[batch]) {
    Raw before[batch];
    for (int b = 0; b < batch; ++b) {
      before[b] = {};
      if (index[b] < end) before[b] = target.before(at(from_d_x, index[b]));
    }
    for (int b = 0; b < batch; ++b) {
      if (index[b] >= end) continue;
      T x[count], y[count];
      Chunk::unpack(o[b], x);
      Chunk::unpack(d_o[b], y);
      for (int j = 0; j < count; ++j) x[j] *= y[j] - means[j % S];
      target.put(at(from_d_x, index[b]), x, before[b]);
    }
  });
}

// ---- on the host ----

class Backward {
 public:
  Backward(const View& o, const View& d_o, const Grad& d_x, int axis, const View& parts)
      : o_(o), d_o_(d_o), d_x_(d_x), parts_(parts), queue_(o), plan_({&o, &d_o, &d_x.view}, axis) {}

  void run() const {
    if (plan_.packed() || plan_.peeled()) {
      return with_packed(o_.dtype, [&]<class T, class E>(Packed<T, E> chunk) {
        if (plan_.peeled()) return run_packed<true>(Peeled<Packed<T, E>>{});
        plan_.rows() ? run_packed<true>(chunk) : run_packed<false>(chunk);
      });
    }
    o_.dtype == f64 ? stream<false>(Loose<double>{}) : stream<false>(Loose<float>{});
  }

 private:
  using Part = Layout<3>;

  template <bool rows, class Chunk>
  void run_packed(Chunk chunk) const {
    if (const LineCut cut = plan_.held(4); cut.fits) return hold<Chunk, rows, 4>(cut);
    if (const LineCut cut = plan_.held(8); cut.fits) return hold<Chunk, rows, 8>(cut);
    stream<rows>(chunk);
  }

  template <class T>
  Inputs<T> inputs(const Part& part) const {
    return {plan_.address_in(o_, part, from_o), plan_.address_in(d_o_, part, from_d_o), o_.dtype,
            is_reduced(o_.dtype)};
  }
  template <class Chunk>
  GradTarget<Chunk> target(const Part& part) const {
    return {plan_.address_in(d_x_.view, part, from_d_x), d_x_.view.dtype, d_x_.add};
  }

  template <class Chunk, bool rows, int V>
  void hold(const LineCut& cut) const {
    using T = ComputeOf<typename Chunk::Element>;
    plan_.each(cut.together, [&](const Lines<3>& lines, const Part& part) {
      on_cuda::run(queue_, hold_lines<Chunk, rows, V>, plan_.blocks(lines, cut), cut.threads,
                   plan_.fold_bytes<T>(cut, rows ? 1 : Chunk::count), lines, inputs<T>(part),
                   target<Chunk>(part));
    });
  }

  template <bool rows, class Chunk>
  void stream(Chunk) const {
    using T = ComputeOf<typename Chunk::Element>;
    const LineCut cut = plan_.streamed();
    plan_.each(cut.together, [&](const Lines<3>& lines, const Part& part) {
      plan_.each_pass<T>(parts_, [&](const LineParts<T>& parts) {
        const dim3 grid(plan_.blocks(lines, cut), static_cast<unsigned>(parts.count));
        on_cuda::run(queue_, stream_lines<Chunk, rows>, grid, cut.threads,
                     plan_.fold_bytes<T>(cut, rows ? 1 : Chunk::count), lines, inputs<T>(part),
                     target<Chunk>(part), parts);
      });
    });
  }

  const View& o_;
  const View& d_o_;
  const Grad& d_x_;
  const View& parts_;
  Queue queue_;
  SoftmaxPlan<3> plan_;
};

void backward(View o, View d_o, Grad d_x, View parts, int axis) {
  if (o.numel() > 0) Backward(o, d_o, d_x, axis, parts).run();
}

}  // namespace
}  // namespace on_cuda

void register_cuda_softmax_backward() {
  softmax_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
