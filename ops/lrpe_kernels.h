#pragma once
// What a back end provides for position encodings, in 1 to m dimensions, alone and inside flao.
#include <algorithm>

#include "quipu/core/dispatch.h"
#include "quipu/ops/act.h"

namespace quipu {

enum class LrpeKind : std::uint8_t { none, rotate, cosine };

/// How a row (head h, token t) of d features is encoded. The sequence may have one dimension (grid
/// empty: position offset + t) or several (sizes of the grid; the first `lead` tokens are at angle
/// 0).
struct RowEncoding {
  LrpeKind kind = LrpeKind::none;
  Act act = Act::none;
  bool over_sequence = false;  // softmax over the tokens instead of the features
  View theta;                  // (h or 1, e); e = 1 is repeated, missing columns are angle 0
  std::int64_t offset = 0;
  Dims grid;
  std::int64_t lead = 0;

  bool has_columns() const { return act == Act::softmax && over_sequence; }
};

/// theta as kernels get it for rows of d features. On a grid it may have more columns: of those,
/// the first grid axis takes as many as there are features.
inline View columns_for(View theta, std::int64_t d) {
  if (theta.defined) theta.shape[1] = std::min(theta.size(1), std::max<std::int64_t>(d, 1));
  return theta;
}

/// Features that a row may have, so that a thread's tiles stay small.
constexpr std::int64_t most_features(DType dtype) {
  return dtype == DType::f64 ? 4096 : 8192;
}
/// Angles of a row with d features.
constexpr std::int64_t angles_of(LrpeKind kind, std::int64_t d) {
  return kind == LrpeKind::none ? 0 : kind == LrpeKind::rotate ? d / 2 : d;
}
/// Into how many parts a device cuts the tokens for softmax over them: several where there are too
/// few columns (b h d) to keep it busy and enough tokens for each.
constexpr std::int64_t lrpe_parts(std::int64_t columns, std::int64_t tokens) {
  constexpr std::int64_t of_block = 64, enough_blocks = 256, uncut = 2048, shortest = 512;
  if (columns == 0 || tokens <= uncut) return 1;
  const std::int64_t blocks = (columns + of_block - 1) / of_block;
  return std::clamp<std::int64_t>(enough_blocks / blocks, 1, tokens / shortest);
}
/// Numbers of the compute type that kernels on x (b, h, t, d) get as workspace: what is found of
/// the columns of each part. The CPU cuts no tokens.
inline std::int64_t lrpe_workspace(DeviceKind kind, const RowEncoding& encoding, const Shape& shape,
                                   bool backward) {
  const std::int64_t columns = shape[0] * shape[1] * shape[3];
  const std::int64_t parts = lrpe_parts(columns, shape[2]);
  if (kind == DeviceKind::cpu || !encoding.has_columns() || parts == 1) return 0;
  return parts * columns * (backward ? 3 : 2);
}

/// x (b, h, t, d) -> o (b, h, t, d or 2d), any strides. `angles` (h, t, angles of a row),
/// contiguous in the compute type, is filled if it is defined. `space` is lrpe_workspace, if any.
inline constinit Kernel<void(View x, View o, View angles, const RowEncoding&, View space)>
    lrpe_forward{"lrpe_forward"};
/// d_x (=|+=) gradient. x is undefined where the activation does not need it; `angles` is read
/// instead of theta if it is defined.
inline constinit Kernel<void(View x, View d_o, Grad d_x, View angles, const RowEncoding&,
                             View space)>
    lrpe_backward{"lrpe_backward"};

}  // namespace quipu
