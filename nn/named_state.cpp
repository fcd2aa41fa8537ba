#include "quipu/nn/named_state.h"

#include <algorithm>
#include <map>

#include "quipu/autograd/knot.h"
#include "quipu/core/context.h"
#include "quipu/core/text.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;

namespace {

using ByName = std::map<std::string_view, const Tensor*>;

ByName by_name(const char* whose, const NamedTensors& state) {
  ByName map;
  for (const auto& [name, tensor] : state) {
    check(tensor.defined(), "tensor ", quoted_name(name), " of the ", whose, " is undefined");
    check(map.emplace(name, &tensor).second, "tensor ", quoted_name(name), " of the ", whose,
          " is given twice");
  }
  return map;
}

std::string describe(const Tensor& x) {
  return concat(x.dtype(), " ", x.shape());
}

/// One a line; what is too much is counted.
std::string list(const std::vector<std::string>& lines) {
  constexpr std::size_t most = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), most); ++i) text += "\n  " + lines[i];
  if (lines.size() > most) text += concat("\n  ... and ", lines.size() - most, " more");
  return text;
}

/// What stands in the way of copying; nothing is copied unless it is empty.
std::vector<std::string> differences(const ByName& target, const ByName& source,
                                     const LoadReport& report, Loading loading) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : target) {
    const auto other = source.find(name);
    if (other == source.end()) continue;
    const Tensor& values = *other->second;
    if (values.shape() == tensor->shape() && values.dtype() == tensor->dtype()) continue;
    lines.push_back(concat(quoted_name(name), " is ", describe(values), ", but ", describe(*tensor),
                           " is wanted"));
  }
  if (loading == Loading::partial) return lines;
  for (const std::string& name : report.missing) {
    lines.push_back(quoted_name(name) + " is missing; " + describe(*target.at(name)) +
                    " is wanted");
  }
  for (const std::string& name : report.left_over) {
    lines.push_back(quoted_name(name) + " is " + describe(*source.at(name)) +
                    ", but nothing of that name is wanted");
  }
  return lines;
}

}  // namespace

const Tensor* detail::find_tensor(const NamedTensors& state, std::string_view name) {
  const auto found = std::ranges::find(
      state, name, [](const auto& entry) { return std::string_view(entry.first); });
  return found == state.end() ? nullptr : &found->second;
}

Tensor detail::to_state(std::int64_t number) {
  return scalar_tensor(number, i64);
}

std::int64_t detail::whole_number(const NamedTensors& state, std::string_view name) {
  const Tensor* const tensor = find_tensor(state, name);
  check(tensor != nullptr, "the state has no number ", quoted_name(name));
  check(tensor->dtype() == i64 && tensor->numel() == 1, quoted_name(name), " of the state is ",
        describe(*tensor), ", not one i64 number");
  return tensor->item_int();
}

void detail::check_counter(const char* whose, const std::string& name, const Tensor& counter) {
  check(counter.dtype() == i64 && counter.numel() == 1, whose, ": ", quoted_name(name),
        " of the state is ", describe(counter), ", not one i64 number");
  if (counter.device().is_meta()) return;
  const std::int64_t count = counter.item_int();
  check(count >= 0 && count <= most_steps, whose, ": ", quoted_name(name), " of the state is ",
        count, ", but a count lies between 0 and 2^53");
}

NamedTensors detail::add_prefix(std::string_view prefix, const NamedTensors& state) {
  NamedTensors prefixed;
  prefixed.reserve(state.size());
  for (const auto& [name, tensor] : state)
    prefixed.emplace_back(std::string(prefix) + name, tensor);
  return prefixed;
}

NamedTensors detail::take_prefix(std::string_view prefix, const NamedTensors& state) {
  NamedTensors taken;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(prefix)) taken.emplace_back(name.substr(prefix.size()), tensor);
  }
  return taken;
}

std::string LoadReport::text() const {
  std::string text;
  if (!missing.empty()) text += concat(missing.size(), " missing:", list(missing));
  if (!missing.empty() && !left_over.empty()) text += '\n';
  if (!left_over.empty()) text += concat(left_over.size(), " left over:", list(left_over));
  return text.empty() ? "everything was loaded" : text;
}

LoadReport load_into(const NamedTensors& target, const NamedTensors& source, Loading loading) {
  const OpScope op("load");
  check_enum("loading", loading, Loading::partial);
  const ByName wanted = by_name("target", target), given = by_name("source", source);
  LoadReport report;
  for (const auto& entry : target) {
    if (!given.contains(entry.first)) report.missing.push_back(entry.first);
  }
  for (const auto& entry : source) {
    if (!wanted.contains(entry.first)) report.left_over.push_back(entry.first);
  }
  const std::vector<std::string> lines = differences(wanted, given, report, loading);
  check(lines.empty(), "the tensors do not fit in ", lines.size(),
        lines.size() == 1 ? " place:" : " places:", list(lines));
  const NoGrad pause;
  for (const auto& [name, values] : given) {
    const auto place = wanted.find(name);
    if (place != wanted.end()) place->second->copy_from(*values);
  }
  return report;
}

}  // namespace quipu::nn
