// A module as text: one row a module, parameter or buffer.
#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <typeinfo>

#include "quipu/core/report/memory_report.h"
#include "quipu/nn/module.h"

namespace quipu::nn {
using namespace quipu::detail;
namespace {

struct Row {
  std::string label, detail;
  std::size_t bytes = 0;
  bool operator==(const Row&) const = default;
};

/// A part and what hangs below it.
struct Node {
  Row row;
  bool is_list = false;
  std::int64_t parameters = 0;
  std::vector<Node> parts = {};
  bool operator==(const Node&) const = default;
};

/// The name of its class, without namespaces.
std::string kind_of(const Module& module) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(typeid(module).name(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? readable.get() : typeid(module).name();
  for (std::size_t colon; (colon = name.find("::")) != name.npos;) {
    const std::size_t before = name.find_last_of("<, ", colon);
    const bool in_brackets = colon > 0 && name[colon - 1] == ')';  // (anonymous namespace)
    const std::size_t start = in_brackets           ? name.rfind('(', colon)
                              : before == name.npos ? 0
                                                    : before + 1;
    name.erase(start, colon + 2 - start);
  }
  return name;
}

/// 1234567 -> "1,234,567"
std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string parameters_text(std::int64_t n) {
  return n == 0 ? "" : grouped(n) + (n == 1 ? " parameter" : " parameters");
}

/// Characters on the screen: all but the continuation bytes of UTF-8.
std::size_t width(const std::string& s) {
  return static_cast<std::size_t>(
      std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const std::string& s, std::size_t to) {
  return s + std::string(to - std::min(to, width(s)), ' ');
}

/// Equal neighbours in a list become one row that says how many they are.
void merge_equal(Node& list) {
  std::vector<Node> merged;
  const std::vector<Node>& parts = list.parts;
  for (std::size_t i = 0, j; i < parts.size(); i = j) {
    const auto unnamed = [](Node n) {
      n.row.label = n.row.label.substr(n.row.label.find(':'));
      return n;
    };
    for (j = i + 1; j < parts.size() && unnamed(parts[j]) == unnamed(parts[i]);) ++j;
    merged.push_back(parts[i]);
    if (j - i == 1) continue;
    Row& row = merged.back().row;
    row.label = fmt::format("{} to {}: {} of{}", i, j - 1, j - i,
                            row.label.substr(row.label.find(':') + 1));
    row.detail += " each";
    row.bytes *= j - i;
  }
  list.parts = std::move(merged);
}

void close_node(Node& node) {
  for (const Node& part : node.parts) {
    node.parameters += part.parameters;
    node.row.bytes += part.row.bytes;
  }
  node.row.detail = parameters_text(node.parameters);
  const bool of_modules =
      node.is_list && std::all_of(node.parts.begin(), node.parts.end(), [](const Node& p) {
        return p.row.label.find(':') != std::string::npos;
      });
  if (of_modules) merge_equal(node);
}

void append_rows(const Node& node, const std::string& lead, const std::string& below,
                 std::vector<Row>& rows) {
  rows.push_back(node.row);
  rows.back().label = lead + node.row.label;
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    const bool last = i + 1 == node.parts.size();
    append_rows(node.parts[i], below + (last ? "└─ " : "├─ "), below + (last ? "   " : "│  "),
                rows);
  }
}

}  // namespace

std::string Module::tree() const {
  const std::vector<Entry> entries = walk();
  std::map<const Storage*, std::string> seen;  // a tensor under a second name holds nothing
  std::vector<Node> open;
  const auto close_to = [&](int depth) {
    while (static_cast<int>(open.size()) > depth) {
      Node done = std::move(open.back());
      open.pop_back();
      close_node(done);
      open.back().parts.push_back(std::move(done));
    }
  };
  for (const Entry& e : entries) {
    close_to(std::max(e.depth, 1));
    if (e.kind == Members::Kind::module) {
      const std::string kind = e.module ? kind_of(*e.module) : "";
      const std::string label = e.depth == 0 ? kind : e.name + (kind.empty() ? "" : ": " + kind);
      open.push_back({{label, ""}, e.module == nullptr});
      continue;
    }
    const Tensor& t = *e.tensor;
    const auto [first, fresh] = seen.emplace(&t.storage(), e.path);
    const bool buffer = e.kind == Members::Kind::buffer;
    Node leaf{{e.name,
               fresh ? concat(t.shape(), " ", t.dtype(), buffer ? ", buffer" : "")
                     : "is " + first->second,
               fresh ? t.nbytes() : 0}};
    if (fresh && !buffer) leaf.parameters = t.numel();
    open.back().parts.push_back(std::move(leaf));
  }
  close_to(1);
  close_node(open.front());

  std::vector<Row> rows;
  append_rows(open.front(), "", "", rows);
  std::size_t label_width = 0, detail_width = 0;
  for (const Row& row : rows) {
    label_width = std::max(label_width, width(row.label));
    detail_width = std::max(detail_width, width(row.detail));
  }
  std::string text;
  for (const Row& row : rows) {
    if (row.detail.empty()) {  // it holds nothing
      text += row.label + "\n";
      continue;
    }
    text += fmt::format("{}  {}  {:>8}\n", padded(row.label, label_width),
                        padded(row.detail, detail_width), human_bytes(row.bytes));
  }
  return text;
}

}  // namespace quipu::nn
