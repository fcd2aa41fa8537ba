#pragma once
// Muon (Jordan et al. 2024): momentum whose steps are made orthogonal by Newton-Schulz iterations,
// for the weight matrices inside a model. Embeddings, output layers, vectors and scalars belong to
// another optimizer, AdamW for example.
#include "quipu/nn/optim/optimizer.h"

namespace quipu::nn {

/// Rates are finite and not negative, momentum is in [0, 1).
struct MuonOptions {
  double lr = 0.02;         // learning rate
  double momentum = 0.95;   // how much of the sum of past gradients stays
  double weight_decay = 0;  // shrinks parameters by lr * weight_decay a step
  bool nesterov = true;     // the step looks ahead along the momentum
  int iterations = 5;       // of Newton-Schulz
};

/// first = momentum first + g; with u = nesterov ? g + momentum first : first, seen as a matrix
/// (rows: its first dimension), p -= lr (weight_decay p + sqrt(max(1, rows / columns)) near(u)).
/// near(u) is u with singular values of about 1 (between 0.7 and 1.2), by matrix products alone.
/// Parameters need two dimensions or more. Remembers momentum.
class Muon : public Optimizer {
 public:
  explicit Muon(const NamedTensors& parameters, const MuonOptions& options = {},
                bool master_weights = true);
  explicit Muon(const ParameterGroups<MuonOptions>& groups, bool master_weights = true);

 protected:
  void update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
              const GradientControl& control) override;

 private:
  std::vector<MuonOptions> options_;
};

}  // namespace quipu::nn
