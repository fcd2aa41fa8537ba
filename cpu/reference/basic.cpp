// Filling, copying with a cast, adding into a gradient, looking for what is not finite, ramps.
#include "quipu/core/dispatch/kernels.h"
#include "quipu/cpu/reference/values.h"

namespace quipu::detail {
namespace reference {
namespace {

void fill(View o, Scalar value) {
  if (value.is_real()) return store(o, Array::Constant(o.numel(), value.real()));
  store(o, WholeArray::Constant(o.numel(), value.whole()));
}

void copy(View o, View x) {
  with_numbers_of(x.dtype, [&]<class T>(T) { store(o, read_as<T>(x)); });
}

void add_into(Grad g, View x) {
  with_numbers_of(x.dtype,
                  [&]<class T>(T) { store(g, summed_to(g.view.shape, read_as<T>(x), x.shape)); });
}

void find_nonfinite(View x, View first_bad) {
  const Array values = read(x).flat;
  std::int64_t i = 0;
  while (i < values.size() && std::isfinite(values[i])) ++i;
  store(first_bad, WholeArray::Constant(1, i < values.size() ? i : -1));
}

void ramp(View o, double start, double step) {
  Array values(o.numel());
  for (std::int64_t i = 0; i < values.size(); ++i)
    values[i] = start + step * static_cast<double>(i);
  store(o, values);
}

}  // namespace
}  // namespace reference

void register_reference_basic() {
  fill_kernel.provide(Variant::reference, reference::fill);
  copy_kernel.provide(Variant::reference, reference::copy);
  add_into_kernel.provide(Variant::reference, reference::add_into);
  find_nonfinite_kernel.provide(Variant::reference, reference::find_nonfinite);
  ramp_kernel.provide(Variant::reference, reference::ramp);
}

}  // namespace quipu::detail
