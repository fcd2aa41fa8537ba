#pragma once
// Which devices this machine has, waiting for them, and whose streams they work on.
#include "quipu/core/device.h"

namespace quipu {

/// How many devices of a kind this machine has; 0 for cuda in a build without CUDA, or without a
/// driver. Starts nothing.
int device_count(DeviceKind kind);
/// True for cpu, meta, and the CUDA devices of this machine.
bool is_available(const Device& device);
/// True for CUDA in a build with -DQUIPU_CUDA=EMULATE: every access is checked, and takes its time.
bool is_emulated(const Device& device);
/// The first CUDA device; where there is none, the CPU, which one line on stderr says once.
Device cuda_or_cpu();
/// The level of instructions that this program's CPU kernels run with: the best of those in this
/// build that the processor has, or the one that `QUIPU_CPU` names. v2: SSE4.2; v3: AVX2 and fused
/// multiply-add; v4: AVX-512; v4_bf16: and products of bf16 pairs. Other builds have one level
/// alone, native (`QUIPU_NATIVE=ON`) or baseline. A level that the build or the processor lacks is
/// an Error that lists what there is.
const char* cpu_level();
/// Waits until everything that this thread gave a device is done. Errors that could not be known
/// earlier, such as an index out of range, are thrown here, or where values are read before. They
/// are thrown in the thread that called the operator, or, when that has ended, in the next one: a
/// thread that hands results on to another, and lives, synchronises first.
void synchronize(const Device& device);

/// While this lives, the calling thread's work on a CUDA device is queued on a stream of the
/// program's own, such as that of another library. It comes after what the thread gave the device
/// before, and what the thread gives it later comes after it; so tensors can be used on both sides.
/// Those that other threads use meanwhile must be ordered by whoever does. The stream may be
/// destroyed as soon as this is gone. On other devices it does nothing.
///
///   const OnStream on(x.device(), stream);
class OnStream {
 public:
  /// `stream` is a cudaStream_t of that device; null is CUDA's default stream.
  OnStream(const Device& device, void* stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  Device device_;
  int number_ = 0, outer_ = 0;
};

}  // namespace quipu
