// Losses made of smaller operators: values beside formulas in f64, ends, rows that do not count,
// gradients.
#include <quipu/quipu.h>

#include <cmath>

#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

constexpr LossReduction reductions[] = {LossReduction::mean, LossReduction::sum,
                                        LossReduction::none};

Tensor classes_of(const std::vector<std::int64_t>& values, Device device) {
  return from(values, {static_cast<std::int64_t>(values.size())}, i64, device);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "losses: values") {
  const Tensor x = from({-3.0f, 0.25f, 2.0f, 0.0f}).to(device),
               y = from({0.0f, 0.75f, 2.5f, 1.0f}).to(device);
  CHECK(l1_loss(x, y).item() == 1.25);
  CHECK(l1_loss(x, y, LossReduction::sum).item() == 5);
  CHECK(huber_loss(x, y, 0.5).to_vector().size() == 1);
  CHECK(same_bits(huber_loss(x, y, 0.5, LossReduction::none),
                  from({1.375f, 0.125f, 0.125f, 0.375f}).to(device)));
  CHECK(l1_loss(zeros({0}, f32, device), zeros({0}, f32, device)).item() == 0);
  CHECK(l1_loss(x.to(bf16), y.to(bf16)).dtype() == f32);

  // Far from 0 nothing overflows, and what is small keeps its digits.
  const Tensor logits = from({-200.0, 200.0, -30.0, 30.0, 0.5}, {5}, f32, device);
  const Tensor labels = from({0.0, 1.0, 0.0, 0.0, 0.25}, {5}, f32, device);
  const std::vector<double> bce = bce_with_logits(logits, labels, LossReduction::none).to_vector();
  const std::vector<double> wanted = {0, 0, std::exp(-30.0), 30, std::log1p(std::exp(0.5)) - 0.125};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(std::abs(bce[i] - wanted[i]) <= 8 * epsilon_of(f32) * wanted[i]);
  }
  const Tensor p = from({0.0f, 0.25f, 0.75f}).to(device), q = from({0.5f, 0.25f, 0.25f}).to(device);
  CHECK(std::abs(kl_div(log(q), p, LossReduction::sum).item() - 0.75 * std::log(3.0)) <=
        8 * epsilon_of(f32));
}

TEST_CASE_FIXTURE(EachDevice, "losses: rows that do not count, and weights of classes") {
  const Tensor logits = randn({6, 5}, f64, device), weights = rand({5}, f64, device) + 0.5;
  const Tensor targets = classes_of({4, -100, 0, 2, -100, 2}, device);
  for (const LossReduction reduction : reductions) {
    const Tensor plain = cross_entropy(logits, targets, {.reduction = reduction});
    CHECK(allclose(nll_loss(log_softmax(logits, 1), targets, {.reduction = reduction}), plain));
    const Tensor weighted =
        cross_entropy(logits, targets, {.reduction = reduction, .weights = weights});
    CHECK(allclose(
        nll_loss(log_softmax(logits, 1), targets, {.weights = weights, .reduction = reduction}),
        weighted));
    CHECK(allclose(
        cross_entropy(
            logits, targets,
            {.label_smoothing = 0.2, .reduction = reduction, .weights = ones({5}, f64, device)}),
        cross_entropy(logits, targets, {.label_smoothing = 0.2, .reduction = reduction})));
  }
  // By hand: a mean divides by the weights of the rows that count.
  const std::vector<double> rows =
      cross_entropy(logits, targets, {.reduction = LossReduction::none}).to_vector();
  const std::vector<double> w = weights.to_vector();
  const double by_hand =
      (rows[0] * w[4] + rows[2] * w[0] + (rows[3] + rows[5]) * w[2]) / (w[4] + w[0] + 2 * w[2]);
  CHECK(std::abs(cross_entropy(logits, targets, {.weights = weights}).item() - by_hand) <= 1e-14);
  const Tensor none = classes_of({-100, -100}, device);
  CHECK(nll_loss(logits.slice(0, 0, 2), none).item() == 0);
  CHECK(cross_entropy(logits.slice(0, 0, 2), none, {.weights = weights}).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "losses: probabilities as targets") {
  const Tensor logits = randn({4, 7}, f64, device), targets = randint(0, 7, {4}, i64, device);
  const Tensor p = one_hot(targets, 7).to(f64);
  for (const LossReduction reduction : reductions) {
    for (const double smoothing : {0.0, 0.3}) {
      CHECK(allclose(
          cross_entropy(logits, p, {.label_smoothing = smoothing, .reduction = reduction}),
          cross_entropy(logits, targets, {.label_smoothing = smoothing, .reduction = reduction})));
    }
  }
  const Tensor impossible =
      from({0.0, -std::numeric_limits<double>::infinity()}, {1, 2}, f64, device);
  CHECK(cross_entropy(impossible, from({1.0, 0.0}, {1, 2}, f64, device)).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "losses: gradients") {
  const Tensor x = randn({3, 4}, f64, device);
  // Away from the kinks, at a distance of 0 and of delta.
  const Tensor y = x + where(rand({3, 4}, f64, device) > 0.5, 0.4, -0.9).to(f64);
  const Tensor p = softmax(0.5 * randn({3, 4}, f64, device), 1);
  p.set_requires_grad();
  x.set_requires_grad();
  const Tensor targets = classes_of({1, -100, 3}, device), weights = rand({4}, f64, device) + 0.5;
  y.set_requires_grad();
  for (const LossReduction reduction : reductions) {
    const auto check = [&](const std::vector<Tensor>& in, const DifferentiableFunction& f) {
      CHECK(gradcheck(f, in));
    };
    check({x, y}, [&](auto& in) { return l1_loss(in[0], in[1], reduction); });
    check({x, y}, [&](auto& in) { return huber_loss(in[0], in[1], 0.7, reduction); });
    check({x, p}, [&](auto& in) { return bce_with_logits(in[0], in[1], reduction); });
    check({x, p}, [&](auto& in) { return kl_div(in[0], in[1], reduction); });
    check({x}, [&](auto& in) {
      return nll_loss(in[0], targets, {.weights = weights, .reduction = reduction});
    });
    check({x}, [&](auto& in) {
      return cross_entropy(in[0], targets,
                           {.label_smoothing = 0.1, .reduction = reduction, .weights = weights});
    });
    check({x, p}, [&](auto& in) { return cross_entropy(in[0], in[1], {.reduction = reduction}); });
  }
}

TEST_CASE("losses: say what does not fit") {
  const Tensor x = ones({2, 3});
  expect_error([&] { l1_loss(x, ones({3})); }, "l1_loss", "y has shape (3,)");
  expect_error([&] { huber_loss(x, x, 0); }, "huber_loss", "delta is 0");
  expect_error([&] { nll_loss(x, arange(3)); }, "nll_loss", "needs (2,)");
  expect_error([&] { nll_loss(x, arange(2), {.weights = ones({2})}); }, "nll_loss", "3 classes");
  expect_error([&] { cross_entropy(x, arange(2), {.weights = ones({2})}); }, "cross_entropy",
               "3 classes");
  expect_error([&] { cross_entropy(x, ones({2, 4})); }, "cross_entropy", "(2, 4)");
  expect_error(
      [&] {
        linear_cross_entropy(x, ones({4, 3}), arange(2), {.weights = ones({4})});
      },
      "linear_cross_entropy", "options.weights");
}
