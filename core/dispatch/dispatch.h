#pragma once
// The dispatch table: from (kernel, device kind) to a plain function. A header `ops/foo_kernels.h`
// declares kernels, one line each; back ends provide them in functions that the generated
// `register_kernels.cpp` calls once. Internal to the library.
#include <array>
#include <string>

#include "quipu/core/device.h"
#include "quipu/core/dispatch/view.h"
#include "quipu/core/error.h"

namespace quipu::detail {

/// Provides every kernel that was compiled in; called once, before the first kernel runs.
void register_kernels();

void ensure_kernels_registered();
[[noreturn]] void throw_no_kernel(const char* kernel, DeviceKind kind);

inline const View* first_view_of(const View& v) {
  return v.defined ? &v : nullptr;
}
inline const View* first_view_of(const Grad& g) {
  return g.view.defined ? &g.view : nullptr;
}
template <class T>
const View* first_view_of(const T& t) {
  if constexpr (requires { t.first_view(); }) return t.first_view();
  return nullptr;
}

template <class Signature>
class Kernel;

/// Called like a function; runs the version of the device that its first view lives on, nothing on
/// meta.
template <class... Args>
class Kernel<void(Args...)> {
 public:
  using Function = void (*)(Args...);
  constexpr explicit Kernel(const char* name) : name_(name) {}

  void operator()(Args... args) const {
    const View* first = nullptr;
    ((first = first ? first : first_view_of(args)), ...);
    ensure(first != nullptr, name_, " was called without any view");
    if (first->device.is_meta()) return;
    find(first->device.kind())(args...);
  }

  void provide(DeviceKind kind, Function f) { table_[static_cast<std::size_t>(kind)] = f; }
  bool provided(DeviceKind kind) const {
    ensure_kernels_registered();
    return table_[static_cast<std::size_t>(kind)] != nullptr;
  }
  const char* name() const { return name_; }

 private:
  Function find(DeviceKind kind) const {
    ensure_kernels_registered();
    if (Function f = table_[static_cast<std::size_t>(kind)]) return f;
    throw_no_kernel(name_, kind);
  }
  const char* name_;
  std::array<Function, 2> table_{};
};

}  // namespace quipu::detail
