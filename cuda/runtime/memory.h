#pragma once
// Device memory for the caching allocator.
#include <memory>

#include "quipu/core/memory/allocator.h"

namespace quipu::detail::on_cuda {

/// Throws if the device is not there. The first call for a device initialises the driver.
std::unique_ptr<MemorySource> make_memory_source(int index);

}  // namespace quipu::detail::on_cuda
