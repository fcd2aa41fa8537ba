// The pointwise functions: a formula for each row of functions.def, applied to every element, and
// sums of them.
#include "quipu/cpu/reference/formulas.h"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// An operand over a shape, in the type that the function is computed in: beside f32, other numbers
/// are rounded to it.
template <class T>
Numbers<T> values_of(const Operand& in, const Shape& over, DType type) {
  const Numbers<T> values = in.is_scalar ? Numbers<T>::Constant(numel(over), scalar_as<T>(in.value))
                                         : read_as<T>(broadcast(in.view, over));
  if (type == f32) return values.template cast<float>().template cast<T>();
  return values;
}

template <class T>
Numbers<T> evaluate(Pointwise f, const Operands& in, const Shape& over, DType type) {
  const Numbers<T> a = values_of<T>(in[0], over, type), b = values_of<T>(in[1], over, type),
                   c = values_of<T>(in[2], over, type);
  Numbers<T> o(a.size());
  const auto map = [&]<class F>(F function) {
    for (std::int64_t i = 0; i < o.size(); ++i) {
      if constexpr (std::is_invocable_v<F, T>) o[i] = static_cast<T>(function(a[i]));
      if constexpr (std::is_invocable_v<F, T, T>) o[i] = static_cast<T>(function(a[i], b[i]));
      if constexpr (std::is_invocable_v<F, T, T, T>) o[i] = function(a[i], b[i], c[i]);
    }
  };
  switch (f) {
#define QUIPU_POINTWISE(name, types, sums, moves)                                             \
  case Pointwise::name:                                                                       \
    if constexpr (std::is_same_v<T, double> ? traits_of(Pointwise::name).for_real             \
                                            : traits_of(Pointwise::name).for_whole_numbers) { \
      map(formula::name);                                                                     \
    }                                                                                         \
    break;
#include "quipu/ops/pointwise/functions.def"
#undef QUIPU_POINTWISE
  }
  return o;
}

void pointwise(Target o, Pointwise f, const Operands& in) {
  const DType type = pointwise_type(o.view, f, in);
  with_numbers_of(type, [&]<class T>(T) { store(o, evaluate<T>(f, in, o.view.shape, type)); });
}

void pointwise_sum(Target o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  const DType type = pointwise_type(in);
  with_numbers_of(type, [&]<class T>(T) {
    const Numbers<T> sums = summed_to(o.view.shape, evaluate<T>(f, in, over, type), over);
    if (scale == 1) return store(o, sums);
    store(o, (scale * sums.template cast<double>()).eval());
  });
}

}  // namespace
}  // namespace reference

void register_reference_pointwise() {
  pointwise_kernel.provide(Variant::reference, reference::pointwise);
  pointwise_sum_kernel.provide(Variant::reference, reference::pointwise_sum);
}

}  // namespace quipu::detail
