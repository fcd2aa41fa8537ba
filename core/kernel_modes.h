#pragma once
// Which kernels the operators of a thread run: the fast ones of a device, the plain formulas that
// they are held against, or both side by side.
#include <cstdint>

namespace quipu {
namespace detail {

/// `unset` until the thread's first kernel looks at the environment.
enum class KernelMode : std::uint8_t { unset, fast, reference, checked };

}  // namespace detail

/// While it lives, the operators of this thread run the reference (cpu/reference/): every kernel as
/// its textbook formula, computed in f64 on one thread and rounded once. Slow, and right. What lies
/// on a GPU is copied to the host and back. `QUIPU_KERNELS=reference` does the same for a whole
/// program. The memory that it takes beside tensors is outside the ledger.
class ReferenceKernels {
 public:
  ReferenceKernels();
  ~ReferenceKernels();
  ReferenceKernels(const ReferenceKernels&) = delete;
  ReferenceKernels& operator=(const ReferenceKernels&) = delete;

 private:
  detail::KernelMode outer_;
};

/// While it lives, every kernel that this thread runs, on cpu or cuda, is repeated by the reference
/// on copies of its operands. The first result that is further away than rounding explains is an
/// error that names operator, scope, argument and index, both values and the distance that is
/// allowed. It finds the kernel that a processor, a compiler or a GPU gets wrong in one run of a
/// program. `QUIPU_CHECK_KERNELS=1` does the same for a whole program.
class KernelCheck {
 public:
  KernelCheck();
  ~KernelCheck();
  KernelCheck(const KernelCheck&) = delete;
  KernelCheck& operator=(const KernelCheck&) = delete;

 private:
  detail::KernelMode outer_;
};

}  // namespace quipu
