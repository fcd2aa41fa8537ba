#pragma once
// Launching a kernel of the library.
#include "quipu/cuda/launch.h"
#include "streams.h"

namespace quipu::detail::on_cuda {

/// Queues a kernel; throws where the launch is refused, with what it asked for.
template <class... Parameters>
void run(const Queue& queue, void (*kernel)(Parameters...), dim3 grid, dim3 block,
         std::size_t shared_bytes, std::type_identity_t<Parameters>... arguments) {
  launch(kernel, grid, block, shared_bytes, queue.stream, arguments...);
  check_launch(reinterpret_cast<const void*>(kernel), shared_bytes);
}

}  // namespace quipu::detail::on_cuda
