#pragma once
// Text for messages. Internal.
#include <string>
#include <string_view>

#include "quipu/core/shape.h"

namespace quipu::detail {

/// A name as messages show it: in quotes, cut when long, without control or broken characters.
std::string quoted_name(std::string_view name);
/// The index of an element by its row-major position.
Dims index_of(std::int64_t position, const Shape& shape);
/// Where an element stands in a tensor, "[3, 0, 2]"; also by its row-major position.
std::string index_text(const Dims& index);
std::string index_text(std::int64_t position, const Shape& shape);

}  // namespace quipu::detail
