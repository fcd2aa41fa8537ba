#pragma once
// linear_cross_entropy needs no kernels of its own: a part of the rows goes through matmul and the
// kernels of cross_entropy. Here is how many rows make a part. Internal to ops/ and the back ends.
#include <algorithm>
#include <cstdint>

namespace quipu::detail {

/// Equal parts of about 4 million logits: large beside what a product must read and write once a
/// part, small beside all logits.
inline std::int64_t rows_of_logits(std::int64_t rows, std::int64_t classes) {
  const std::int64_t enough = (std::int64_t{1} << 22) / std::max<std::int64_t>(classes, 1);
  const std::int64_t most = std::clamp<std::int64_t>(enough, 128, 4096);
  const std::int64_t parts = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return std::max<std::int64_t>(1, (rows + parts - 1) / parts);
}

}  // namespace quipu::detail
