#pragma once
// What a back end provides for embedding, beside index_select and index_add.
// Internal to ops/ and the back ends.
#include "quipu/core/dispatch/dispatch.h"

namespace quipu::detail {

/// Throws an Error that names the first index outside [0, rows), and where it stands.
inline constinit Kernel<void(View indices, std::int64_t rows)> embedding_check_kernel{
    "embedding_check", "indices rows", Agreement::equal};

}  // namespace quipu::detail
