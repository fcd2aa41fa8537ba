// Tensors from nothing, from values and from random numbers.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "quipu/core/context.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/tensor.h"

namespace quipu {
using namespace detail;

Tensor empty(const Shape& shape, DType dtype, Device device, Category category) {
  return Tensor(Ref<Storage>(new Storage(shape, dtype, device, category)), 0, shape,
                contiguous_strides(shape), dtype);
}

Tensor empty_like(const Tensor& x) {
  return empty(x.shape(), x.dtype(), x.device());
}

Tensor detail::workspace(const Shape& shape, DType dtype, Device device) {
  return empty(shape, dtype, device, Category::workspace);
}

Tensor full(const Shape& shape, const Scalar& value, DType dtype, Device device) {
  const OpScope op("full");
  check_value(value, dtype);
  Tensor o = empty(shape, dtype, device);
  fill_kernel(o, value);
  return o;
}

Tensor zeros(const Shape& shape, DType dtype, Device device, Category category) {
  const OpScope op("zeros");
  Tensor o = empty(shape, dtype, device, category);
  fill_kernel(o, 0);
  return o;
}

Tensor zeros_like(const Tensor& x) {
  return zeros(x.shape(), x.dtype(), x.device());
}

Tensor ones(const Shape& shape, DType dtype, Device device) {
  const OpScope op("ones");
  Tensor o = empty(shape, dtype, device);
  fill_kernel(o, 1);
  return o;
}

Tensor scalar_tensor(const Scalar& value, DType dtype, Device device) {
  return full({}, value, dtype, device);
}

namespace {

/// start + step * i for i in [0, count), all of which a whole type must be able to hold.
Tensor ramp(double start, double step, std::int64_t count, DType dtype, Device device) {
  const double last = start + step * static_cast<double>(std::max<std::int64_t>(count, 1) - 1);
  if (!is_floating(dtype) && count > 0) {
    check(std::abs(start) <= 0x1p53 && std::abs(last) <= 0x1p53, "whole numbers from ", start,
          " to ", last, " are not exact beyond 2^53");
    check_value(static_cast<std::int64_t>(start), dtype);
    check_value(static_cast<std::int64_t>(last), dtype);
  }
  Tensor o = empty({count}, dtype, device);
  ramp_kernel(o, start, step);
  return o;
}

void check_whole_count(std::int64_t n, const char* what) {
  check(n >= 0, what, " is ", n, ", but must not be negative");
}

/// Some elements of a tensor, `step` apart.
Tensor strided_part(const Tensor& x, std::int64_t offset, std::int64_t count, std::int64_t step) {
  return Tensor(Ref<Storage>(&x.storage()), offset, {count}, {step}, x.dtype());
}

}  // namespace

Tensor arange(std::int64_t end, DType dtype, Device device) {
  const OpScope op("arange");
  check_whole_count(end, "end");
  return ramp(0, 1, end, dtype, device);
}

Tensor arange(double start, double end, double step, DType dtype, Device device) {
  const OpScope op("arange");
  check(std::isfinite(start) && std::isfinite(end) && std::isfinite(step) && step != 0, "start ",
        start, ", end ", end, " and step ", step, " must be finite and the step not 0");
  const double count = std::ceil((end - start) / step);
  check(count < 0x1p59, "from ", start, " to ", end, " by ", step, " are too many elements");
  check(is_floating(dtype) || (start == std::trunc(start) && step == std::trunc(step)), "start ",
        start, " and step ", step, " must be whole numbers for type ", dtype);
  return ramp(start, step, count > 0 ? static_cast<std::int64_t>(count) : 0, dtype, device);
}

Tensor linspace(double start, double end, std::int64_t count, DType dtype, Device device) {
  const OpScope op("linspace");
  check_whole_count(count, "count");
  check(is_floating(dtype), "type ", dtype, " is not a floating one");
  check(std::isfinite(end - start), "start ", start, ", end ", end,
        " and their distance must be finite");
  Tensor o = ramp(start, count > 1 ? (end - start) / static_cast<double>(count - 1) : 0, count,
                  dtype, device);
  if (count > 1)
    fill_kernel(strided_part(o, count - 1, 1, 1), end);  // exactly, whatever the steps sum to
  return o;
}

Tensor eye(std::int64_t n, DType dtype, Device device) {
  const OpScope op("eye");
  check_whole_count(n, "n");
  Tensor o = empty({n, n}, dtype, device);
  fill_kernel(o, 0);
  fill_kernel(strided_part(o, 0, n, n + 1), 1);
  return o;
}

namespace {

/// What a call that draws n values may use.
PhiloxState draw(Generator& g, std::int64_t n) {
  return g.reserve(philox_counters(n));
}

/// o = values in host memory, row-major, of another type perhaps.
void write_values(const Tensor& o, const void* data, DType source) {
  if (o.device().is_meta() || o.numel() == 0) return;
  const View values{
      const_cast<void*>(data), o.shape(), contiguous_strides(o.shape()), source, cpu, true};
  if (o.device().is_cpu()) return copy_kernel(o, values);
  const Tensor host = workspace(o.shape(), o.dtype(), cpu);
  copy_kernel(host, values);
  upload_kernel(o, host);
}

}  // namespace

Tensor rand(const Shape& shape, DType dtype, Device device, Generator& g) {
  const OpScope op("rand");
  check(is_floating(dtype), "type ", dtype,
        " is not a floating one; whole numbers come from randint()");
  Tensor o = empty(shape, dtype, device);
  random_uniform_kernel(o, draw(g, o.numel()));
  return o;
}

Tensor randn(const Shape& shape, DType dtype, Device device, Generator& g) {
  const OpScope op("randn");
  check(is_floating(dtype), "type ", dtype, " is not a floating one");
  Tensor o = empty(shape, dtype, device);
  random_normal_kernel(o, draw(g, o.numel()));
  return o;
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, DType dtype, Device device,
               Generator& g) {
  const OpScope op("randint");
  check(low < high, "the range [", low, ", ", high, ") is empty");
  check(dtype != DType::boolean,
        "type bool is not a number; compare rand() with a probability instead");
  check_value(low, dtype);
  check_value(high - 1, dtype);
  Tensor o = empty(shape, dtype, device);
  random_int_kernel(o, draw(g, o.numel()), low, high);
  return o;
}

Tensor randperm(std::int64_t n, Device device, Generator& g) {
  const OpScope op("randperm");
  check_whole_count(n, "n");
  const Tensor o = empty({n}, i64, device);
  const PhiloxState state = draw(g, 2 * n);
  if (device.is_meta()) return o;
  // Fisher-Yates on the host: the same order on every device.
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = n - 1; i > 0; --i) {
    const auto words = philox(state.seed, state.offset + static_cast<std::uint64_t>(i));
    const std::uint64_t r = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    std::swap(order[static_cast<std::size_t>(i)], order[r % (static_cast<std::uint64_t>(i) + 1)]);
  }
  write_values(o, order.data(), i64);
  return o;
}

Tensor from_bytes(const void* data, DType source, const Shape& shape, DType dtype, Device device) {
  const OpScope op("from");
  check_enum("the type of the values", source, DType::boolean);
  Tensor o = empty(shape, dtype, device);
  write_values(o, data, source);
  return o;
}

}  // namespace quipu
