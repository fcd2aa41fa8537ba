#pragma once
// What a back end provides for embedding, beside index_select and index_add.
#include "quipu/core/dispatch.h"

namespace quipu {

/// Throws an Error that names the first index outside [0, rows), and where it stands.
inline constinit Kernel<void(View indices, std::int64_t rows)> embedding_check{"embedding_check"};

}  // namespace quipu
