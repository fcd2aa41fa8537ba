#pragma once
// Indices that kernels find out of range. A kernel does not use such an index; it writes a note to
// device memory, and the next synchronisation throws the error that the CPU would throw, with the
// name of the operator. Every host thread has its own note and throws its own errors; those of a
// thread that has ended are thrown by the next one that synchronises.
#include <cstdint>
#include <memory>
#include <string>

#include "quipu/core/dispatch/view.h"
#include "streams.h"

namespace quipu::detail::on_cuda {

/// The first bad index that kernels of one host thread met since its last synchronisation, in the
/// device's memory.
struct IndexNote {
  static constexpr int position_bits = 44;
  /// Highest for the earliest check, then for the lowest position; never 0, which means no note.
  static constexpr unsigned long long priority_of(int check, long long position) {
    return ~(static_cast<unsigned long long>(check) << position_bits |
             static_cast<unsigned long long>(position));
  }
  unsigned busy;  // a thread writes
  unsigned long long priority, value;

  int check() const { return static_cast<int>(~priority >> position_bits); }
  std::int64_t position() const {
    return static_cast<std::int64_t>(~priority & ((1ull << position_bits) - 1));
  }
};

/// What a kernel needs to report an index.
struct IndexGuard {
  IndexNote* note;
  int check;
};

/// For a kernel that is about to run on the queue, for the operator that this thread runs: all of
/// `index` must lie in [0, size), the size of dimension `axis` of x.
IndexGuard index_guard(const Queue& queue, const View& index, std::int64_t size, int axis);

/// The message of an operator with words of its own: "name at (1, 2) is 7" and `rest`.
struct IndexWords {
  const char* name;  // a literal
  std::string rest;
  bool shows_value = true;
  bool operator==(const IndexWords&) const = default;
};
IndexGuard index_guard(const Queue& queue, const View& index, IndexWords words);

struct IndexLog;

/// The checks of kernels that a graph repeats: they have a note of their own, and stay.
class RecordedChecks {
 public:
  /// From now until end(), the guards of this thread belong to it.
  explicit RecordedChecks(int device);
  ~RecordedChecks();
  RecordedChecks(const RecordedChecks&) = delete;
  RecordedChecks& operator=(const RecordedChecks&) = delete;
  void end();
  /// The kernels were queued again: this thread's next synchronisation throws what they note.
  void queued(const Queue& queue);

 private:
  int device_;
  std::shared_ptr<IndexLog> log_;
};

/// Throws what kernels of this thread, and of threads that have ended, have noted; waits for them.
/// Called after synchronisations. Costs nothing if no kernel with indices ran since the last time.
void throw_index_errors(int device);

}  // namespace quipu::detail::on_cuda
