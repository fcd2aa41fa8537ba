#include "quipu/ops/index/sort.h"

#include "quipu/autograd/knot.h"
#include "quipu/ops/index/top_k.h"

namespace quipu {
using namespace detail;

Sorted sort(const Tensor& x, int dim, bool descending) {
  const OpScope op("sort");
  if (x.dim() == 0) {
    const Sorted one = sort(x.reshape({1}), dim, descending);
    return {one.values.reshape({}), one.indices.reshape({})};
  }
  const TopK all_of_them = top_k(x, x.size(dim), dim, descending);
  return {all_of_them.values, all_of_them.indices};
}

Tensor argsort(const Tensor& x, int dim, bool descending) {
  const OpScope op("argsort");
  const NoGrad no_grad;
  return no_gradient(sort(x, dim, descending).indices);
}

}  // namespace quipu
