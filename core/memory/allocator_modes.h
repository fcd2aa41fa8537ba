#pragma once
// Process-wide switches of the allocators; set by calls or environment variables.
// Internal to core/.
namespace quipu::detail {

bool caching_mode();
bool poison_mode();

}  // namespace quipu::detail
