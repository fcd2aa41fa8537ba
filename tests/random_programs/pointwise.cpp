// The table of operators: pointwise ones, comparisons, and changes in place.
#include <algorithm>

#include "operators.h"

namespace quipu::programs {

bool one(Draw& d, Statement& s) {
  s.in = {d.some()};
  return s.in[0] >= 0;
}

bool one_positive(Draw& d, Statement& s) {
  s.in = {d.find([](const Tensor& x) {
    if (!is_float(x)) return false;
    const std::vector<double> entries = x.to_vector();
    return std::all_of(entries.begin(), entries.end(), [](double v) { return v > 0.3; });
  })};
  return s.in[0] >= 0;
}

bool one_and_number(Draw& d, Statement& s) {
  s.n = {d.chance(0.5) ? d.between(1, 8) : -d.between(1, 8)};
  return one(d, s);
}

bool one_and_dim(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  s.n = {d.dim_of(d.at(s.in[0]))};
  return true;
}

bool matrix(Draw& d, Statement& s) {
  s.in = {d.some(2)};
  return s.in[0] >= 0;
}

bool two(Draw& d, Statement& s) {
  const Value a = d.some();
  if (a < 0) return false;
  const Shape shape = d.at(a).shape();
  Value b = -1;
  if (d.chance(0.7)) {
    b = d.find(
        [&](const Tensor& x) { return is_float(x) && x.requires_grad() && x.shape() == shape; });
  }
  if (b < 0) b = d.like(d.beside(shape), d.at(a).dtype());
  s.in = {a, b};
  if (d.chance(0.5)) std::swap(s.in[0], s.in[1]);
  return true;
}

bool two_alike(Draw& d, Statement& s) {
  const Value a = d.some();
  if (a < 0) return false;
  s.in = {a, d.like(d.at(a).shape(), d.at(a).dtype())};
  if (d.chance(0.5)) std::swap(s.in[0], s.in[1]);
  return true;
}

namespace {

bool over_positive(Draw& d, Statement& s) {
  if (!one_positive(d, s)) return false;
  const Tensor& divisor = d.at(s.in[0]);
  s.in = {d.like(d.beside(divisor.shape()), divisor.dtype()), s.in[0]};
  return true;
}

bool power(Draw& d, Statement& s) {
  if (!over_positive(d, s)) return false;
  std::swap(s.in[0], s.in[1]);
  return true;
}

bool positive_and_number(Draw& d, Statement& s) {
  s.n = {d.between(-8, 8)};
  return one_positive(d, s);
}

bool one_or_two_masks(Draw& d, Statement& s) {
  s.in = {d.mask(d.shape(d.between(0, 2)))};
  s.in.push_back(d.mask(d.beside(d.at(s.in[0]).shape())));
  return true;
}

/// A condition, and two tensors of one type.
bool choice(Draw& d, Statement& s) {
  const Value a = d.some();
  if (a < 0) return false;
  const Value b = d.like(d.beside(d.at(a).shape()), d.at(a).dtype());
  s.in = {d.mask(d.beside(d.at(a).shape())), a, b};
  s.n = {d.between(-8, 8)};
  return true;
}

bool masked(Draw& d, Statement& s) {
  const Value x = d.some();
  if (x < 0) return false;
  s.in = {x, d.mask(d.at(x).shape())};
  s.n = {d.between(-8, 8)};
  return true;
}

bool cast(Draw& d, Statement& s) {
  constexpr DType types[] = {f64, f32, bf16, f16};
  s.n = {static_cast<int>(types[d.below(4)])};
  return one(d, s);
}

void add_functions(std::vector<Operator>& table) {
  constexpr unsigned kink = Operator::kink;
  table.insert(
      table.end(),
      {
          {"sinh", one, CALL(sinh(in[0]))},
          {"cosh", one, CALL(cosh(in[0]))},
          {"tan", one, CALL(tan(in[0] * 0.125))},
          {"asin", one, CALL(asin(sin(in[0]) * 0.5))},
          {"acos", one, CALL(acos(cos(in[0]) * 0.5))},
          {"acosh", one_positive, CALL(acosh(in[0] + 1))},
          {"atanh", one, CALL(atanh(tanh(in[0]) * 0.5))},
          {"ceil", one, CALL(ceil(in[0])), kink},
          {"round", one, CALL(round(in[0])), kink},
          {"trunc", one, CALL(trunc(in[0])), kink},
          {"isnan", one, CALL(isnan(in[0]))},
          {"isinf", one, CALL(isinf(in[0]))},
          {"isfinite", one, CALL(isfinite(in[0]))},
          {"logical_xor", one_or_two_masks, CALL(logical_xor(in[0], in[1]))},
          {"bitwise_and", one_or_two_masks, CALL(bitwise_and(in[0], in[1]))},
          {"bitwise_or", one_or_two_masks, CALL(bitwise_or(in[0], in[1]))},
          {"bitwise_xor", one_or_two_masks, CALL(bitwise_xor(in[0], in[1]))},
          {"bitwise_not", one_or_two_masks, CALL(bitwise_not(in[0]))},
          {"shift_left", one_or_two_masks, CALL(shift_left(in[0].to(i64), in[1].to(i64)))},
          {"shift_right", one_or_two_masks, CALL(shift_right(in[0].to(i64), in[1].to(i64)))},
          {"reciprocal", one_positive, CALL(reciprocal(in[0]))},
          {"square", one, CALL(square(in[0]))},
          {"log1p", one_positive, CALL(log1p(in[0]))},
          {"expm1", one, CALL(expm1(in[0]))},
          {"atan", one, CALL(atan(in[0]))},
          {"asinh", one, CALL(asinh(in[0]))},
          {"erf", one, CALL(erf(in[0]))},
          {"relu", one, CALL(relu(in[0])), kink},
          {"sigmoid", one, CALL(sigmoid(in[0]))},
          {"silu", one, CALL(silu(in[0]))},
          {"softplus", one, CALL(softplus(in[0]))},
          {"elu", one, CALL(elu(in[0], 0.5)), kink},
          {"leaky_relu", one, CALL(leaky_relu(in[0], 0.25)), kink},
          {"mish", one, CALL(mish(in[0]))},
          {"hardswish", one, CALL(hardswish(in[0])), kink},
          {"gelu_tanh", one, CALL(gelu_tanh(in[0]))},
          {"floor", one, CALL(floor(in[0])), kink},
          {"sign", one, CALL(sign(in[0])), kink},
          {"remainder", one_and_number, CALL(remainder(in[0], n[0] / 4.0)), kink},
          {"atan2", power, CALL(atan2(in[0], in[1]))},
      });
}

}  // namespace

void add_pointwise(std::vector<Operator>& table) {
  add_functions(table);
  constexpr unsigned kink = Operator::kink, light = Operator::keeps_nothing;
  table.insert(table.end(),
               {
                   {"add", two, CALL(in[0] + in[1]), light, 14},
                   {"sub", two, CALL(in[0] - in[1]), light, 5},
                   {"mul", two, CALL(in[0] * in[1]), 0, 4},
                   {"div", over_positive, CALL(in[0] / in[1])},
                   {"pow", power, CALL(pow(in[0], in[1]))},
                   {"pow", positive_and_number, CALL(pow(in[0], n[0] / 4.0))},
                   {"pow", one_and_number, CALL(pow(1.5, in[0]))},
                   {"maximum", two, CALL(maximum(in[0], in[1])), kink},
                   {"minimum", two, CALL(minimum(in[0], in[1])), kink},
                   {"add", one_and_number, CALL(in[0] + n[0] / 4.0), light},
                   {"sub", one_and_number, CALL(n[0] / 4.0 - in[0]), light},
                   {"mul", one_and_number, CALL(in[0] * (n[0] / 4.0)), light, 4},
                   {"div", one_and_number, CALL(in[0] / (n[0] / 4.0)), light},
                   {"div", positive_and_number, CALL(n[0] / 4.0 / in[0])},
                   {"neg", one, CALL(-in[0]), light},
                   {"clamp", one, CALL(clamp(in[0], -0.5, 0.75)), kink},
                   {"clamp", one, CALL(clamp(in[0], 0.25)), kink},
                   {"exp", one, CALL(exp(in[0]))},
                   {"log", one_positive, CALL(log(in[0]))},
                   {"sqrt", one_positive, CALL(sqrt(in[0]))},
                   {"rsqrt", one_positive, CALL(rsqrt(in[0]))},
                   {"tanh", one, CALL(tanh(in[0])), 0, 2},
                   {"sin", one, CALL(sin(in[0]))},
                   {"cos", one, CALL(cos(in[0]))},
                   {"abs", one, CALL(abs(in[0])), kink},
                   {"eq", two, CALL(eq(in[0], in[1])), kink},
                   {"ne", two, CALL(ne(in[0], in[1])), kink},
                   {"lt", two, CALL(in[0] < in[1]), kink},
                   {"le", two, CALL(in[0] <= in[1]), kink},
                   {"gt", one_and_number, CALL(in[0] > n[0] / 4.0), kink},
                   {"ge", two, CALL(in[0] >= in[1]), kink},
                   {"logical_and", one_or_two_masks, CALL(logical_and(in[0], in[1]))},
                   {"logical_or", one_or_two_masks, CALL(logical_or(in[0], in[1]))},
                   {"logical_not", one_or_two_masks, CALL(logical_not(in[0]))},
                   {"where", choice, CALL(where(in[0], in[1], in[2])), 0, 2},
                   {"where", choice, CALL(where(in[0], n[0] / 4.0, in[1]))},
                   {"masked_fill", masked, CALL(masked_fill(in[0], in[1], n[0] / 4.0))},
                   {"to", cast, CALL(in[0].to(DType(n[0]))), light | kink},
               });
}

void add_in_place(std::vector<Operator>& table) {
  const auto add = [&](const char* name, auto draw, auto run, const char* text, std::nullptr_t) {
    table.push_back({name, draw, run, text, nullptr, Operator::in_place | Operator::kink});
  };
  add("copy_from", two_alike, CALL(in[0].copy_from(in[1])));
  add("fill_", one_and_number, CALL(in[0].fill_(n[0] / 4.0)));
  add("zero_", one, CALL(in[0].zero_()));
  add("add_", two_alike, CALL(in[0].add_(in[1], 0.5)));
  add("add_", one_and_number, CALL(in[0].add_(n[0] / 4.0)));
  add("sub_", two_alike, CALL(in[0] -= in[1]));
  add("mul_", two_alike, CALL(in[0] *= in[1]));
  add("mul_", one_and_number, CALL(in[0].mul_(n[0] / 4.0)));
  add("div_", over_positive, CALL(in[0].div_(in[1])));
  add("clamp_", one, CALL(in[0].clamp_(-0.5, 0.75)));
  add("lerp_", two_alike, CALL(in[0].lerp_(in[1], 0.25)));
  add("addcmul_", two_alike, CALL(in[0].addcmul_(in[1], in[1], 0.5)));
  add("addcdiv_", over_positive, CALL(in[0].addcdiv_(in[1], in[1], 0.5)));
}

}  // namespace quipu::programs
