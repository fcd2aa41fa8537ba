// Softmax of numbers that are large beside their differences: a shift changes nothing but the
// log-sum-exp itself, so results keep all their digits, forward and backward.
#include <optional>

#include "ops/loss_checks.h"
#include "quipu/ops/attention.h"
#include "quipu/ops/loss/cross_entropy.h"
#include "quipu/ops/loss/linear_cross_entropy.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/tpa_decode/tpa_decode.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

/// Large numbers whose neighbours are no further apart than 1.
std::vector<double> bases(DType dtype) {
  if (dtype == f64) return {0, 0x1p50, -0x1p50, 0x1p52};
  return {0, 1e4, 1e7, -1e7, 0x1p23};
}

/// (rows, n): base plus 0, 1, 2 or 3.
Tensor shifted(const Shape& shape, double base, DType dtype, Device device) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    values.push_back(base + static_cast<double>(i * i % 11 % 4));
  }
  return from(values, shape, dtype, device);
}

/// As with the base 0 in f64, within some units in the last place of the largest entry.
void check_shift(const Function& f, const Inputs& large, const Inputs& small, double units,
                 const std::vector<std::size_t>& results) {
  const auto got = outcome(f, large), exact = outcome(f, as(f64, small));
  for (const std::size_t k : results) {
    CAPTURE(k);
    const double off = distance(got[k], exact[k]);
    CHECK_MESSAGE(off <= units * epsilon_of(got[k].dtype()), off);
  }
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "large scores: the loss and the gradient of cross_entropy") {
  const Tensor z = from({1e7, 1e7 + 1, 1e7 + 2, 1e7 + 3}, {1, 4}, f32, device).set_requires_grad();
  std::optional<Tape> tape(std::in_place);
  const Tensor loss = cross_entropy(z, zeros({1}, i64, device));
  tape->backward(loss);
  tape.reset();
  const std::vector<double> wanted{-0.967941396, 0.0871443187, 0.236882818, 0.643914260};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(z.grad().to_vector()[i] == doctest::Approx(wanted[i]).epsilon(1e-6));
  }
  CHECK(loss.item() == doctest::Approx(3.4401896985611953).epsilon(1e-6));

  for (const DType dtype : {f64, f32}) {
    for (const double base : bases(dtype)) {
      for (const Shape& shape : {Shape{4, 4}, Shape{3, 37}, Shape{2, 5003}}) {
        CAPTURE(base);
        CAPTURE(shape);
        const auto targets = from({3, 0, 1, 2}, {4}, i64, device).slice(0, 0, shape[0]);
        for (const CrossEntropyOptions& options :
             {CrossEntropyOptions{.reduction = LossReduction::none},
              CrossEntropyOptions{.label_smoothing = 0.2}}) {
          const Inputs large{shifted(shape, base, dtype, device), targets},
              small{shifted(shape, 0, dtype, device), targets};
          const auto fused = [&](const Inputs& in) { return cross_entropy(in[0], in[1], options); };
          const auto composed = [&](const Inputs& in) {
            return cross_entropy_composed(in[0], in[1], options);
          };
          // With smoothing the loss has the mean of the logits, whose sum is rounded.
          const bool has_mean = options.label_smoothing > 0 && base != 0;
          const std::vector<std::size_t> results =
              has_mean ? std::vector<std::size_t>{1} : std::vector<std::size_t>{0, 1};
          check_shift(fused, large, small, 8, results);
          check_shift(composed, large, small, 32, results);
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "large scores: linear_cross_entropy") {
  for (const DType dtype : {f64, f32}) {
    for (const double base : bases(dtype)) {
      CAPTURE(base);
      const Tensor x = ones({5, 2}, dtype, device), targets = from({0, 1, 2, 3, 8}, i64, device);
      const auto inputs = [&](double first) {  // the logits are first plus 0, 1, 2 or 3
        const Tensor weight = full({9, 2}, first, dtype, device);
        weight.slice(1, 1).copy_from(shifted({9, 1}, 0, dtype, device));
        return Inputs{x, weight, targets};
      };
      const auto f = [](const Inputs& in) { return linear_cross_entropy(in[0], in[1], in[2]); };
      const auto composed = [](const Inputs& in) {
        return linear_cross_entropy_composed(in[0], in[1], in[2]);
      };
      // The gradient of x has the weights as factors: only that of the weights is the same.
      check_shift(f, inputs(base), inputs(0), 16, {0, 2});
      check_shift(composed, inputs(base), inputs(0), 16, {0, 2});
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "large scores: logsumexp") {
  for (const DType dtype : {f64, f32}) {
    for (const double base : bases(dtype)) {
      CAPTURE(base);
      for (const Axes& axes : {Axes{1}, Axes{0}, Axes{}}) {
        const auto f = [&](const Inputs& in) { return logsumexp(in[0], axes); };
        check_shift(f, {shifted({7, 37}, base, dtype, device)},
                    {shifted({7, 37}, 0, dtype, device)}, 32, {1});
      }
    }
  }
  const Tensor z = shifted({300}, 0x1p23, bf16, device);  // all are 2^23
  CHECK(distance(outcome([](const Inputs& in) { return logsumexp(in[0]); }, {z})[1],
                 outcome([](const Inputs& in) { return logsumexp(in[0]); }, {z.to(f64)})[1]) <=
        epsilon_of(bf16));
}

TEST_CASE_FIXTURE(EachDevice, "large scores: attention") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const double base : dtype == f16 ? std::vector<double>{0x1p15} : bases(dtype)) {
      CAPTURE(dtype);
      CAPTURE(base);
      if (is_reduced(dtype) && scalar_tensor(base, dtype).item() != base) continue;
      for (const bool causal : {false, true}) {
        // Scores are the first feature of a key, plus 0, 1, 2 or 3.
        const std::int64_t n = 70, m = 75, d = 16;
        const auto inputs = [&](double first) {
          const Tensor q = zeros({1, 1, n, d}, dtype, device),
                       k = zeros({1, 1, m, d}, dtype, device);
          q.slice(3, 0, 1).fill_(dtype == f16 ? 128 : 1);  // f16 itself ends at 65504
          q.slice(3, 1, 2).fill_(1);
          k.slice(3, 0, 1).fill_(first);
          k.slice(3, 1, 2).copy_from(shifted({1, 1, m, 1}, 0, dtype, device));
          return Inputs{q, k, normals({1, 1, m, d}, dtype, device)};
        };
        const auto f = [&](const Inputs& in) {
          return attention(in[0], in[1], in[2], {.causal = causal, .scale = 1});
        };
        // d_q has the keys as factors; the output and the other gradients are the same.
        check_shift(f, inputs(base), inputs(0), is_reduced(dtype) ? 4 : 128, {0, 3});
        // The first feature of q is a factor of d_k, and it is 1.
        if (dtype != f16) {
          check_shift(f, inputs(base), inputs(0), is_reduced(dtype) ? 8 : 128, {2});
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "large scores: a scale that rounds is rounded alike in backward") {
  // Scores of 1e7 times odd numbers: backward must find the weights of forward again.
  for (const DType dtype : {f32, bf16}) {
    const std::int64_t n = 66, m = 70, d = 16;
    const Tensor q = ones({1, 1, n, d}, dtype, device), k = zeros({1, 1, m, d}, dtype, device);
    k.slice(3, 0, 1).fill_(0x1p25);
    k.slice(3, 1, 2).copy_from(shifted({1, 1, m, 1}, 0, dtype, device));
    const Tensor v = ones({1, 1, m, d}, dtype, device).set_requires_grad();
    Tape tape;
    const Tensor o = attention(q.set_requires_grad(), k, v, {.scale = 0.3});
    tape.backward(o, {ones(o.shape(), dtype, device), false});
    // Weights of a query sum to 1, so that the gradients of v sum to the number of queries.
    const double total = sum(v.grad().slice(3, 0, 1).to(f64)).item();
    CHECK(total == doctest::Approx(static_cast<double>(n)).epsilon(16 * epsilon_of(dtype)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "large scores: tpa_decode, in one block and in several") {
  for (const DType dtype : {f64, f32, bf16}) {
    for (const double base : bases(dtype)) {
      CAPTURE(dtype);
      CAPTURE(base);
      if (is_reduced(dtype) && scalar_tensor(base, dtype).item() != base) continue;
      for (const std::int64_t m : {40, 600}) {
        const std::int64_t h = 8, d = 16;
        const auto inputs = [&](double first) {
          const Tensor bq = zeros({1, 1, 8, d}, dtype, device),
                       bk = zeros({1, m, d}, dtype, device);
          bq.slice(2, 0, 1).slice(3, 0, 2).fill_(1);
          bk.slice(2, 0, 1).fill_(first);
          bk.slice(2, 1, 2).copy_from(shifted({1, m, 1}, 0, dtype, device));
          return Inputs{ones({1, 1, h, 8}, dtype, device),
                        ones({1, m, h}, dtype, device),
                        normals({1, m, h}, dtype, device),
                        bq,
                        bk,
                        normals({1, m, d}, dtype, device)};
        };
        const auto f = [](const Inputs& in) {
          return tpa_decode(in[0], in[1], in[2], in[3], in[4], in[5], {.scale = 1, .scale_q = 1});
        };
        // The output and the gradients of av, bk and bv do not have the keys as factors.
        check_shift(f, inputs(base), inputs(0), is_reduced(dtype) ? 8 : 256, {0, 3, 5, 6});
      }
    }
  }
}
