#pragma once
// How the CUDA back end cuts adding rows at indices, and what that takes: as cuda/workspace.h.
#include <algorithm>
#include <cstdint>

#include "quipu/core/dtype.h"

namespace quipu::detail::on_cuda {

/// How rows are added at one index for many lines (cuda/index/scatter_rows.cu): the entries are
/// sorted by destination, in tiles, and added in pieces; what runs leave at the ends of pieces is
/// added afterwards.
struct RowAdds {
  static constexpr std::int64_t tile = 4096;            // entries that a block sorts
  static constexpr std::int64_t digits = 256;           // of a pass of the sort
  static constexpr std::int64_t columns_of_warp = 256;  // at most
  RowAdds(std::int64_t lines, std::int64_t entries, std::int64_t destinations)
      : by_rows(lines >= least && lines < most && entries < most && destinations < most),
        tiles((entries + tile - 1) / tile),
        piece(std::max<std::int64_t>(64, (entries + 1023) / 1024)),
        pieces((entries + piece - 1) / piece),
        columns((lines + columns_of_warp - 1) / columns_of_warp * columns_of_warp) {}
  /// Numbers of the partial sums, in the compute type: two rows a piece.
  std::int64_t partials() const { return pieces > 1 ? 2 * pieces * columns : 0; }
  /// Bytes of the partial sums, of the entries with their destinations, twice, and of the digits
  /// that each tile has.
  std::int64_t bytes(std::int64_t entries, DType dtype) const {
    const auto size = static_cast<std::int64_t>(size_of(compute_type(dtype)));
    return by_rows ? partials() * size + 2 * entries * 8 + tiles * digits * 4 : 0;
  }

  static constexpr std::int64_t least = 8;  // fewer lines do not fill a warp
  static constexpr std::int64_t most = std::int64_t{1} << 31;
  bool by_rows;
  std::int64_t tiles, piece, pieces, columns;
};

}  // namespace quipu::detail::on_cuda
