#pragma once
// What a back end provides for optimizers. Kernels run over lists: the elements of all items are
// counted through, in order, and item i begins at position `begin`. No item is empty.
// Internal to ops/ and the back ends.
#include <string>
#include <vector>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/ops/optimizer_updates.h"

namespace quipu::detail {

/// The views of a ParameterUpdate; what was left out is not defined.
struct UpdateItem {
  View parameter, gradient, first, second, master, step;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};
struct UpdateList {
  std::vector<UpdateItem> items;
  std::int64_t numel = 0;  // of all items
  View scale, skip;
  View lr;               // f64 (): in the place of the options',
  double lr_factor = 1;  // times this

  /// For kernels on the host: the options with the learning rate that counts.
  template <class Options>
  Options with_rate(Options options) const {
    if (lr.defined) options.lr = lr_factor * *lr.as<const double>();
    return options;
  }
  const View* first_view() const { return &items.front().parameter; }
  template <class F>
  void each_view(F f) {
    for (UpdateItem& item : items) {
      const std::string number = " " + std::to_string(&item - items.data());
      f("parameter" + number, item.parameter, Role::value);
      f("gradient" + number, item.gradient, Role::value);
      f("first moment" + number, item.first, Role::value);
      f("second moment" + number, item.second, Role::value);
      f("master" + number, item.master, Role::value);
      f("step" + number, item.step, Role::value);
    }
    f("scale", scale, Role::value), f("skip", skip, Role::value), f("lr", lr, Role::value);
  }
};

/// What ops/optimizer_updates.h says. A step that is defined is counted up first.
inline constinit Kernel<void(const UpdateList&, const SgdOptions&)> sgd_kernel{"sgd",
                                                                               "list options"};
inline constinit Kernel<void(const UpdateList&, const AdamWOptions&)> adamw_kernel{"adamw",
                                                                                   "list options"};
inline constinit Kernel<void(const UpdateList&, const LionOptions&)> lion_kernel{"lion",
                                                                                 "list options"};

struct NormItem {
  View x;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};
struct NormList {
  std::vector<NormItem> items;
  std::int64_t numel = 0;
  const View* first_view() const { return &items.front().x; }
  template <class F>
  void each_view(F f) {
    for (NormItem& item : items) {
      f("x" + std::to_string(&item - items.data()), item.x, Role::value);
    }
  }
};

/// Into how many partial sums the norm of `numel` elements is cut.
inline constexpr std::int64_t norm_chunk = 32768;
inline std::int64_t global_norm_parts(std::int64_t numel) {
  return (numel + norm_chunk - 1) / norm_chunk;
}
/// norm () = sqrt of the sum of squares. `parts` is f64 (global_norm_parts).
inline constinit Kernel<void(const NormList&, View parts, View norm)> global_norm_kernel{
    "global_norm", "list parts* norm"};

}  // namespace quipu::detail
