// Reading and adding at indices, which must be within their bounds.
#include "quipu/core/error.h"
#include "quipu/cpu/reference/formulas.h"
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/index/embedding_kernels.h"
#include "quipu/ops/index/gather_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// All indices, in [0, size).
WholeArray read_indices(const View& index, std::int64_t size, int axis) {
  const WholeArray values = read_whole(index);
  for (std::int64_t i = 0; i < values.size(); ++i) {
    check(values[i] >= 0 && values[i] < size, "index at ", index_of(i, index.shape), " is ",
          values[i], ", but x has size ", size, " in dimension ", axis);
  }
  return values;
}

/// A 1-d index repeated over all other dimensions of a shape.
View along_axis(View index, const Shape& shape, int axis) {
  const std::int64_t stride = index.stride(0);
  index.shape = shape;
  index.strides = Dims::filled(shape.size(), 0);
  index.strides[axis] = stride;
  return index;
}

/// Calls f(i, place) for all entries of `index`: place is where index[.., i, ..] points to in a
/// tensor of these strides.
template <class F>
void for_each_place(const View& index, std::int64_t size, Strides strides, int axis, F f) {
  const WholeArray indices = read_indices(index, size, axis);
  const std::int64_t step = strides[axis];
  strides[axis] = 0;
  for_each_element(index.shape, strides,
                   [&](std::int64_t i, std::int64_t start) { f(i, start + indices[i] * step); });
}

void gather(View x, View index, Target o, int axis) {
  with_numbers_of(x.dtype, [&]<class T>(T) {
    Numbers<T> values(index.numel());
    for_each_place(index, x.size(axis), x.strides, axis, [&](std::int64_t i, std::int64_t place) {
      values[i] = load_element<T>(x.data, x.dtype, place);
    });
    store(o, values);
  });
}

void scatter_add(View o, View index, View x, int axis) {
  with_numbers_of(o.dtype, [&]<class T>(T) {
    Numbers<T> sums = read_as<T>(o);
    const Numbers<T> addends = read_as<T>(x);
    for_each_place(
        index, o.size(axis), contiguous_strides(o.shape), axis,
        [&](std::int64_t i, std::int64_t place) { sums[place] = plus(sums[place], addends[i]); });
    store(o, sums);
  });
}

void scatter_join(View o, View index, View x, int axis, Join join) {
  with_numbers_of(o.dtype, [&]<class T>(T) {
    Numbers<T> results = read_as<T>(o);
    const Numbers<T> values = read_as<T>(x);
    const auto joined = [&](T a, T b) {
      if (join == Join::mul) return formula::mul(a, b);
      return join == Join::max ? formula::maximum(a, b) : formula::minimum(a, b);
    };
    for_each_place(index, o.size(axis), contiguous_strides(o.shape), axis,
                   [&](std::int64_t i, std::int64_t place) {
                     results[place] = joined(results[place], values[i]);
                   });
    store(o, results);
  });
}

void index_select(View x, View index, View o, int axis) {
  read_indices(index, x.size(axis), axis);
  gather(x, along_axis(index, o.shape, axis), Target::write_to(o), axis);
}

void index_add(View o, View index, View x, int axis, View) {
  read_indices(index, o.size(axis), axis);
  scatter_add(o, along_axis(index, x.shape, axis), x, axis);
}

void embedding_check(View indices, std::int64_t rows) {
  const WholeArray values = read_whole(indices);
  for (std::int64_t i = 0; i < values.size(); ++i) {
    check(values[i] >= 0 && values[i] < rows, "indices at ", index_of(i, indices.shape), " is ",
          values[i], ", but weight has ", rows, " rows");
  }
}

}  // namespace
}  // namespace reference

void register_reference_index() {
  gather_kernel.provide(Variant::reference, reference::gather);
  scatter_add_kernel.provide(Variant::reference, reference::scatter_add);
  scatter_join_kernel.provide(Variant::reference, reference::scatter_join);
  index_select_kernel.provide(Variant::reference, reference::index_select);
  index_add_kernel.provide(Variant::reference, reference::index_add);
  embedding_check_kernel.provide(Variant::reference, reference::embedding_check);
}

}  // namespace quipu::detail
