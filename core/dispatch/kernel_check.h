#pragma once
// Calls that the reference runs, or repeats beside the fast kernel. Internal to the library.
#include <functional>
#include <memory>
#include <vector>

#include "quipu/core/dispatch/call.h"
#include "quipu/core/kernel_modes.h"

namespace quipu::detail {

class AnyKernel;

extern constinit thread_local KernelMode kernel_mode;
/// The mode of this thread, from the environment where nothing else was said.
KernelMode resolved_kernel_mode();

/// For the reference: the terms that each entry of a result was summed from, in absolute numbers,
/// where they may be larger than the entry and a kernel rounds them on the way. Kept while a check
/// asks for it.
void note_term_sizes(const View& result, std::vector<double> sizes);

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
