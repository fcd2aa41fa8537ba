#pragma once
// What an operator asks a back end before it allocates: how the back end cuts its work, and how
// much workspace that takes. Back ends answer in plain host code that every build has, so that meta
// knows the memory of a device that is not there. Internal.
#include <array>

#include "quipu/core/device.h"
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/error.h"

namespace quipu::detail {

template <class Signature>
class Query;

/// Called like a function, with the kind of device that is asked (of a meta device: the kind that
/// it imitates).
template <class Answer, class... Args>
class Query<Answer(Args...)> {
 public:
  using Function = Answer (*)(Args...);
  constexpr explicit Query(const char* name) : name_(name) {}

  Answer operator()(DeviceKind kind, Args... args) const {
    ensure_kernels_registered();
    const Function f = table_[static_cast<std::size_t>(kind)];
    ensure(f != nullptr, name_, " has no answer for ", name_of(kind));
    return f(args...);  // NOLINT(clang-analyzer-core.CallAndMessage): ensured
  }
  void provide(DeviceKind kind, Function f) { table_[static_cast<std::size_t>(kind)] = f; }

 private:
  const char* name_;
  std::array<Function, 2> table_{};
};

}  // namespace quipu::detail
