#pragma once
// Copies between host and device through pinned memory.
#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cuda {

/// Both contiguous and of one type. Returns when the host's values have been read; the device gets
/// them in the order of this thread's stream.
void upload(View on_device, View on_host);
/// Waits for this thread's stream; index errors of earlier kernels are thrown here.
void download(View on_device, View on_host);

}  // namespace quipu::detail::on_cuda
