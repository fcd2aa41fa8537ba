#include "quipu/nn/init.h"

#include <algorithm>
#include <cmath>

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"

namespace quipu::nn {
using namespace quipu::detail;

Tensor make_parameter(const Shape& shape, const Place& place) {
  return empty(shape, place.dtype, place.device, Category::parameter).set_requires_grad();
}

Tensor make_buffer(const Tensor& x) {
  x.storage().set_category(Category::parameter);
  return x;
}

namespace init {
namespace {

/// Fan in and fan out of a weight.
struct Fans {
  double in, out;
};

Fans fans_of(const Tensor& x) {
  check(x.dim() >= 2, "the weight has shape ", x.shape(), ", but (out, in, ...) is wanted");
  double rest = 1;
  for (int d = 2; d < x.dim(); ++d) rest *= static_cast<double>(x.size(d));
  return {rest * static_cast<double>(x.size(1)), rest * static_cast<double>(x.size(0))};
}

double xavier_deviation(const Tensor& x, double gain) {
  const Fans fans = fans_of(x);
  return gain * std::sqrt(2 / std::max(fans.in + fans.out, 1.0));
}

double kaiming_deviation(const Tensor& x, double gain) {
  return gain / std::sqrt(std::max(fans_of(x).in, 1.0));
}

/// x = offset + scale * draws. bf16 and f16 get the numbers of f32, rounded.
const Tensor& draw(const Tensor& x, const Kernel<void(View, PhiloxState)>& kernel, double offset,
                   double scale, Generator* generator) {
  check(is_floating(x.dtype()), "the tensor is ", x.dtype(), ", but a floating type is wanted");
  const NoGrad no_grad;
  change_in_place(x);
  Generator& g = generator ? *generator : default_generator();
  const Tensor values = is_reduced(x.dtype()) ? workspace(x.shape(), f32, x.device()) : x;
  kernel(values, g.reserve(philox_counters(x.numel())));
  values.mul_(scale);
  if (offset != 0) values.add_(offset);
  return values.same_as(x) ? x : x.copy_from(values);
}

/// Uniform with mean 0.
const Tensor& spread(const Tensor& x, double deviation, Generator* generator) {
  const double bound = std::sqrt(3.0) * deviation;
  return draw(x, random_uniform_kernel, -bound, 2 * bound, generator);
}

}  // namespace

const Tensor& constant(const Tensor& x, double value) {
  const NoGrad no_grad;
  return x.fill_(value);
}
const Tensor& zeros(const Tensor& x) {
  return constant(x, 0);
}
const Tensor& ones(const Tensor& x) {
  return constant(x, 1);
}

const Tensor& uniform(const Tensor& x, double low, double high, Generator* generator) {
  const OpScope op("uniform");
  check(std::isfinite(high - low) && low <= high, "the range from ", low, " to ", high, " is none");
  return draw(x, random_uniform_kernel, low, high - low, generator);
}

const Tensor& normal(const Tensor& x, double mean, double deviation, Generator* generator) {
  const OpScope op("normal");
  check(std::isfinite(mean) && std::isfinite(deviation) && deviation >= 0, "mean ", mean,
        " and deviation ", deviation, " must be finite, the deviation not negative");
  return draw(x, random_normal_kernel, mean, deviation, generator);
}

const Tensor& xavier_uniform(const Tensor& x, double gain, Generator* generator) {
  const OpScope op("xavier_uniform");
  return spread(x, xavier_deviation(x, gain), generator);
}
const Tensor& xavier_normal(const Tensor& x, double gain, Generator* generator) {
  const OpScope op("xavier_normal");
  return draw(x, random_normal_kernel, 0, xavier_deviation(x, gain), generator);
}
const Tensor& kaiming_uniform(const Tensor& x, double gain, Generator* generator) {
  const OpScope op("kaiming_uniform");
  return spread(x, kaiming_deviation(x, gain), generator);
}
const Tensor& kaiming_normal(const Tensor& x, double gain, Generator* generator) {
  const OpScope op("kaiming_normal");
  return draw(x, random_normal_kernel, 0, kaiming_deviation(x, gain), generator);
}

}  // namespace init
}  // namespace quipu::nn
