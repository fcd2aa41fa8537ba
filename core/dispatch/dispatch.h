#pragma once
// The dispatch table: from (kernel, variant) to a plain function. A header `ops/foo_kernels.h`
// declares kernels, one line each; back ends provide them in functions that the generated
// `register_kernels.cpp` calls once. Internal to the library.
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "quipu/core/device.h"
#include "quipu/core/dispatch/call.h"
#include "quipu/core/dispatch/kernel_check.h"
#include "quipu/core/dispatch/view.h"
#include "quipu/core/error.h"
#include "quipu/core/kernel_modes.h"

namespace quipu::detail {

class StepRecorder;
/// The one that this thread records with (core/graph/step_recorder.h), or null.
extern constinit thread_local StepRecorder* step_recorder;
/// It is told of a kernel before that runs.
void note_step_operands(const KernelCall& call);

/// Provides every kernel that was compiled in, but those of cpu/, which a CpuLevel provides; called
/// once, before the first kernel runs.
void register_kernels();

void ensure_kernels_registered();
[[noreturn]] void throw_no_kernel(const char* kernel, DeviceKind kind);

/// The versions of a kernel. The reference is its formula on the host; the others are fast, one for
/// each kind of device (cpu/ has one for each CpuLevel, of which one is provided).
enum class Variant : std::uint8_t { reference, cpu, cuda };
inline constexpr std::size_t variants = 3;
/// The fast one that a kind of device runs.
constexpr Variant fast_variant(DeviceKind kind) {
  return kind == DeviceKind::cpu ? Variant::cpu : Variant::cuda;
}

/// How near the results of all variants are to each other.
enum class Agreement : std::uint8_t {
  rounded,  // as near as rounding lets them be
  typed,    // the same, where the types of the operands decide what is computed
  equal,    // they are equal: nothing is rounded, or one exact number once
  drawn,    // chosen numbers: equal, unless rounding decides between two
};

/// What is known of a kernel whatever its arguments.
class AnyKernel {
 public:
  constexpr AnyKernel(const char* name, const char* arguments, Agreement agreement)
      : name_(name), arguments_(arguments), agreement_(agreement) {}
  const char* name() const { return name_; }
  /// As ArgumentNames reads them.
  const char* arguments() const { return arguments_; }
  Agreement agreement() const { return agreement_; }
  bool provided(Variant variant) const {
    ensure_kernels_registered();
    return (provided_ >> static_cast<unsigned>(variant) & 1u) != 0;
  }

 protected:
  void note_provided(Variant variant);

 private:
  const char* name_;
  const char* arguments_;
  Agreement agreement_;
  unsigned provided_ = 0;
};
/// Every kernel that a variant was provided for.
const std::vector<const AnyKernel*>& all_kernels();

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

/// Not a constant, so that a declaration whose names do not fit its arguments does not compile.
void names_do_not_fit_the_arguments();

template <class Signature>
class Kernel;

/// Called like a function; runs the version of the device that its first view lives on, nothing on
/// meta. Declared with its name and those of its arguments (ArgumentNames).
template <class... Args>
class Kernel<void(Args...)> : public AnyKernel {
 public:
  using Function = void (*)(Args...);
  consteval Kernel(const char* name, const char* arguments,
                   Agreement agreement = Agreement::rounded)
      : AnyKernel(name, arguments, agreement) {
    ArgumentNames names(arguments);
    for (std::size_t i = 0; i < sizeof...(Args); ++i) {
      if (names.next().empty()) names_do_not_fit_the_arguments();
    }
    if (!names.done()) names_do_not_fit_the_arguments();
  }

  void operator()(Args... args) const {
    const View* first = nullptr;
    ((first = first ? first : first_view_of(args)), ...);
    ensure(first != nullptr, name(), " was called without any view");
    if (first->device.is_meta()) return;  // NOLINT(clang-analyzer-core.CallAndMessage): ensured
    const DeviceKind kind = first->device.kind();
    if (kernel_mode != KernelMode::fast) [[unlikely]] {
      if (run_otherwise(kind, args...)) return;
    }
    if (step_recorder) [[unlikely]]
      note_step_operands(KernelCallOf<Args...>(nullptr, arguments(), args...));
    find(kind)(args...);
  }

  void provide(Variant variant, Function f) {
    table_[static_cast<std::size_t>(variant)] = f;
    note_provided(variant);
  }
  Function function(Variant variant) const { return table_[static_cast<std::size_t>(variant)]; }

 private:
  Function find(DeviceKind kind) const {
    ensure_kernels_registered();
    if (Function f = function(fast_variant(kind))) return f;
    throw_no_kernel(name(), kind);
  }
  /// By the reference, or by both; false where the fast one is wanted alone.
  bool run_otherwise(DeviceKind kind, const std::decay_t<Args>&... args) const {
    const KernelMode mode = resolved_kernel_mode();
    if (mode == KernelMode::fast || !provided(Variant::reference)) return false;
    const Function formula = function(Variant::reference);
    const auto repeat = [&]() -> std::unique_ptr<KernelCall> {
      return std::make_unique<KernelCallOf<Args...>>(formula, arguments(), args...);
    };
    if (mode == KernelMode::reference) {
      if (kind != DeviceKind::cpu) return run_on_host(repeat), true;
      return formula(args...), true;
    }
    run_checked(*this, repeat, [&] { find(kind)(args...); });
    return true;
  }
  std::array<Function, variants> table_{};
};

}  // namespace quipu::detail
