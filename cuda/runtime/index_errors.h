#pragma once
// Indices that kernels find out of range. A kernel reads nothing there; it leaves a note, and the
// next synchronisation throws it in the words that the CPU uses, with the name of the operator.
#include <cstdint>
#include <string>

#include "quipu/core/view.h"
#include "streams.h"

namespace quipu::on_cuda {

/// The first bad index since the last synchronisation, in the device's memory.
struct IndexNote {
  static constexpr int position_bits = 44;
  /// The earlier check is above, and then the lower position; never 0, which is no note.
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

/// What a kernel needs to leave a note.
struct IndexGuard {
  IndexNote* note;
  int check;
};

/// For a kernel that is about to run on the queue, for the operator that this thread runs: all of
/// `index` must lie in [0, size), the size of dimension `axis` of x.
IndexGuard index_guard(const Queue& queue, const View& index, std::int64_t size, int axis);

/// How an operator with words of its own tells it: "name at (1, 2) is 7" and the rest.
struct IndexWords {
  const char* name;  // a literal
  std::string rest;
  bool shows_value = true;
  bool operator==(const IndexWords&) const = default;
};
IndexGuard index_guard(const Queue& queue, const View& index, IndexWords words);

/// Throws what kernels have noted; called after synchronisations. Costs nothing if no kernel with
/// indices ran since the last time.
void throw_index_errors(int device);

}  // namespace quipu::on_cuda
