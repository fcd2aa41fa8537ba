#pragma once
// Device memory for the caching allocator.
#include <memory>

#include "quipu/core/memory/allocator.h"

namespace quipu::detail::on_cuda {

/// Throws if the device is not there. The first call for a device initialises the driver.
std::unique_ptr<MemorySource> make_memory_source(int index);

/// Memory for what a graph repeats: segments are blocks of the device's allocator, which the ledger
/// enters as those of StepGraph, and their order is that of the captured stream.
std::unique_ptr<MemorySource> make_graph_memory(int index);

}  // namespace quipu::detail::on_cuda
