#pragma once
// Dry runs: how much memory a training step takes, without computing it.
//
//   const MemoryPlan p = plan([&](Device device) {
//     Model model(device);
//     nn::AdamW optimizer(model.parameters());
//     for (int i = 0; i < 2; ++i) step(model, optimizer, zeros({batch, tokens}, i64, device));
//   }, std::size_t{80} << 30);
//   if (!p.fits) std::cerr << p;
#include <functional>
#include <iosfwd>

#include "quipu/core/report/memory_report.h"

namespace quipu {

/// What `plan` imitates and reports; by default cuda without a timeline.
struct PlanOptions {
  Device device = Device(DeviceKind::cuda, 0, true);  // must be a meta device
  bool timeline = false;                              // the report gets one
};

/// What a dry run found.
struct MemoryPlan {
  std::size_t peak = 0;      // live bytes
  std::size_t capacity = 0;  // of the device that is planned for
  bool fits = false;         // the peak is within the capacity
  MemoryReport report;       // at the peak, with the largest knots of the largest tape walked

  /// Whether it fits, who holds what, and, if it does not fit, what would help.
  std::string text() const;
};
/// Prints the text.
std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan);

/// Runs step(device) on a meta device, where operators check their arguments and enter their memory
/// but compute nothing. What is live there already counts. The first step of a training makes
/// gradients and the optimizer's state; let it run two to see the peak of all later ones.
MemoryPlan plan(const std::function<void(Device device)>& step, std::size_t capacity,
                const PlanOptions& options = {});

}  // namespace quipu
