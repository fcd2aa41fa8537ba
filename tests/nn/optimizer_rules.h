#pragma once
// Every optimizer with the options that matter, and what the tests of optimizers share.
#include <quipu/quipu.h>

#include <functional>
#include <limits>
#include <memory>

#include "ops/fused/fused_checks.h"
#include "optimizer_reference.h"
#include "support/support.h"

namespace quipu::testing {

using namespace quipu::nn;

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline const Shape matrix_shape{6, 10};

/// An optimizer with some options, and its reference.
struct Rule {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(const NamedTensors&)> make;
  std::function<void(Reference&, const Numbers&)> reference;
};

template <class Kind, class Options>
Rule rule(const char* name, const Options& o) {
  return {name, [=](const NamedTensors& p) { return std::make_unique<Kind>(p, o); },
          [=](Reference& r, const Numbers& g) {
            if constexpr (std::is_same_v<Options, MuonOptions>) {
              r.step(o, g, 6);
            } else {
              r.step(o, g);
            }
          }};
}

inline std::vector<Rule> rules() {
  return {
      rule<SGD>("sgd", SgdOptions{.lr = 0.05}),
      rule<SGD>("sgd decay", SgdOptions{.lr = 0.05, .weight_decay = 0.1}),
      rule<SGD>("sgd momentum", SgdOptions{.lr = 0.05, .momentum = 0.9}),
      rule<SGD>("sgd momentum decay", SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1}),
      rule<SGD>("sgd nesterov", SgdOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true}),
      rule<SGD>("sgd nesterov decoupled", SgdOptions{.lr = 0.05,
                                                     .momentum = 0.9,
                                                     .weight_decay = 0.1,
                                                     .nesterov = true,
                                                     .decoupled = true}),
      rule<AdamW>("adamw", AdamWOptions{.lr = 0.01}),
      rule<AdamW>("adamw without decay", AdamWOptions{.lr = 0.01, .weight_decay = 0}),
      rule<AdamW>(
          "adamw other",
          AdamWOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.3}),
      rule<Lion>("lion", LionOptions{.lr = 0.01}),
      rule<Lion>("lion decay",
                 LionOptions{.lr = 0.01, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.3}),
      rule<Muon>("muon", MuonOptions{.lr = 0.02}),
      rule<Muon>("muon plain decay",
                 MuonOptions{.lr = 0.02, .momentum = 0.8, .weight_decay = 0.1, .nesterov = false}),
  };
}

inline Tensor parameter_of(const Shape& shape, DType dtype, Device device, std::uint64_t seed = 1) {
  const Tensor p =
      from(numbers(static_cast<std::size_t>(numel(shape)), seed), shape, dtype, device);
  return p.set_requires_grad();
}

/// The slope of a valley at p, and made-up noise.
inline Numbers slope(const Numbers& p, int step) {
  Numbers g(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    g[i] = 0.5 * p[i] + noise(1000 + static_cast<std::uint64_t>(step), i);
  }
  return g;
}

inline void set_gradient(const Tensor& p, const Numbers& g, DType dtype) {
  p.set_grad_dtype(dtype);
  p.set_grad(from(g, p.shape(), dtype, p.device()));
}

inline NamedTensors copies(const NamedTensors& state) {
  NamedTensors result;
  for (const auto& [name, t] : state) result.emplace_back(name, t.clone());
  return result;
}

/// A small network and its loss, for steps that are real ones.
struct Net {
  Net(DType dtype, Device device)
      : in(parameter_of({5, 16}, dtype, device, 1)),
        out(parameter_of({16, 3}, dtype, device, 2)),
        bias(parameter_of({3}, dtype, device, 3)) {}
  NamedTensors parameters() const { return {{"in", in}, {"out", out}, {"bias", bias}}; }
  Tensor loss(int step) const {
    const auto data = [&](const Shape& shape, int seed) {
      return from(numbers(static_cast<std::size_t>(numel(shape)),
                          77 + static_cast<std::uint64_t>(seed)),
                  shape, in.dtype(), cpu)
          .to(in.device());
    };
    const Tensor error =
        matmul(tanh(matmul(data({8, 5}, step), in)), out) + bias - data({8, 3}, step + 1);
    return mean(error.to(f32) * error.to(f32));
  }
  void backward(int step) const {
    Tape tape;
    tape.backward(loss(step));
  }
  Tensor in, out, bias;
};

}  // namespace quipu::testing
