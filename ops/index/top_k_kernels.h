#pragma once
// What a back end provides for top_k. Internal to ops/ and the back ends.
#include <algorithm>

#include "quipu/core/dispatch/dispatch.h"

namespace quipu::detail {

/// Up to this k, candidates fit into fixed tiles.
inline constexpr std::int64_t top_k_in_tiles = 4096;

/// Room for candidates where k is larger: a pair of numbers for every entry of a line, for up to 16
/// lines at a time; i64.
inline Shape top_k_room(std::int64_t lines, std::int64_t length, std::int64_t k) {
  if (k <= top_k_in_tiles) return {0, length, 2};
  return {std::min<std::int64_t>(lines, 16), length, 2};
}

/// values and indices have the shape of x but for k entries along the axis; best first, then by
/// index. `room` is as top_k_room says.
inline constinit Kernel<void(View x, View values, View indices, View room, int axis, bool largest)>
    top_k_kernel{"top_k", "x values indices room* axis largest", Agreement::equal};

}  // namespace quipu::detail
