#include "quipu/ops/pointwise/kernels.h"

#include <cmath>

namespace quipu::detail {

DType pointwise_type(const Operands& in) {
  DType widest = DType::i64;
  bool fraction = false;
  for (int i = 0; i < in.count; ++i) {
    if (in[i].is_scalar) {
      fraction |= in[i].value.is_real() && std::trunc(in[i].value.real()) != in[i].value.real();
    } else {
      const DType type = compute_type(in[i].view.dtype);
      widest = type < widest ? type : widest;
    }
  }
  return widest == DType::i64 && fraction ? DType::f64 : widest;
}

DType pointwise_type(const View& o, Pointwise f, const Operands& in) {
  const DType type = pointwise_type(in);
  const bool cast = f == Pointwise::copy && is_floating(o.dtype) && !in[0].is_scalar;
  return cast && type == DType::i64 && in[0].view.dtype != DType::i64 ? DType::f64 : type;
}

std::array<Strides, 4> pointwise_strides(const View& o, const Operands& in, const Shape& over) {
  std::array<Strides, 4> strides;
  strides[0] = broadcast_strides(o.shape, o.strides, over);
  for (int i = 0; i < 3; ++i) {
    const bool is_view = i < in.count && !in[i].is_scalar;
    strides[static_cast<std::size_t>(i) + 1] =
        is_view ? broadcast_strides(in[i].view.shape, in[i].view.strides, over)
                : Dims::filled(over.size(), 0);
  }
  return strides;
}

}  // namespace quipu::detail
