#pragma once
// Dynamic loss scaling for f16 (Micikevicius et al. 2017, arXiv:1710.03740): the loss is multiplied
// so that small gradients do not vanish, and the updates divide by the same number. It halves when
// gradients overflow (that update is skipped) and doubles after a while without overflow, all on
// the device.
//
//   nn::LossScale scale(device);
//   tape.backward(scale(loss));
//   optimizer.step({.loss_scale = &scale});
#include "quipu/core/io/safetensors.h"

namespace quipu::nn {

/// How the scale begins and adapts. It stays between 2^-24 and 2^96.
struct LossScaleOptions {
  double initial = 65536;        // the first scale
  double growth = 2;             // factor, at least 1, when it grows
  double backoff = 0.5;          // factor, in (0, 1], after an overflow
  std::int64_t interval = 2000;  // updates without overflow before it grows
};

/// A number on the device that losses are multiplied by, and which follows the gradients.
class LossScale {
 public:
  /// `device` is that of the parameters.
  explicit LossScale(Device device = {}, const LossScaleOptions& options = {});

  /// The loss times the scale, in f32 (f64 for f64).
  Tensor operator()(const Tensor& loss) const;
  // The factor of losses and that of gradients, 1 / scale: f32 (), on the device.
  const Tensor& scale() const { return scale_; }
  Tensor inverse() const;
  /// After gradients were looked at; `overflow` is bool (). Optimizers call it.
  void update(const Tensor& overflow);

  // For checkpoints: `scale` and `good_updates`. The options are not part of it.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  LossScaleOptions options_;
  Tensor scale_;
  Tensor good_updates_;  // i64 (): since it last changed
};

}  // namespace quipu::nn
