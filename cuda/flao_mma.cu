// Gated linear attention by tensor cores: nothing yet, everything goes the general way.
#include "flao.h"

namespace quipu {
namespace on_cuda {

bool flao_forward_by_tensor_cores(const View&, const View&, const View&, const View&, const View&,
                                  const View&, const View&, const FlaoEncodings&,
                                  const FlaoSpace&) {
  return false;
}

bool flao_backward_by_tensor_cores(const View&, const FlaoSaved&, const View&, const FlaoGrads&,
                                   const FlaoEncodings&, const FlaoSpace&) {
  return false;
}

}  // namespace on_cuda

void register_cuda_flao_mma() {}

}  // namespace quipu
