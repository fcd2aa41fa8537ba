#include <algorithm>
#include <limits>

#include "calls.h"

namespace quipu::calls {

std::int64_t Draw::size(std::int64_t most) {
  if (chance(40)) return 0;
  const std::int64_t drawn = one_of<std::int64_t>(
      {1,  1,  2,   3,   4,   5,   7,   8,   12,  16,  17,  31,  32,  33,   48,   63,   64,
       65, 96, 127, 128, 129, 130, 255, 256, 257, 300, 511, 513, 600, 1024, 1025, 2049, 4097});
  return drawn <= most ? drawn : 1 + below(std::max<std::int64_t>(1, most));
}

Shape Draw::shape(int dims) {
  Shape s;
  std::int64_t left = elements();
  for (int d = 0; d < dims; ++d) {
    s.push_back(size(std::max<std::int64_t>(1, std::min<std::int64_t>(left, 4100))));
    left /= std::max<std::int64_t>(1, s[d]);
  }
  // The long dimension may be any.
  for (int d = dims - 1; d > 0; --d) std::swap(s[d], s[static_cast<int>(below(d + 1))]);
  return s;
}

int Draw::dim_of(const Shape& shape) {
  return static_cast<int>(below(std::max(1, shape.size())));
}

DType Draw::floating() {
  return one_of({f32, f32, f64, bf16, f16});
}

Tensor Draw::laid_out(const Tensor& x) {
  const int dims = x.dim();
  if (dims == 0) return x;
  switch (below(4)) {
    case 1: {  // with the first and the last dimension exchanged in memory
      if (dims < 2) return x;
      return x.transpose(0, dims - 1).contiguous().transpose(0, dims - 1);
    }
    case 2: {  // a part of a larger tensor
      const int d = dim_of(x.shape());
      Shape larger = x.shape();
      larger[d] += 3;
      const Tensor whole = zeros(larger, x.dtype(), x.device());
      const Tensor part = whole.slice(d, 1, 1 + x.size(d));
      part.copy_from(x);
      return part;
    }
    case 3: {  // every second entry
      const int d = dim_of(x.shape());
      Shape larger = x.shape();
      larger[d] = 2 * larger[d];
      const Tensor whole = zeros(larger, x.dtype(), x.device());
      const Tensor part = whole.slice(d, 0, larger[d], 2);
      part.copy_from(x);
      return part;
    }
    default: return x;
  }
}

Tensor Draw::leaf(const Tensor& x) {
  const Tensor laid = laid_out(x).detach();
  if (is_floating(x.dtype()) && !chance(4)) laid.set_requires_grad();
  return laid;
}

Tensor Draw::tensor(const Shape& shape, DType dtype, double scale) {
  Generator generator(random_());
  return leaf((randn(shape, f32, cpu, generator) * scale).to(dtype).to(device_));
}

Tensor Draw::odd_tensor(const Shape& shape, DType dtype) {
  if (!chance(4)) return tensor(shape, dtype);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (double& v : values) {
    v = chance(3) ? one_of({0.0, -0.0, 1.0, -1.0, 0.5, infinity, -infinity,
                            std::numeric_limits<double>::quiet_NaN()})
                  : real(-3, 3);
  }
  return leaf(from(values, shape, dtype, device_));
}

Tensor Draw::whole(const Shape& shape, std::int64_t low, std::int64_t high, DType dtype) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(numel(shape)));
  for (std::int64_t& v : values) v = low + below(high - low);
  return laid_out(from(values, shape, dtype, device_));
}

}  // namespace quipu::calls
