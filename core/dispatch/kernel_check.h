#pragma once
// Calls that the reference runs, or repeats beside the fast kernel. Internal to the library.
#include <functional>
#include <memory>

#include "quipu/core/dispatch/call.h"
#include "quipu/core/kernel_modes.h"

namespace quipu::detail {

class AnyKernel;

extern constinit thread_local KernelMode kernel_mode;
/// The mode of this thread, from the environment where nothing else was said.
KernelMode resolved_kernel_mode();

/// Makes the same call of the reference, anew each time.
using RepeatCall = std::function<std::unique_ptr<KernelCall>()>;

/// Runs the reference on operands that lie on a device: copies them to the host, and back what was
/// changed.
void run_on_host(const RepeatCall& repeat);
/// Runs the fast kernel, then the reference on copies of what the operands were before; throws an
/// Error where they are further apart than rounding explains.
void run_checked(const AnyKernel& kernel, const RepeatCall& repeat,
                 const std::function<void()>& run_fast);

}  // namespace quipu::detail
