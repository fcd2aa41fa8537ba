// Whole training steps: what meta predicts is what the CPU measures, to the byte; and nothing
// grows.
#include <doctest/doctest.h>

#include <functional>

#include "quipu/quipu.h"
#include "support/support.h"

using namespace quipu;

namespace {

/// A model small enough for a test: its parameters, and a loss that exercises some operators.
struct Model {
  const char* name;
  std::function<std::vector<Tensor>(Device)> parameters;
  std::function<Tensor(const std::vector<Tensor>&, Device)> loss;
};

Tensor parameter(const Shape& shape, Device device, DType dtype = f32) {
  Tensor p = randn(shape, dtype, device);
  p.mul_(0.1);
  return p.set_requires_grad();
}

Tensor softmax(const Tensor& x) {
  return exp(x - logsumexp(x, -1, true));
}

Tensor self_attention(const Tensor& x, const Tensor& qkv, const Tensor& out) {
  const std::int64_t b = x.size(0), n = x.size(1), d = x.size(2), h = 2;
  const Tensor heads = matmul(x, qkv).reshape({b, n, 3, h, d / h}).permute({2, 0, 3, 1, 4});
  const Tensor p = softmax(matmul(heads[0], heads[1].t()) * 0.25);
  return matmul(matmul(p, heads[2]).transpose(1, 2).reshape({b, n, d}), out);
}

std::vector<Model> models() {
  return {
      {"perceptron",
       [](Device d) {
         return std::vector{parameter({20, 64}, d), parameter({64}, d), parameter({64, 5}, d)};
       },
       [](const std::vector<Tensor>& p, Device d) {
         const Tensor x = randn({33, 20}, f32, d), y = randint(0, 5, {33, 1}, i64, d);
         const Tensor z = matmul(tanh(matmul(x, p[0]) + p[1]), p[2]);
         return mean(logsumexp(z, -1, true) - gather(z, 1, y));
       }},
      {"bf16 perceptron with f32 gradients",
       [](Device d) {
         std::vector p{parameter({16, 24}, d, bf16), parameter({24, 3}, d, bf16)};
         for (const Tensor& w : p) w.set_grad_dtype(f32);
         return p;
       },
       [](const std::vector<Tensor>& p, Device d) {
         const Tensor x = randn({7, 16}, bf16, d);
         return mean(pow(matmul(maximum(matmul(x, p[0]), 0.0), p[1]), 2.0).to(f32));
       }},
      {"attention with dropout",
       [](Device d) {
         return std::vector{parameter({100, 16}, d), parameter({16, 48}, d),
                            parameter({16, 16}, d)};
       },
       [](const std::vector<Tensor>& p, Device d) {
         const Tensor tokens = randint(0, 100, {3 * 11}, i64, d);
         const Tensor x = index_select(p[0], 0, tokens).reshape({3, 11, 16});
         return var(dropout(self_attention(x, p[1], p[2]), 0.1) + x);
       }},
      {"attention under recompute",
       [](Device d) {
         return std::vector{parameter({16, 48}, d), parameter({16, 16}, d)};
       },
       [](const std::vector<Tensor>& p, Device d) {
         Tensor x = randn({2, 9, 16}, f32, d);
         for (int layer = 0; layer < 3; ++layer) {
           const MemoryScope scope("layer" + std::to_string(layer));
           x = recompute(
               [&](const std::vector<Tensor>& in) {
                 return self_attention(in[0], p[0], p[1]) + in[0];
               },
               {x});
         }
         return sum(x * x);
       }},
      {"views, joins and sums",
       [](Device d) {
         return std::vector{parameter({6, 10}, d, f64), parameter({10}, d, f64)};
       },
       [](const std::vector<Tensor>& p, Device) {
         const Tensor a = cat({p[0](all, slice(0, 4)), p[0](all, slice(2, 10, 2))}, 1);
         const Tensor b = cumsum(stack({a, a * p[1](slice(0, 8))}, 0), 2);
         return sum(clamp(b.t(), -1.0, 1.0)) + max(p[0]) +
                mean(where(p[0] > 0.0, p[0], p[0] * 0.1));
       }},
  };
}

/// Three steps with momentum; the peak of each.
std::vector<std::size_t> train(const Model& model, Device device) {
  manual_seed(1);
  const std::vector<Tensor> parameters = model.parameters(device);
  std::vector<Tensor> momentum;
  for (const Tensor& p : parameters)
    momentum.push_back(zeros(p.shape(), f32, device, Category::optimizer));
  std::vector<std::size_t> peaks;
  for (int step = 0; step < 3; ++step) {
    const PeakMemory peak(device);
    {
      Tape tape;
      tape.backward(model.loss(parameters, device));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      momentum[i].mul_(0.9).add_(parameters[i].grad());
      parameters[i].add_(momentum[i].to(parameters[i].dtype()), -0.01);
      if (step == 1) parameters[i].zero_grad();
    }
    peaks.push_back(peak.bytes());
    CHECK(peak.report().bytes == peak.bytes());
  }
  return peaks;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice,
                  "models: a training step on meta has the peak of the device, to the byte") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const std::vector<std::size_t> measured = train(model, device),
                                   predicted = train(model, meta_of(device));
    CHECK(measured == predicted);
    CHECK(measured[0] > 0);
  }
}

TEST_CASE_FIXTURE(EachDevice,
                  "models: same bits run after run, cold and warm, for one thread and for two") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3}) {
      const int before = set_num_threads(threads);
      if (threads == 2) release_cached();
      manual_seed(5);
      const std::vector<Tensor> p = model.parameters(device);
      Tape tape;
      tape.backward(model.loss(p, device));
      for (std::size_t i = 0; i < p.size(); ++i) {
        if (threads == 1) first.push_back(p[i].grad());
        CHECK(same_bits(first[i], p[i].grad()));
      }
      set_num_threads(before);
    }
  }
}

TEST_CASE("models: a million small operators without a tape hold constant memory") {
  const Tensor w = parameter({8}, cpu);
  Tensor x = ones({8});
  x = x * w + 1.0;
  const MemoryStats before = memory_stats();
  PeakMemory peak;
  for (int i = 0; i < 500'000; ++i) x = x * w + 1.0;
  const MemoryStats after = memory_stats();
  CHECK(after.current == before.current);
  CHECK(after.reserved == before.reserved);
  CHECK(peak.bytes_above() <= 2 * 512);
}
