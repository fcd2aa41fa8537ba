// Gated linear attention: the entry. It computes the statistics of softmax over the sequence
// (columns.cu), which all kernels share, and chooses kernels: by tensor cores (mma*.cu) where
// types, sizes, layouts and encodings allow it, else the general ones (general*.cu).
#include "flao.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

void forward(View q, View k, View v, View g, View kv, View qkv, View o, View workspace,
             const FlaoTransforms& transforms, const FlaoSizes& s) {
  const FlaoWorkspace layout = FlaoWorkspace::of_forward(s, transforms, workspace, o);
  find_flao_softmax(q, transforms.q, layout.q);
  find_flao_softmax(k, transforms.k, layout.k);
  find_flao_softmax(v, transforms.v, layout.v);
  find_flao_softmax(g, transforms.g, layout.g);
  if (try_flao_forward_mma(q, k, v, g, kv, qkv, o, transforms, layout, s)) return;
  flao_forward_general(q, k, v, g, kv, qkv, o, transforms, layout, s);
}

void backward(View d_o, const FlaoSaved& saved, View d_kv, const FlaoGrads& grads, View workspace,
              const FlaoTransforms& transforms) {
  const FlaoWorkspace layout(saved.sizes, transforms, workspace, d_kv.defined, saved.fill_kv);
  find_flao_softmax(saved.q, transforms.q, layout.q);
  find_flao_softmax(saved.k, transforms.k, layout.k);
  find_flao_softmax(saved.v, transforms.v, layout.v);
  find_flao_softmax(saved.g, transforms.g, layout.g);
  if (try_flao_backward_mma(d_o, saved, d_kv, grads, transforms, layout)) return;
  flao_backward_general(d_o, saved, d_kv, grads, transforms, layout);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_flao() {
  flao_forward_kernel.provide(Variant::cuda, on_cuda::forward);
  flao_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
