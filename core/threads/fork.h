#pragma once
// Locks that are held over a fork(), so that the child, which has one thread alone, finds them free
// and what they guard whole. Internal to core/.
#include <mutex>

namespace quipu::detail {

std::mutex& scopes_mutex();  // of context.cpp; taken under an allocator's lock, too

}  // namespace quipu::detail
