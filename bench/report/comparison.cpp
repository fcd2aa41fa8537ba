#include "comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace quipu::bench::report {
namespace {

void check_positive(const std::string& name, double ms) {
  if (ms > 0 && std::isfinite(ms)) return;
  throw std::runtime_error(name + ": a time is not positive");
}

Tally tally(const std::vector<Row>& rows, double (Row::*ratio_of)() const, double slower_below) {
  Tally found;
  double logarithms = 0;
  for (const Row& row : rows) {
    const double ratio = (row.*ratio_of)();
    if (std::isnan(ratio)) continue;
    ++found.rows;
    found.slower += ratio < slower_below;
    logarithms += std::log(ratio);
    if (found.rows == 1 || ratio < found.least) {
      found.least = ratio;
      found.slowest = row.c.text();
    }
  }
  if (found.rows > 0) found.mean = std::exp(logarithms / found.rows);
  return found;
}

std::string beside_peers(const Comparison& comparison) {
  const Tally t = tally_peers(comparison);
  if (t.rows == 0) return "No row has a peer.";
  const std::string faster = t.slower == 0
                                 ? fmt::format("All {} rows", t.rows)
                                 : fmt::format("{} of {} rows", t.rows - t.slower, t.rows);
  return fmt::format(
      "{} are faster than the fastest peer, geometric mean {:.2f} ×; slowest: {}, {:.2f} ×.",
      faster, t.mean, t.slowest, t.least);
}

std::string beside_earlier(const Comparison& comparison) {
  const Tally t = tally_earlier(comparison);
  if (t.rows == 0) return "No row is in the baseline.";
  const std::string slower = t.slower == 0   ? fmt::format("None of {} rows is", t.rows)
                             : t.slower == 1 ? fmt::format("1 of {} rows is", t.rows)
                                             : fmt::format("{} of {} rows are", t.slower, t.rows);
  return fmt::format(
      "{} slower than the baseline by more than {:.0f} %, geometric mean {:.2f} ×; slowest: {}, "
      "{:.2f} ×.",
      slower, 100 * slack, t.mean, t.slowest, t.least);
}

std::string beside_limits(const Comparison& comparison) {
  std::vector<double> shares;
  const Row* worst = nullptr;
  for (const Row& row : comparison.rows) {
    const double share = row.ours.of_limit();
    if (std::isnan(share)) continue;
    shares.push_back(share);
    if (worst == nullptr || share < worst->ours.of_limit()) worst = &row;
  }
  if (shares.empty()) return fmt::format("{} rows.", comparison.rows.size());
  return fmt::format(
      "The median of {} rows reaches {:.0f} % of what copies and multiply-adds allow at best; "
      "furthest from it: {}, {:.0f} %.",
      shares.size(), 100 * median(shares), worst->c.text(), 100 * worst->ours.of_limit());
}

}  // namespace

Comparison compare(Run now, std::optional<Peers> peers, std::optional<Run> earlier) {
  Comparison all{std::move(now), std::move(peers), std::move(earlier), {}};
  const std::map<Case, Timing> before =
      all.earlier ? cases_of(*all.earlier) : std::map<Case, Timing>();
  for (const auto& [c, timing] : cases_of(all.now)) {
    Row row{c, timing};
    if (const auto found = before.find(c); found != before.end()) row.earlier_ms = found->second.ms;
    if (all.peers && all.peers->ms.contains(c)) {
      for (const auto& [peer, ms] : all.peers->ms.at(c)) {
        check_positive(c.text(), ms);
        if (row.peer.empty() || ms < row.peer_ms) {
          row.peer = peer;
          row.peer_ms = ms;
        }
      }
    }
    all.rows.push_back(row);
  }
  return all;
}

Tally tally_peers(const Comparison& comparison) {
  return tally(comparison.rows, &Row::to_peer, 1);
}

Tally tally_earlier(const Comparison& comparison) {
  return tally(comparison.rows, &Row::to_earlier, 1 - slack);
}

std::string names_of_peers(const Comparison& comparison) {
  std::set<std::string> names;
  for (const Row& row : comparison.rows) {
    if (row.peer.empty()) continue;
    for (const auto& [peer, ms] : comparison.peers->ms.at(row.c)) names.insert(peer);
  }
  std::vector<std::string> versions;
  for (const auto& [peer, version] : comparison.peers->versions) {
    versions.push_back(fmt::format("{} {}", peer, version));
  }
  return fmt::format("{}{}{}{}", fmt::join(names, ", "), versions.empty() ? "" : " (",
                     fmt::join(versions, ", "), versions.empty() ? "" : ")");
}

std::optional<Flatness> flatness_of(const Comparison& comparison) {
  // Rows are sorted by operator, pass, dtype and then n.
  std::optional<Flatness> worst;
  const std::vector<Row>& rows = comparison.rows;
  const double beyond = 2 * static_cast<double>(comparison.now.machine.cache);
  const auto same_curve = [](const Case& a, const Case& b) {
    return a.op == b.op && a.pass == b.pass && a.dtype == b.dtype;
  };
  for (auto first = rows.begin(); first != rows.end();) {
    const auto end = std::find_if(first, rows.end(),
                                  [&](const Row& row) { return !same_curve(row.c, first->c); });
    const auto begin =
        std::find_if(first, end, [&](const Row& row) { return row.ours.bytes > beyond; });
    first = end;
    if (beyond == 0 || end - begin < 2) continue;
    const Timing &small = begin->ours, &large = (end - 1)->ours;
    if (!(large.flops * small.bytes <= 1.25 * small.flops * large.bytes)) continue;
    const auto by_time = [](const Row& a, const Row& b) {
      return a.ours.ms / a.ours.bytes < b.ours.ms / b.ours.bytes;
    };
    const auto [least, most] = std::minmax_element(begin, end, by_time);
    const double factor = most->ours.ms / most->ours.bytes / (least->ours.ms / least->ours.bytes);
    if (worst && factor <= worst->factor) continue;
    worst = {factor, fmt::format("{} {} {}, n {} beside {}", most->c.op, most->c.pass,
                                 most->c.dtype, most->c.n, least->c.n)};
  }
  return worst;
}

std::string how_it_stands(const Comparison& comparison) {
  std::string text;
  if (comparison.peers) text += beside_peers(comparison) + " ";
  if (comparison.earlier) text += beside_earlier(comparison) + " ";
  if (text.empty()) text = beside_limits(comparison) + " ";
  if (const auto flat = flatness_of(comparison)) {
    text += fmt::format("Beyond the cache the time per element differs by at most {:.2f} × ({}). ",
                        flat->factor, flat->text);
  }
  text.pop_back();
  return text;
}

}  // namespace quipu::bench::report
