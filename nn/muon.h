#pragma once
// Momentum whose steps are made orthogonal: for the weight matrices inside a model. Embeddings,
// output layers, vectors and scalars belong to another optimizer, AdamW for example.
#include "quipu/nn/optimizer.h"

namespace quipu::nn {

struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  double weight_decay = 0;
  bool nesterov = true;
  int iterations = 5;  // of Newton and Schulz
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
