#pragma once
// Indices that kernels find out of range. A kernel reads nothing there; it leaves a note, and the
// next synchronisation throws it in the words that the CPU uses, with the name of the operator.
#include <cstdint>

#include "quipu/core/view.h"
#include "streams.h"

namespace quipu::on_cuda {

/// The bad index that was found first since the last synchronisation, in the device's memory.
struct IndexNote {
  unsigned taken;
  int check;  // which of the checks that were asked for
  long long position, value;
};

/// What a kernel needs to leave a note.
struct IndexGuard {
  IndexNote* note;
  int check;
};

/// For a kernel that is about to run on the queue, for the operator that this thread runs: all of
/// `index` must lie in [0, size), the size of dimension `axis` of x.
IndexGuard index_guard(const Queue& queue, const View& index, std::int64_t size, int axis);

/// Throws what kernels have noted; called after synchronisations. Costs nothing if no kernel with
/// indices ran since the last time.
void throw_index_errors(int device);

}  // namespace quipu::on_cuda
