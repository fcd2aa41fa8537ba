#pragma once
// What this thread is doing: which operator runs, under which user scope. The ledger, errors and
// knots read it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quipu {
namespace detail {

/// An interned path of scope names ("model/layer3"); 0 is the empty one.
using ScopeId = std::uint32_t;

struct ThreadContext {
  const char* op = nullptr;  // innermost running operator
  ScopeId scope = 0;
  bool timing = false;             // a tape wants to know how long operators take
  bool tracing = false;            // a recording wants to know which operators run
  bool device_timing = false;      // devices take the time of operators
  std::int32_t device_start = -1;  // where that of the running operator began
  std::int64_t op_start_ns = 0;
  std::size_t workspace_bytes = 0;  // asked for by the running operator
  std::size_t saved_bytes = 0;      // saved for backward by the running operator
};
ThreadContext& thread_context();

std::int64_t now_ns();

/// Something ran from `start_ns` until now; for the recording of this thread, if there is one.
void note_span(const char* op, ScopeId scope, std::int64_t start_ns) noexcept;
/// The running operator ends inside `outer`; see core/report/device_timing.h.
void end_device_span(ThreadContext& outer) noexcept;

/// Whether a profiler is attached that shows ranges of NVTX, which operators and scopes then are.
extern const bool profiler_listens;
void begin_range(const char* name) noexcept;
void end_range() noexcept;

/// Opened by every public operator: names it in the ledger, in errors and on the tape. `name` must
/// be a literal.
class OpScope {
 public:
  explicit OpScope(const char* name) : context_(thread_context()), outer_(context_) {
    context_.op = name;
    context_.workspace_bytes = 0;
    context_.saved_bytes = 0;
    context_.device_start = -1;
    if (context_.timing || context_.tracing) context_.op_start_ns = now_ns();
    if (profiler_listens) [[unlikely]]
      begin_range(name);
  }
  ~OpScope() {
    if (context_.tracing) [[unlikely]]
      note_span(context_.op, context_.scope, context_.op_start_ns);
    if (profiler_listens) [[unlikely]]
      end_range();
    if (context_.device_start >= 0) [[unlikely]]
      end_device_span(outer_);
    context_ = outer_;
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  ThreadContext& context_;
  ThreadContext outer_;
};

/// "model/layer3", or "" for no scope.
std::string scope_path(ScopeId id);

}  // namespace detail

/// A name of the user's for what happens while it lives: `MemoryScope scope("layer3");`. Scopes
/// nest.
class MemoryScope {
 public:
  explicit MemoryScope(std::string_view name);
  explicit MemoryScope(detail::ScopeId id);  // enters a scope that was open before
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  detail::ScopeId outer_;
  std::int64_t start_ns_ = 0;  // 0: not recorded
};

}  // namespace quipu
