// Reports as pages: the timeline, what would help, and the blocks, scopes and knots behind the
// peak.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "quipu/core/report/html.h"
#include "quipu/core/report/memory_page.h"

namespace quipu {
using namespace detail;
namespace {

using namespace memory_page;

constexpr std::size_t rows_shown = 20;

std::string or_dash(const std::string& name) {
  return name.empty() ? "–" : detail::html_escape(name);
}

/// Pieces side by side, together as long as the share of `whole` that they are.
std::string bar(const CategoryBytes& bytes, std::size_t whole, const char* name) {
  std::string html = fmt::format("<div class={}>", name);
  for (const Category c : stack) {
    const double percent = share(bytes[static_cast<std::size_t>(c)], whole);
    if (percent > 0) {
      html +=
          fmt::format("<div style=\"width: {:.2f}%; background: var(--{})\" title=\"{}\"></div>",
                      percent, name_of(c), meaning_of(c));
    }
  }
  return html + "</div>\n";
}

/// A row whose first cells are a size and a bar as long as its share of `most`.
std::string row(const CategoryBytes& bytes, std::size_t most,
                const std::vector<std::string>& cells) {
  std::string html = fmt::format("<tr><td class=bytes>{}</td><td class=share>{}</td>",
                                 human_bytes(sum_of(bytes)), bar(bytes, most, "thin"));
  for (const std::string& cell : cells) html += "<td>" + cell + "</td>";
  return html + "</tr>\n";
}
std::string row(std::size_t bytes, Category category, std::size_t most,
                const std::vector<std::string>& cells) {
  CategoryBytes all{};
  all[static_cast<std::size_t>(category)] = bytes;
  return row(all, most, cells);
}

std::string table(const std::vector<std::string>& names, const std::string& rows) {
  std::string html = "<table>\n<tr><th>bytes</th><th></th>";
  for (const std::string& name : names) html += "<th>" + name + "</th>";
  return html + "</tr>\n" + rows + "</table>\n";
}

std::string block_table(const MemoryReport& report) {
  std::string rows;
  for (const MemoryBlock& b : report.blocks) {
    rows += row(
        b.bytes, b.category, report.blocks[0].bytes,
        {or_dash(b.op), or_dash(b.scope), detail::html_escape(b.tensor), meaning_of(b.category)});
  }
  return table({"operator", "scope", "tensor", "held as"}, rows);
}

/// Holders that have something in common.
struct Group {
  std::string name;
  CategoryBytes bytes{};
  std::size_t blocks = 0;
};

std::string operator_of(const MemoryHolder& h) {
  return h.op;
}
/// The outermost scope: a layer, where the program names its layers.
std::string scope_of(const MemoryHolder& h) {
  return h.scope.substr(0, h.scope.find('/'));
}

/// The largest first.
template <class Key>
std::vector<Group> grouped(const std::vector<MemoryHolder>& holders, Key key) {
  std::map<std::string, Group> by_name;
  for (const MemoryHolder& h : holders) {
    Group& group = by_name[key(h)];
    group.bytes[static_cast<std::size_t>(h.category)] += h.bytes;
    group.blocks += h.blocks;
  }
  std::vector<Group> groups;
  for (auto& [name, group] : by_name) {
    group.name = name;
    groups.push_back(group);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return sum_of(a.bytes) > sum_of(b.bytes);
  });
  return groups;
}

std::string group_table(const char* title, const std::vector<Group>& groups) {
  std::string rows;
  for (std::size_t i = 0; i < std::min(groups.size(), rows_shown); ++i) {
    rows += row(groups[i].bytes, sum_of(groups[0].bytes),
                {or_dash(groups[i].name), std::to_string(groups[i].blocks)});
  }
  return table({title, "blocks"}, rows);
}

std::string knot_table(const MemoryReport& report) {
  std::string rows;
  for (const KnotMemory& k : report.knots) {
    rows += row(
        k.saved, Category::saved, report.knots[0].saved,
        {std::to_string(k.knot), or_dash(k.op), or_dash(k.scope), detail::html_escape(k.output)});
  }
  return table({"knot", "operator", "scope", "output"}, rows);
}

std::string advice_list(const MemoryReport& report) {
  std::string html = "<ul>";
  for (const MemoryAdvice& a : report.advice()) {
    html += fmt::format("<li>{}: about {} less</li>", detail::html_escape(a.what),
                        human_bytes(a.saves));
  }
  return html + "</ul>\n";
}

/// What held most, in a sentence.
std::string summary(const MemoryReport& report) {
  if (report.holders.empty()) return "Nothing was held.";
  const auto largest = std::max_element(report.by_category.begin(), report.by_category.end());
  const auto category = static_cast<Category>(largest - report.by_category.begin());
  std::vector<MemoryHolder> holders = report.holders;
  std::erase_if(holders, [&](const MemoryHolder& h) { return h.category != category; });
  const auto of = [](const Group& g) {
    return fmt::format("<b>{}</b> with {}", or_dash(g.name), human_bytes(sum_of(g.bytes)));
  };
  const std::vector<Group> operators = grouped(holders, operator_of),
                           scopes = grouped(holders, scope_of);
  std::string text = fmt::format("{:.0f} % were {}: {}. The largest operator there is {}",
                                 share(*largest, report.bytes), meaning_of(category),
                                 human_bytes(*largest), of(operators[0]));
  if (scopes.size() > 1)
    text += fmt::format(", the largest of {} scopes {}", scopes.size(), of(scopes[0]));
  return text + ".";
}

std::string section(const std::string& title, const std::string& body) {
  return "<section class=quipu-memory><h2>" + title + "</h2>\n" + body + "</section>\n";
}

}  // namespace

std::string MemoryReport::html(const std::string& title) const {
  std::string page = detail::html_page_begin(title);
  page +=
      fmt::format("<h1>{}: {} on {} {}</h1>\n<p class=summary>{}</p>\n", detail::html_escape(title),
                  human_bytes(bytes), to_string(device), moment, summary(*this));
  if (timeline.empty()) {
    page += style + section("Held " + moment, bar(by_category, bytes, "bar") + legend(by_category));
  } else {
    page += section("Live memory, by what it is held as", timeline_html());
  }
  if (!advice().empty()) page += section("What would help", advice_list(*this));
  if (!blocks.empty()) {
    page +=
        section(fmt::format("The {} largest blocks {}", blocks.size(), moment), block_table(*this));
  }
  if (!holders.empty()) {
    page += section("Added up by scope", group_table("scope", grouped(holders, scope_of)));
    page += section("Added up by operator", group_table("operator", grouped(holders, operator_of)));
  }
  if (!knots.empty()) page += section("What the tape keeps, knot by knot", knot_table(*this));
  return page + detail::html_page_end();
}

}  // namespace quipu
