#include "quipu/core/text.h"

#include <nlohmann/json.hpp>

namespace quipu::detail {

std::string quoted_name(std::string_view name) {
  constexpr std::size_t longest = 80;
  using Json = nlohmann::json;
  std::string text =
      Json(name.substr(0, longest)).dump(-1, ' ', false, Json::error_handler_t::replace);
  text.front() = text.back() = '\'';
  return name.size() > longest ? text + "..." : text;
}

}  // namespace quipu::detail
