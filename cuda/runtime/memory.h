#pragma once
// Device memory for the caching allocator.
#include <memory>

#include "quipu/core/allocator.h"

namespace quipu::on_cuda {

/// Throws if the device is not there. The first of it starts the driver.
std::unique_ptr<MemorySource> make_memory_source(int index);

}  // namespace quipu::on_cuda
