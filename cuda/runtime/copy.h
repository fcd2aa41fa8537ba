#pragma once
// Copies between host and device, and between devices.
#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cuda {

/// Both contiguous and of one type. Returns when the host's values have been read; the device gets
/// them in the order of this thread's stream.
void upload(View on_device, View on_host);
/// The same, but from pinned memory of ours it returns at once: the values are read in the order of
/// the stream, and must stay until then. The memory is given to nobody before.
void upload_async(const View& on_device, const View& on_host);
/// Waits for this thread's stream; index errors of earlier kernels are thrown here.
void download(View on_device, View on_host);
/// Both contiguous and of one type, on two devices. This thread's streams on both are ordered, and
/// the host waits for nothing.
void copy_between_devices(const View& to, const View& from);

}  // namespace quipu::detail::on_cuda
