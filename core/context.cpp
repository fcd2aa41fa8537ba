#include "quipu/core/context.h"

#include <chrono>
#include <deque>
#include <map>
#include <mutex>

#include "quipu/core/threads/fork.h"

namespace quipu {
using namespace detail;
namespace {

/// All scope paths ever opened. Interned, so that a block remembers its scope as one number.
struct ScopeTable {
  std::mutex mutex;
  std::map<std::pair<ScopeId, std::string>, ScopeId> children;
  std::deque<std::string> paths{""};
};

ScopeTable& scopes() {
  static auto* table = new ScopeTable;  // outlives every thread and every tensor
  return *table;
}

}  // namespace

ThreadContext& detail::thread_context() {
  thread_local ThreadContext context;
  return context;
}

std::int64_t detail::now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

MemoryScope::MemoryScope(std::string_view name) : outer_(thread_context().scope) {
  ScopeTable& table = scopes();
  const std::lock_guard lock(table.mutex);
  const auto [it, fresh] = table.children.try_emplace({outer_, std::string(name)}, 0);
  if (fresh) {
    const std::string& parent = table.paths[outer_];
    table.paths.push_back(parent.empty() ? std::string(name) : parent + "/" + std::string(name));
    it->second = static_cast<ScopeId>(table.paths.size() - 1);
  }
  ThreadContext& context = thread_context();
  context.scope = it->second;
  if (context.tracing) start_ns_ = now_ns();
  if (profiler_listens) begin_range(std::string(name).c_str());
}

MemoryScope::MemoryScope(ScopeId id) : outer_(thread_context().scope) {
  thread_context().scope = id;
  if (profiler_listens) begin_range(scope_path(id).c_str());
}

MemoryScope::~MemoryScope() {
  ThreadContext& context = thread_context();
  if (start_ns_ != 0) note_span(nullptr, context.scope, start_ns_);
  if (profiler_listens) end_range();
  context.scope = outer_;
}

std::string detail::scope_path(ScopeId id) {
  ScopeTable& table = scopes();
  const std::lock_guard lock(table.mutex);
  return table.paths[id];
}

std::mutex& detail::scopes_mutex() {
  return scopes().mutex;
}

}  // namespace quipu
