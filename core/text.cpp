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

Dims index_of(std::int64_t position, const Shape& shape) {
  Dims index = shape;
  for (int d = shape.size() - 1; d >= 0; --d) {
    index[d] = position % shape[d];
    position /= shape[d];
  }
  return index;
}

std::string index_text(std::int64_t position, const Shape& shape) {
  return index_text(index_of(position, shape));
}

std::string index_text(const Dims& index) {
  std::string text = "[";
  for (int d = 0; d < index.size(); ++d) text += (d ? ", " : "") + std::to_string(index[d]);
  return text + "]";
}

}  // namespace quipu::detail
