#include "quipu/nn/train/finite.h"

#include <cmath>

#include "quipu/autograd/tape.h"
#include "quipu/core/dispatch/kernels.h"

namespace quipu::nn {
using namespace quipu::detail;
namespace {

std::string reason(const std::function<void()>& rerun, const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters) {
    if (first_nonfinite(parameter) >= 0) {
      return "parameter " + name +
             " is not finite already: the update before went wrong; try a smaller learning rate, "
             "or clip gradients";
    }
  }
  if (!rerun) return "run the step again under AnomalyMode to see which operator was first";
  try {
    const AnomalyMode anomaly;
    rerun();
  } catch (const Error& error) {
    return std::string("run again, the first to go wrong is: ") + error.what();
  }
  return "run again, every operator was finite; does the step depend on something that changed?";
}

}  // namespace

void check_finite(const Tensor& loss, std::int64_t step, const std::function<void()>& rerun,
                  const NamedTensors& parameters) {
  if (loss.device().is_meta()) return;
  check(loss.numel() == 1, "check_finite: the loss has shape ", loss.shape(),
        ", but one number is wanted");
  const double value = loss.item();
  if (std::isfinite(value)) return;
  fail("step ", step, ": the loss is ", std::isnan(value) ? std::abs(value) : value, "; ",
       reason(rerun, parameters));
}

}  // namespace quipu::nn
