#include "calls.h"

#include <algorithm>
#include <functional>

namespace quipu::calls {
namespace {

using Tensors = std::vector<Tensor>;
using namespace detail;  // optimizer updates

// ---- pointwise and reductions ----

Tensors unary(Draw& d) {
  const Tensor x = d.odd_tensor(d.shape(static_cast<int>(d.below(4))), d.floating());
  using F = Tensor (*)(const Tensor&);
  return {
      d.one_of<F>({exp, sqrt, rsqrt, tanh, log, sin, cos, abs, neg, gelu, detail::normal_cdf})(x)};
}

/// Two shapes that broadcast to one.
std::pair<Shape, Shape> broadcast_shapes(Draw& d) {
  const Shape whole = d.shape(1 + static_cast<int>(d.below(3)));
  Shape a = whole, b = whole;
  for (int k = 0; k < whole.size(); ++k) {
    if (d.chance(3)) (d.chance(2) ? a : b)[k] = 1;
  }
  while (!b.empty() && d.chance(4)) b.erase(0);
  if (d.chance(2)) std::swap(a, b);
  return {a, b};
}

Tensors binary(Draw& d) {
  const auto [first, second] = broadcast_shapes(d);
  const DType dtype = d.floating();
  const Tensor a = d.odd_tensor(first, dtype),
               b = d.odd_tensor(second, d.chance(3) ? d.floating() : dtype);
  switch (d.below(9)) {
    case 0: return {a + b};
    case 1: return {a - b};
    case 2: return {a * b};
    case 3: return {a / b};
    case 4: return {pow(abs(a), b)};
    case 5: return {maximum(a, b), minimum(a, b)};
    case 6: return {where(a > b, a, b.to(a.dtype()))};
    case 7: return {clamp(a, -0.5, 0.75)};
    default: {
      const Tensor c = d.tensor(first, dtype), target = d.tensor(first, dtype);
      return {mse_loss(c, target,
                       d.one_of({LossReduction::mean, LossReduction::sum, LossReduction::none}))};
    }
  }
}

Tensors with_number(Draw& d) {
  const Tensor x = d.odd_tensor(d.shape(2), d.floating());
  const double c = d.real(-3, 3);
  switch (d.below(5)) {
    case 0: return {x + c};
    case 1: return {c - x};
    case 2: return {x * c};
    case 3: return {c / x};
    default: return {pow(x, d.one_of({2.0, 3.0, 0.5, -1.0, 0.0}))};
  }
}

Tensors whole_numbers(Draw& d) {
  const auto [first, second] = broadcast_shapes(d);
  const DType dtype = d.one_of({i64, i32, u8});
  const Tensor a = d.whole(first, 0, 100, dtype),
               b = d.whole(second, 0, 100, d.one_of({i64, dtype}));
  switch (d.below(6)) {
    case 0: return {a + b, a * b};
    case 1: return {a - b};
    case 2: return {maximum(a, b)};
    case 3: return {eq(a, 3), le(a, b), logical_and(a, b)};
    case 4: return {sum(a), a.dim() == 0 ? a + 1 : cumsum(a, d.dim_of(a.shape()))};
    default: return {a.to(d.floating()), a.to(d.one_of({i64, i32, u8, boolean}))};
  }
}

Tensors cast(Draw& d) {
  const Tensor x = d.tensor(d.shape(3), d.floating());
  return {x.to(d.floating()), x.clone(), x.contiguous(), x.to(boolean)};
}

Axes axes_of(Draw& d, const Shape& shape) {
  Dims dims;
  for (int k = 0; k < shape.size(); ++k) {
    if (d.chance(2)) dims.push_back(k);
  }
  return dims.empty() ? Axes(d.dim_of(shape)) : Axes(dims);
}

Tensors reductions(Draw& d) {
  const Shape shape = d.shape(1 + static_cast<int>(d.below(4)));
  const Tensor x = d.tensor(shape, d.floating(), d.one_of({1.0, 20.0}));
  const Axes axes = axes_of(d, shape);
  const bool keep = d.chance(2), none = numel(shape) == 0;
  switch (d.below(4)) {
    case 0: return {sum(x, axes, keep)};
    case 1: return {none ? sum(x) : mean(x, axes, keep)};
    case 2: return {none ? sum(x) : var(x, axes, false, keep)};
    default: return {none ? sum(x) : logsumexp(x, axes, keep)};
  }
}

Tensors extremes(Draw& d) {
  const Shape shape = d.shape(1 + static_cast<int>(d.below(3)));
  const Tensor x = d.odd_tensor(shape, d.floating());
  if (x.numel() == 0) return {cumsum(x, 0)};
  const int dim = d.dim_of(shape);
  switch (d.below(5)) {
    case 0: return {max(x, dim), argmax(x, dim)};
    case 1: return {min(x, dim), argmin(x, dim)};
    case 2: return {max(x), argmin(x)};
    case 3: {
      const TopK best = top_k(x, 1 + d.below(x.size(dim)), dim, d.chance(2));
      return {best.values, best.indices};
    }
    default: return {cumsum(d.tensor(shape, d.floating()), dim)};
  }
}

// ---- structure and indices ----

Tensors join(Draw& d) {
  const Shape shape = d.shape(3);
  const DType dtype = d.floating();
  const int dim = d.dim_of(shape);
  Shape other = shape;
  other[dim] = 1 + d.below(5);
  const Tensor a = d.tensor(shape, dtype), b = d.tensor(other, dtype);
  return d.chance(2) ? Tensors{cat({a, b, a}, dim)} : Tensors{stack({a, a}, dim)};
}

Tensors indices(Draw& d) {
  Shape shape = d.shape(1 + static_cast<int>(d.below(3)));
  const int dim = d.dim_of(shape);
  shape[dim] = std::max<std::int64_t>(1, shape[dim]);
  const std::int64_t bound = shape[dim];
  const Tensor x = d.tensor(shape, d.floating());
  const DType type = d.one_of({i64, i32});
  Shape picked = shape;
  picked[dim] = 1 + d.below(40);
  switch (d.below(4)) {
    case 0: return {gather(x, dim, d.whole(picked, 0, bound, type))};
    case 1: return {index_select(x, dim, d.whole({picked[dim]}, 0, bound, type))};
    case 2:
      return {scatter_add(x, dim, d.whole(picked, 0, bound, type), d.tensor(picked, x.dtype()))};
    default: {
      const Tensor table = d.tensor({1 + d.below(50), 1 + d.below(70)}, d.floating());
      return {embedding(table, d.whole(d.shape(2), 0, table.size(0), type))};
    }
  }
}

Tensors random_numbers(Draw& d) {
  const Shape shape = d.shape(2);
  Generator generator(static_cast<std::uint64_t>(d.below(1000)));
  const Tensor x = d.tensor(shape, d.floating());
  switch (d.below(4)) {
    case 0: return {dropout(x, d.one_of({0.0, 0.25, 0.9}), generator)};
    case 1: return {randn(shape, d.floating(), d.device(), generator)};
    case 2: return {rand(shape, d.floating(), d.device(), generator)};
    default: return {randint(-5, 1000, shape, d.one_of({i64, i32}), d.device(), generator)};
  }
}

Tensors sampling(Draw& d) {
  Shape shape = d.shape(2);
  shape[1] = std::max<std::int64_t>(1, shape[1]);
  Generator generator(static_cast<std::uint64_t>(d.below(1000)));
  const SampleOptions options{.temperature = d.one_of({1.0, 0.7, 0.0}),
                              .top_k = d.chance(2) ? 0 : 1 + d.below(shape[1]),
                              .top_p = d.one_of({1.0, 0.9, 0.3}),
                              .generator = &generator};
  return {sample(d.tensor(shape, d.floating(), 3), options)};
}

// ---- products, norms, losses, updates ----

Tensors products(Draw& d) {
  const std::int64_t m = d.size(130), k = d.size(300), n = d.size(130);
  const DType dtype = d.floating();
  Shape a{m, k}, b{k, n};
  for (int batch = static_cast<int>(d.below(3)); batch > 0; --batch) {
    const std::int64_t size = 1 + d.below(3);
    a.insert(0, d.chance(3) ? 1 : size);
    b.insert(0, d.chance(3) ? 1 : size);
  }
  while (b.size() > 2 && d.chance(3)) b.erase(0);
  return {matmul(d.tensor(a, dtype), d.tensor(b, dtype))};
}

Tensors linear_call(Draw& d) {
  const DType dtype = d.floating();
  const Tensor x = d.tensor(d.shape(2), dtype);
  const std::int64_t out = d.size(100);
  return {linear(x, d.tensor({out, x.size(-1)}, dtype), d.maybe({out}, dtype))};
}

Tensors norms(Draw& d) {
  const DType dtype = d.floating();
  Shape shape = d.shape(2 + static_cast<int>(d.below(2)));
  const int last = shape.size() - 1;
  shape[last] = std::max<std::int64_t>(1, shape[last]);
  const std::int64_t channels = shape[last];
  const Tensor x = d.tensor(shape, dtype, d.one_of({1.0, 30.0}));
  switch (d.below(3)) {
    case 0: return {rms_norm(x, d.maybe({channels}, dtype))};
    case 1: {
      const Tensor weight = d.maybe({channels}, dtype);
      return {layer_norm(x, weight, weight.defined() ? d.maybe({channels}, dtype) : Tensor())};
    }
    default: {
      const std::int64_t groups = d.one_of<std::int64_t>({1, 2, 3});
      const Shape grouped{d.size(20), groups * (1 + d.below(12)), 1 + d.below(30)};
      const Tensor y = d.tensor(grouped, dtype), weight = d.maybe({grouped[1]}, dtype);
      return {group_norm(y, groups, weight,
                         weight.defined() ? d.maybe({grouped[1]}, dtype) : Tensor())};
    }
  }
}

Tensors losses(Draw& d) {
  const DType dtype = d.floating();
  const std::int64_t rows = 1 + d.below(40),
                     classes = std::max<std::int64_t>(1, d.size(d.elements() / rows));
  const CrossEntropyOptions options{
      .ignore_index = d.chance(2) ? std::optional<std::int64_t>(0) : std::nullopt,
      .label_smoothing = d.one_of({0.0, 0.1}),
      .reduction = d.one_of({LossReduction::mean, LossReduction::sum, LossReduction::none})};
  const Tensor targets = d.whole({rows}, 0, classes, d.one_of({i64, i32}));
  if (d.chance(2)) {
    return {
        cross_entropy(d.tensor({rows, classes}, dtype, d.one_of({1.0, 50.0})), targets, options)};
  }
  const std::int64_t width = 1 + d.below(30);
  return {linear_cross_entropy(d.tensor({rows, width}, dtype), d.tensor({classes, width}, dtype),
                               targets, options, d.maybe({classes}, dtype))};
}

Tensors updates(Draw& d) {
  const DType dtype = d.floating();
  const DType state = dtype == f64 ? f64 : f32;
  std::vector<ParameterUpdate> list;
  for (std::int64_t k = 1 + d.below(4); k > 0; --k) {
    Shape shape = d.shape(2);
    for (int i = 0; i < 2; ++i) shape[i] = std::max<std::int64_t>(1, shape[i]);
    ParameterUpdate u;
    u.parameter = d.tensor(shape, dtype).detach();
    u.gradient = d.tensor(shape, d.chance(2) ? dtype : state == f64 ? f64 : f32).detach();
    u.first = d.tensor(shape, state).detach();
    u.second = (d.tensor(shape, state).detach() * 0.1).detach();
    u.second = (u.second * u.second).contiguous();
    if (dtype != state && d.chance(2)) u.master = u.parameter.to(state).contiguous();
    u.step = d.whole({}, 0, 20);
    list.push_back(u);
  }
  GradientControl control;
  if (d.chance(2)) control.scale = full({}, d.real(0.1, 1), f32, d.device());
  if (d.chance(3)) control.skip = full({}, d.chance(2), boolean, d.device());
  switch (d.below(4)) {
    case 0: {
      for (ParameterUpdate& u : list) u.second = u.step = {};
      const double momentum = d.one_of({0.9, 0.5});
      sgd_update(list,
                 {.momentum = momentum,
                  .weight_decay = d.one_of({0.0, 0.1}),
                  .nesterov = d.chance(2),
                  .decoupled = d.chance(2)},
                 control);
      break;
    }
    case 1: adamw_update(list, {.lr = d.real(1e-4, 1e-1)}, control); break;
    case 2:
      for (ParameterUpdate& u : list) u.second = u.step = {};
      lion_update(list, {.weight_decay = d.one_of({0.0, 0.1})}, control);
      break;
    default: {
      Tensors gradients;
      for (const ParameterUpdate& u : list) gradients.push_back(u.gradient);
      return {global_norm(gradients)};
    }
  }
  return {};
}

/// Gradients are written by the first walk and added to by the second.
void differentiate(Draw& draw, Tape& tape, const Tensors& outputs) {
  for (const Tensor& o : outputs) {
    if (!o.requires_grad() || !is_floating(o.dtype())) continue;
    const Tensor upstream = draw.tensor(o.shape(), o.dtype()).detach();
    tape.backward(o, {upstream, true});
    if (draw.chance(2)) tape.backward(o, {upstream, true});
  }
}

}  // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> table = {
      {"unary", unary},
      {"binary", binary},
      {"with a number", with_number},
      {"whole numbers", whole_numbers},
      {"cast", cast},
      {"reductions", reductions},
      {"extremes", extremes},
      {"join", join},
      {"indices", indices},
      {"random numbers", random_numbers},
      {"sampling", sampling},
      {"products", products},
      {"linear", linear_call},
      {"norms", norms},
      {"losses", losses},
      {"updates", updates},
      {"act", activations},
      {"swiglu", gates},
      {"lrpe", encodings},
      {"flao", linear_attention},
      {"attention", softmax_attention},
      {"tpa_decode", factored_attention},
  };
  return table;
}

std::string run_call(std::uint64_t seed, Device device) {
  Draw draw(seed, device);
  const Operator& op = operators()[static_cast<std::size_t>(
      draw.below(static_cast<std::int64_t>(operators().size())))];
  try {
    const KernelCheck check;
    Tape tape;
    differentiate(draw, tape, op.call(draw));
    synchronize(device);
  } catch (const std::exception& error) {
    throw Error("call " + std::to_string(seed) + " (" + op.name + "): " + error.what());
  }
  return op.name;
}

}  // namespace quipu::calls
