#pragma once
// How softmax along long lines is cut, and the workspace that takes.
#include <algorithm>

#include "quipu/core/device.h"
#include "quipu/core/shape.h"

namespace quipu {

/// Into how many parts a device cuts each line: several only where there are too few lines to keep
/// it busy and each is long. The CPU cuts none.
inline std::int64_t softmax_parts(DeviceKind kind, std::int64_t lines, std::int64_t length) {
  constexpr std::int64_t together = 32;  // lines that a block takes side by side
  constexpr std::int64_t enough_blocks = 256, shortest_part = 1024, uncut = 4096;
  if (kind == DeviceKind::cpu || lines == 0 || length <= uncut) return 1;
  const std::int64_t blocks = (lines + together - 1) / together;
  return std::clamp<std::int64_t>(enough_blocks / blocks, 1, length / shortest_part);
}

/// The shape, in the compute type, of so many quantities of each part of each line; no elements
/// where lines are not cut.
inline Shape softmax_workspace(DeviceKind kind, std::int64_t lines, std::int64_t length,
                               std::int64_t quantities) {
  const std::int64_t parts = softmax_parts(kind, lines, length);
  return {parts > 1 ? parts : 0, quantities, lines};
}

}  // namespace quipu
