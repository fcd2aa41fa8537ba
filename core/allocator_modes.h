#pragma once
// Process-wide switches of the allocators; set by calls or environment variables.
namespace quipu {

bool caching_mode();
bool poison_mode();

}  // namespace quipu
