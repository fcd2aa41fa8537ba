// Position encodings: the entry, which chooses kernels. Rows are independent (rows.cuh) unless
// softmax goes over the sequence (sequence.cuh).
#include "sequence.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

void forward(View x, View o, View table, const RowTransform& transform, View workspace) {
  if (x.numel() == 0) return;
  if (transform.softmax_over_sequence())
    return encode_lrpe_sequence(x, o, table, transform, workspace);
  encode_lrpe_rows(x, o, table, transform);
}

void backward(View x, View d_o, Grad d_x, View table, const RowTransform& transform,
              View workspace) {
  if (d_o.numel() == 0) return;
  if (transform.softmax_over_sequence())
    return decode_lrpe_sequence(x, d_o, d_x, table, transform, workspace);
  decode_lrpe_rows(x, d_o, d_x, table, transform);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_lrpe() {
  lrpe_forward_kernel.provide(Variant::cuda, on_cuda::forward);
  lrpe_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
