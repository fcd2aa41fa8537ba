#include "quipu/nn/optim/loss_scale.h"

#include <cmath>

#include "quipu/autograd/knot.h"
#include "quipu/nn/named_state.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

// Beyond these a scale is of no use: one hides that the loss itself is not finite, the other would
// overflow f32.
constexpr double smallest = 0x1p-24, largest = 0x1p96;

void check_options(const LossScaleOptions& o) {
  check(o.initial >= smallest && o.initial <= largest, "LossScale: initial is ", o.initial,
        ", but a number between 2^-24 and 2^96 is wanted");
  check(std::isfinite(o.growth) && o.growth >= 1, "LossScale: growth is ", o.growth,
        ", but a finite number from 1 on is wanted");
  check(o.backoff > 0 && o.backoff <= 1, "LossScale: backoff is ", o.backoff,
        ", but a number in (0, 1] is wanted");
  check(o.interval > 0, "LossScale: interval is ", o.interval, ", but must be positive");
}

const Tensor& entry(const NamedTensors& state, const char* name) {
  for (const auto& [key, tensor] : state) {
    if (key == name) return tensor;
  }
  fail("LossScale: the state has no entry ", name);
}

}  // namespace

LossScale::LossScale(Device device, const LossScaleOptions& options) : options_(options) {
  check_options(options);
  scale_ = empty({}, f32, device, Category::optimizer).fill_(options.initial);
  good_updates_ = zeros({}, i64, device, Category::optimizer);
}

Tensor LossScale::operator()(const Tensor& loss) const {
  return loss.to(compute_type(loss.dtype())) * scale_;
}

Tensor LossScale::inverse() const {
  return 1 / scale_;
}

void LossScale::update(const Tensor& overflow) {
  const NoGrad pause;
  const Tensor good = good_updates_ + 1;
  const Tensor grows = good >= options_.interval;
  const Tensor calm = where(grows, scale_ * options_.growth, scale_);
  scale_.copy_from(clamp(where(overflow, scale_ * options_.backoff, calm), smallest, largest));
  good_updates_.copy_from(where(logical_or(overflow, grows), zeros_like(good), good));
}

NamedTensors LossScale::state() const {
  return {{"scale", scale_}, {"good_updates", good_updates_}};
}

void LossScale::load_state(const NamedTensors& state) {
  const Tensor &scale = entry(state, "scale"), &good = entry(state, "good_updates");
  check_counter("LossScale", "good_updates", good);
  check(scale.numel() == 1, "LossScale: scale of the state has shape ", scale.shape(),
        ", but one number is wanted");
  if (!scale.device().is_meta()) {
    check(scale.item() >= smallest && scale.item() <= largest, "LossScale: scale of the state is ",
          scale.item(), ", but must lie between ", smallest, " and ", largest);
  }
  const NoGrad pause;
  scale_.copy_from(scale);
  good_updates_.copy_from(good);
}

}  // namespace quipu::nn
