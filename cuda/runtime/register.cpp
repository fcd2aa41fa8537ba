#include "register.h"

#include "copy.h"
#include "devices.h"
#include "memory.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/streams.h"
#include "streams.h"
#include "timing.h"

namespace quipu::detail::on_cuda {

void register_runtime() {
  set_memory_source(DeviceKind::cuda, make_memory_source);
#ifdef QUIPU_EMULATE
  constexpr bool emulated = true;
#else
  constexpr bool emulated = false;
#endif
  provide_devices(DeviceKind::cuda, {device_count, synchronize, open_stream, close_stream,
                                     use_stream, order_streams, emulated});
  register_timing();
  upload_kernel.provide(Variant::cuda, upload);
  download_kernel.provide(Variant::cuda, download);
}

}  // namespace quipu::detail::on_cuda
