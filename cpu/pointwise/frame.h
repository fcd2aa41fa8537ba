#pragma once
// What pointwise_kernel and pointwise_sum_kernel share: operands laid over a shape, and f of them
// tile by tile.
#include <array>
#include <type_traits>

#include "functions.h"
#include "quipu/core/error.h"
#include "quipu/cpu/simd/vector_math.h"
#include "quipu/cpu/tiles.h"

namespace quipu::detail::on_cpu {

/// A function and what it reads, in the order of a layout.
template <class T>
struct PointwiseTask {
  PointwiseTask(Pointwise f, const Operands& in, const Layout<4>& layout, const Offsets<4>& starts)
      : function(pointwise_function<T>(f)),
        adding(adding_function<T>(f)),
        copies(f == Pointwise::copy),
        count(in.count) {
    ensure(function != nullptr, "pointwise function ", static_cast<int>(f),
           " has no whole-number version");
    for (int i = 0; i < count; ++i) {
      const auto k = static_cast<std::size_t>(i);
      sources[k] = in[i].is_scalar
                       ? Source<T>(scalar_as<T>(in[i].value))
                       : Source<T>(Path(in[i].view, layout.shape, layout[i + 1], starts[k + 1]));
    }
  }
  PointwiseFunction<T> function, adding;
  bool copies;
  int count;
  std::array<Source<T>, 3> sources;
};

/// Computes a task tile by tile; one for each thread.
template <class T>
class Evaluator {
 public:
  explicit Evaluator(const PointwiseTask<T>& task)
      : task_(task), a_(task.sources[0]), b_(task.sources[1]), c_(task.sources[2]) {}

  /// What a plain copy of dense elements of type T reads at [begin, begin + n), for any n; else
  /// null.
  const T* dense(std::int64_t begin, std::int64_t n) const {
    const Source<T>& a = task_.sources[0];
    return task_.copies && !a.constant ? a.path.template dense<T>(begin, n) : nullptr;
  }

  /// f at the positions [begin, begin + n), n at most `tile_size`: in `out`, or where a plain copy
  /// found it.
  const T* evaluate(std::int64_t begin, std::int64_t n, T* out) {
    const T* a = a_.read(begin, n);
    if (task_.copies) return a;
    call(task_.function, a, begin, n, out);
    return out;
  }

  /// Adds f at the positions to `out`, where there is a loop that does.
  void add(std::int64_t begin, std::int64_t n, T* out) {
    call(task_.adding, a_.read(begin, n), begin, n, out);
  }

 private:
  QUIPU_INLINE void call(PointwiseFunction<T> f, const T* a, std::int64_t begin, std::int64_t n,
                         T* out) {
    const T* b = task_.count > 1 ? b_.read(begin, n) : nullptr;
    const T* c = task_.count > 2 ? c_.read(begin, n) : nullptr;
    f(a, b, c, out, n);
  }

  const PointwiseTask<T>& task_;
  Reader<T> a_, b_, c_;
};

}  // namespace quipu::detail::on_cpu
