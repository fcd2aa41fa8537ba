// Adding at indices: the entry, which chooses kernels by shape. One index for many lines side by
// side: scatter_rows.cu. Lines with indices of their own: scatter_lines.cu.
#include <optional>

#include "scatter.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

using enum ScatterLines::From;

/// `index` is the tensor of indices; `index_strides` are its strides over the shape of x.
void scatter(const View& o, const View& index, const Strides& index_strides, const View& x,
             int axis, bool one_index, const View& space, std::optional<Join> join = {}) {
  if (x.numel() == 0) return;
  const Queue queue(o);
  Layout<3> all{x.shape, {x.strides, index_strides, o.strides}};
  std::int64_t inner = 1;
  for (int d = axis + 1; d < x.dim(); ++d) inner *= x.size(d);
  all.shape.erase(axis);
  for (Strides& s : all.strides) s.erase(axis);
  const IndexGuard guard = index_guard(queue, index, o.size(axis), axis);
  const RowAdds cut(numel(all.shape), x.size(axis), o.size(axis));
  all.merged(false).for_each_part([&](const Layout<3>& part) {
    const ScatterLines lines{Walk<3>(part),
                             static_cast<std::uint32_t>(numel(part.shape)),
                             x.size(axis),
                             o.size(axis),
                             address(x, part.starts[from_x]),
                             address(index, part.starts[from_index]),
                             address(o, part.starts[from_o]),
                             x.dtype,
                             index.dtype,
                             o.dtype,
                             x.stride(axis),
                             index_strides[axis],
                             o.stride(axis),
                             part.first,
                             inner,
                             one_index,
                             guard};
    if (one_index && cut.by_rows) return add_rows(queue, lines, cut, space);
    join ? join_lines(queue, lines, *join) : add_lines(queue, lines);
  });
}

void scatter_add(View o, View index, View x, int axis) {
  scatter(o, index, index.strides, x, axis, false, View());
}

void scatter_join(View o, View index, View x, int axis, Join join) {
  scatter(o, index, index.strides, x, axis, false, View(), join);
}

void index_add(View o, View index, View x, int axis, View space) {
  Strides along = Dims::filled(x.dim(), 0);
  along[axis] = index.stride(0);
  scatter(o, index, along, x, axis, true, space);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_scatter() {
  scatter_add_kernel.provide(Variant::cuda, on_cuda::scatter_add);
  scatter_join_kernel.provide(Variant::cuda, on_cuda::scatter_join);
  index_add_kernel.provide(Variant::cuda, on_cuda::index_add);
}

}  // namespace quipu::detail
