// A program outside the tree that calls every operator of the installed package, forward and
// backward. tests/system/check_operators fails when one is missing here. Not all of them are for
// users: compositions and backward without a tape are in quipu::detail.
#include <quipu/quipu.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <vector>

using namespace quipu;
using namespace quipu::detail;

namespace {

/// Sums everything to one number, so that one backward goes through all of it.
Tensor total(const std::vector<Tensor>& parts) {
  Tensor sum_of_all = zeros({});
  for (const Tensor& part : parts) sum_of_all = sum_of_all + sum(part.to(f32));
  return sum_of_all;
}

Tensor factories() {
  Generator generator(7);
  const float values[] = {1, 2};
  return total({empty({2}).zero_(), empty_like(ones({3})).zero_(), workspace({2}, f32, cpu).zero_(),
                zeros_like(eye(2)), full({2, 2}, 0.5), arange(4), arange(0.0, 1.0, 0.25),
                linspace(0, 1, 5), rand({2}, f32, cpu, generator), randn({2}, f32, cpu, generator),
                randint(0, 9, {3}), randperm(5), from({1.0f, 2.0f}),
                from_bytes(values, f32, {2}, f64, cpu), scalar_tensor(3.0)});
}

Tensor arithmetic(const Tensor& x, const Tensor& y) {
  return total({add(x, y), sub(x, y), mul(x, y), div(x, y), pow(x, 2), maximum(x, y), minimum(x, y),
                neg(x), clamp(x, 0.1, 0.9), x + 1, 1 - x, x * y, x / y, -x});
}

Tensor comparisons(const Tensor& x, const Tensor& y) {
  const Tensor mask = logical_or(logical_and(lt(x, y), gt(x, 0)), logical_not(eq(x, y)));
  const Tensor below = x < y;
  const Tensor above = x > y;
  return total({where(mask, x, y), masked_fill(x, mask, 0), ne(x, y), le(x, y), ge(x, y), x <= y,
                x >= y, below, above});
}

Tensor functions(const Tensor& x) {
  const Tensor half = x * 0.25, bits = arange(6).reshape({2, 3});
  const Tensor masks = logical_xor(isnan(x), isinf(x)) | isfinite(x);
  return total({exp(x),
                sqrt(x),
                rsqrt(x),
                tanh(x),
                log(x),
                sin(x),
                cos(x),
                abs(x),
                reciprocal(x),
                tan(x),
                log1p(x),
                expm1(x),
                asin(half),
                acos(half),
                atan(x),
                sinh(x),
                cosh(x),
                asinh(x),
                acosh(x + 1),
                atanh(half),
                erf(x),
                square(x),
                sign(x),
                floor(x),
                ceil(x),
                round(x),
                trunc(x),
                remainder(x, 2),
                atan2(x, x),
                masks,
                ~bits,
                bitwise_and(bits, 3) ^ bitwise_or(bits, 1),
                bitwise_xor(bits, 2) & 1,
                bitwise_not(bits),
                shift_left(bits, 1),
                shift_right(bits, 1)});
}

Tensor reductions(const Tensor& x) {
  const Tensor d_x = zeros_like(x.detach());
  top_k_backward(top_k(x.detach(), 2).indices, ones({2, 2}), Grad::add_to(d_x));
  return total({d_x,
                top_k(x, 2, 1).values,
                sample(x, {.top_k = 2, .top_p = 0.9}),
                sum(x, 0),
                mean(x, 1),
                var(x, 1),
                stddev(x, 1),
                prod(x, 1),
                norm(x),
                any(x),
                all(x > 0),
                logsumexp(x, -1, true),
                log_softmax(x, 1),
                max(x),
                min(x, 0),
                argmax(x),
                argmin(x, 1),
                max_with_index(x, 1).values,
                min_with_index(x, 0).index,
                cumsum(x, 1),
                cumprod(x, 1),
                cummax(x, 1).values,
                cummin(x, 1).values,
                sort(x, 1).values,
                argsort(x),
                nonzero(x),
                masked_select(x, x > 0),
                bincount(argsort(x).flatten()),
                unique(x).values,
                searchsorted(arange(3).to(f32), x.detach())});
}

Tensor products_and_parts(const Tensor& x, const Tensor& y) {
  const Tensor index = from({std::int64_t{1}, std::int64_t{0}});
  const Tensor rows = index.unsqueeze(1).expand({2, 3});
  return total({matmul(x, y.t()), cat({x, y}, 1), stack({x, y}), split(x, 2, 1)[1],
                gather(x, 0, rows), index_select(x, 1, index), scatter_add(x, 0, rows, y),
                scatter(x, 0, rows, y), addmm(y, x, eye(3)), outer(x[0], y[0]),
                einsum("ij,kj->ik", {x, y}), one_hot(index, 3), embedding(x, index),
                dropout(x, 0.5)});
}

Tensor views(const Tensor& x) {
  return total({flip(x),
                roll(x, 1, 1),
                repeat(x, {2, 1}),
                tril(x),
                triu(x),
                pad(x, {{1, 1}}),
                x.diagonal(),
                x.reshape({3, 2}),
                x.view({6}),
                x.flatten(),
                x.transpose(0, 1),
                x.permute({1, 0}),
                x.slice(1, 0, 2),
                x.select(0, 1),
                x.unsqueeze(0).squeeze(),
                x.unsqueeze(1).squeeze(1),
                x.index({slice(0, 1), all}),
                x(rest, 0),
                x[0],
                x.t().contiguous(),
                x.clone(),
                x.to(bf16),
                x.detach(),
                pin_memory(x),
                to_async(x, cpu),
                full({1}, is_pinned(x) ? 1 : 0)});
}

Tensor gated_attention(const Tensor& x, const Tensor& y) {
  const Tensor q = x.reshape({1, 1, 2, 3}), k = y.reshape({1, 1, 2, 3}), d_q = zeros(q.shape());
  flao_backward(q, k, k, q, q, Grad::write_to(d_q), {}, {}, {});
  return total({flao(q, k, k, q, {.k_act = Act::silu}), flao_composed(q, k, k, q), d_q});
}

Tensor activations(const Tensor& x, const Tensor& y) {
  const Tensor at = x.detach(), d_x = zeros_like(at), d_y = zeros_like(at);
  act_backward(at, at, Grad::add_to(d_x), Act::silu);
  gelu_backward(at, at, Grad::add_to(d_x));
  swiglu_backward(at, at, at, Grad::add_to(d_x), Grad::add_to(d_y));
  std::printf("%s\n", to_string(act_named("silu")).c_str());
  return total({act(x, Act::softmax, -1), act_composed(x, Act::relu), softmax(x, 1), relu(x),
                sigmoid(x), silu(x), softplus(x), elu(x), leaky_relu(x), mish(x), hardswish(x),
                gelu_tanh(x), gelu(x), gelu_composed(x), normal_cdf(x), swiglu(x, y),
                swiglu_composed(x, y), d_x, d_y});
}

Tensor positions(const Tensor& in) {
  const Tensor x = in.reshape({1, 3, 1, 2}), grid = in.reshape({1, 1, 3, 2});
  const Tensor theta = ones({1, 2}), half = ones({1, 1}), d_x = zeros({1, 3, 1, 2});
  const Tensor d_grid = d_x.reshape({1, 1, 3, 2}), at = x.detach(), wide = ones({1, 3, 1, 4});
  lrpe_rotate_backward(at, half, at, Grad::add_to(d_x));
  lrpe_cosine_backward(at, theta, wide, Grad::add_to(d_x));
  lrpe_cosine_md_backward(grid.detach(), theta, wide.reshape({1, 1, 3, 4}), Grad::add_to(d_grid),
                          {3});
  return total({lrpe_rotate(x, half), lrpe_rotate_composed(x, half), lrpe_cosine(x, theta),
                lrpe_cosine_composed(x, theta), lrpe_cosine_md(grid, theta, {3}),
                lrpe_cosine_md_composed(grid, theta, {3}), d_x});
}

Tensor normalisation(const Tensor& x) {
  const Tensor weight = ones({3}), d_x = zeros_like(x.detach());
  rms_norm_backward(x.detach(), weight, x.detach(), Grad::add_to(d_x), {});
  layer_norm_backward(x.detach(), weight, x.detach(), Grad::add_to(d_x), {}, {});
  group_norm_backward(x.detach(), 3, weight, x.detach(), Grad::add_to(d_x), {}, {});
  return total({rms_norm(x, weight), layer_norm(x, weight, weight), group_norm(x, 1),
                rms_norm_composed(x), layer_norm_composed(x), group_norm_composed(x, 3), d_x});
}

Tensor layers(const Tensor& x, const Tensor& y) {
  const Tensor d_x = zeros_like(x.detach()), d_o = ones({2, 2});
  linear_backward(x.detach(), y.detach(), d_o, Grad::add_to(d_x), {}, {});
  const Tensor q = x.reshape({1, 1, 2, 3}), k = y.reshape({1, 1, 2, 3});
  const AttentionOutput output = attention_with_lse(q, k, k, {.causal = true});
  AttentionGrads d;
  d.q = Grad::add_to(d_x.reshape({1, 1, 2, 3}));
  attention_backward(q, k, k, output, output.o, d, {.causal = true});
  const Tensor p = softmax(y, 1), classes = argmax(y, 1);
  return total({l1_loss(x, y), huber_loss(x, y), bce_with_logits(x, p),
                kl_div(log_softmax(x, 1), p), nll_loss(log_softmax(x, 1), classes), linear(x, y),
                linear_composed(x, y, ones({2})), attention(q, k, k), attention_composed(q, k, k),
                output.lse, d_x});
}

Tensor in_place() {
  const Tensor a = zeros({3});
  a.copy_from(from({1.0f, 2.0f, 3.0f})).add_(ones({3}), 2).add_(1).sub_(ones({3}));
  a.mul_(ones({3})).mul_(2).div_(full({3}, 2)).clamp_(0, 4).lerp_(ones({3}), 0.5);
  a.addcmul_(a, a, 0.1).addcdiv_(a, a);
  a += a;
  a -= ones({3});
  a *= a;
  a.index_put_({0}, ones({}));
  return total({a, empty({2}).fill_(1)});
}

Tensor updates() {
  const ParameterUpdate update{.parameter = ones({3}),
                               .gradient = ones({3}),
                               .first = zeros({3}),
                               .second = zeros({3}),
                               .step = zeros({}, i64)};
  sgd_update({&update, 1}, {.momentum = 0.9});
  adamw_update({&update, 1}, {});
  lion_update({&update, 1}, {});
  return total({update.parameter, global_norm({&update.gradient, 1})});
}

Tensor training() {
  const Tensor w = ones({2, 2}).set_requires_grad();
  w.set_grad(ones({2, 2}));
  const NamedTensors parameters{{"w", w}};
  nn::LossScale scale;
  nn::clip_grad_norm(parameters, 1);
  nn::SGD(parameters).step();
  nn::AdamW(parameters).step({.max_norm = 1, .loss_scale = &scale});
  nn::Lion(parameters).step();
  nn::Muon(parameters).step();
  nn::SGD(parameters).set_lr(nn::warm_up(3, nn::cosine(1, 0, 9))(2));
  return total({w.detach(), scale.scale()});
}

Tensor factored_attention(const Tensor& x) {
  const Tensor aq = x.reshape({1, 1, 2, 3}), ak = x.reshape({1, 3, 2}), av = ak;
  const Tensor bq = ones({1, 1, 3, 2}), bk = ak, bv = ak;
  TpaCache cache;
  cache.reserve(1, 4, 2, 2, 2, f32);
  cache.append(ak, av, bk, bv);
  const TpaOutput output = tpa_decode_with_lse(aq, ak, av, bq, bk, bv);
  const Tensor d_aq = zeros_like(aq);
  TpaGrads d;
  d.aq = Grad::add_to(d_aq);
  tpa_decode_backward(aq, ak, av, bq, bk, bv, output, output.o, d);
  return total({tpa_decode(aq, ak, av, bq, bk, bv), tpa_decode_composed(aq, ak, av, bq, bk, bv),
                cache.view().ak, output.lse, d_aq});
}

Tensor losses(const Tensor& x) {
  const Tensor targets = from({std::int64_t{2}, std::int64_t{0}}), up = ones({});
  const Tensor at = x.detach(), d_x = zeros_like(at);
  cross_entropy_backward(at, targets, up, Grad::add_to(d_x));
  mse_loss_backward(at, zeros({2, 3}), up, Grad::add_to(d_x), {});
  embedding_backward(targets.slice(0, 1), ones({1, 3}), Grad::add_to(d_x));
  linear_cross_entropy_backward(at, at, zeros({2}, i64), up, Grad::add_to(d_x), {});
  return total({cross_entropy(x, targets), cross_entropy_composed(x, targets),
                linear_cross_entropy(x, at, zeros({2}, i64)),
                linear_cross_entropy_composed(x, at, zeros({2}, i64)), mse_loss(x, d_x), d_x});
}

Tensor everything(const Tensor& x, const Tensor& y) {
  return total({factories(), arithmetic(x, y), comparisons(x, y), functions(x), reductions(x),
                products_and_parts(x, y), views(x), normalisation(x), gated_attention(x, y),
                in_place(), factored_attention(x), activations(x, y), positions(x), layers(x, y),
                losses(x), updates(), training()});
}

bool finite(const Tensor& x) {
  for (const double value : x.to_vector()) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

int main() {
  allow_tf32(tf32_allowed());
  manual_seed(1);
  const Tensor x = (rand({2, 3}) + 0.5).set_requires_grad();
  const Tensor y = (rand({2, 3}) + 0.5).set_requires_grad();
  y.set_grad_dtype(f64);
  Tape tape;
  const Tensor loss = everything(x, y);
  tape.backward(loss);
  if (!finite(loss) || !finite(x.grad()) || !finite(y.grad())) {
    std::cout << "not finite: " << loss << x.grad() << y.grad();
    return 1;
  }

  const auto smooth = [](const std::vector<Tensor>& in) { return matmul(in[0], in[1]); };
  const auto input = [](const Shape& shape) { return randn(shape, f64).set_requires_grad(); };
  const GradcheckResult check = gradcheck(smooth, {input({2, 3}), input({3, 2})});
  std::cout << "loss " << loss.item() << ", " << memory_stats().peak << " bytes at the peak\n"
            << check;
  return check ? 0 : 1;
}
