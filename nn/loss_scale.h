#pragma once
// Dynamic loss scaling for f16: the loss is multiplied so that small gradients do not vanish, and
// the updates divide by the same number. It halves when gradients overflow (that update is skipped)
// and doubles after a while without overflow, all on the device.
//
//   nn::LossScale scale(device);
//   tape.backward(scale(loss));
//   optimizer.step({.loss_scale = &scale});
#include "quipu/core/safetensors.h"

namespace quipu::nn {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  std::int64_t interval = 2000;  // updates without overflow before it grows
};

class LossScale {
 public:
  explicit LossScale(Device device = {}, const LossScaleOptions& options = {});

  /// The loss times the scale, in f32 (f64 for f64).
  Tensor operator()(const Tensor& loss) const;
  const Tensor& scale() const { return scale_; }  // f32 (), on the device
  Tensor inverse() const;
  /// After gradients were looked at; `overflow` is bool (). Optimizers call it.
  void update(const Tensor& overflow);

  NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  LossScaleOptions options_;
  Tensor scale_;
  Tensor good_updates_;  // i64 (): since it last changed
};

}  // namespace quipu::nn
