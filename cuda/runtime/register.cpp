#include "register.h"

#include "copy.h"
#include "devices.h"
#include "memory.h"
#include "pinned.h"
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
  set_pinned_source(&pinned_memory());
  provide_devices(DeviceKind::cuda, {.count = device_count,
                                     .synchronize = synchronize,
                                     .open_stream = open_stream,
                                     .close_stream = close_stream,
                                     .use_stream = use_stream,
                                     .order_streams = order_streams,
                                     .adopt_stream = adopt_stream,
                                     .give_back_stream = give_back_stream,
                                     .copy_between_devices = copy_between_devices,
                                     .upload_async = upload_async,
                                     .is_pinned = is_pinned,
                                     .emulated = emulated});
  register_timing();
  upload_kernel.provide(Variant::cuda, upload);
  download_kernel.provide(Variant::cuda, download);
}

}  // namespace quipu::detail::on_cuda
