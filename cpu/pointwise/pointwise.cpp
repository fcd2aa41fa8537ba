// o (=|+=) f(operands). The output's positions, in the order in which it lies in memory, are cut
// into chunks of fixed size, one a thread at a time, and chunks into tiles. Each operand is read
// once and the output written once; what is dense and of the compute type is not copied on its way.
// Cheap functions are bounded by memory, the others by arithmetic.
#include "frame.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/loop_order.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
void run_part(const Target& o, Pointwise f, const Operands& in, const Layout<4>& layout,
              const Offsets<4>& starts) {
  const PointwiseTask<T> task(f, in, layout, starts);
  const Path out(o.view, layout.shape, layout[0], starts[0]);
  parallel_for(numel(layout.shape), chunk_size, [&](std::int64_t begin, std::int64_t end) {
    Evaluator<T> evaluator(task);
    alignas(64) T tile[tile_size<T>];
    for (std::int64_t i = begin; i < end; i += tile_size<T>) {
      const std::int64_t n = std::min(tile_size<T>, end - i);
      T* in_place = o.add && !task.adding ? nullptr : out.dense<T>(i, n);
      if (o.add && in_place) {
        evaluator.add(i, n, in_place);
        continue;
      }
      const T* result = evaluator.evaluate(i, n, in_place ? in_place : tile);
      if (result != in_place) out.write(result, i, n, o.add);
    }
  });
}

/// Dense bf16 throughout takes the short way, if f has one.
bool run_bf16(const Target& o, Pointwise f, const Operands& in, const Layout<4>& layout) {
  const Bf16Function function = bf16_function(f);
  if (!function || in.count > 2 || layout.shape.size() > 1) return false;
  const auto dense = [&](int operand, const View& v) {
    return v.defined && v.dtype == DType::bf16 && layout[operand][0] == 1;
  };
  if (!dense(0, o.view)) return false;
  for (int i = 0; i < in.count; ++i) {
    if (in[i].is_scalar || !dense(i + 1, in[i].view)) return false;
  }
  const auto part = [&](int i, std::int64_t begin) {
    return i < in.count ? in[i].view.as<BFloat16>() + begin : nullptr;
  };
  parallel_for(layout.shape[0], chunk_size, [&](std::int64_t begin, std::int64_t end) {
    function(part(0, begin), part(1, begin), o.view.as<BFloat16>() + begin, end - begin, o.add);
  });
  return true;
}

void pointwise(Target o, Pointwise f, const Operands& in) {
  if (o.view.numel() == 0) return;
  const Layout<4> layout =
      in_memory_order(Layout<4>{o.view.shape, pointwise_strides(o.view, in, o.view.shape)});
  if (run_bf16(o, f, in, layout)) return;
  with_compute_type(pointwise_type(o.view, f, in), [&]<class T>(T) {
    for_each_part(layout, [&](const Layout<4>& part, const Offsets<4>& starts) {
      run_part<T>(o, f, in, part, starts);
    });
  });
}

}  // namespace
}  // namespace on_cpu

void register_cpu_pointwise() {
  pointwise_kernel.provide(Variant::cpu, on_cpu::pointwise);
}

}  // namespace quipu::detail
