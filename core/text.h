#pragma once
// Text for messages. Internal.
#include <string>
#include <string_view>

namespace quipu::detail {

/// A name as messages show it: in quotes, cut when long, without control or broken characters.
std::string quoted_name(std::string_view name);

}  // namespace quipu::detail
