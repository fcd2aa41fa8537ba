// Whole tables: which sizes to count, how counts grow from there, and what the model makes of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "predict_count.h"
#include "quipu/core/error.h"

namespace quipu::bench {
using namespace detail;

#ifndef QUIPU_EMULATE

bool can_predict() {
  return false;
}

Comparison predict(const PublishedTable&, const Card&, std::int64_t, Columns) {
  fail("predictions need the emulated device: cmake --preset emulate, then build/emulate/bin/...");
}

#else

namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();
constexpr double allowed_deviation = 0.002;

/// Sizes to draw growth from, and one to try it on.
struct Plan {
  std::vector<Size> drawn_from;
  Size tried_on;
  double cost = 0;

  std::string text() const {
    std::string text;
    for (const Size& size : drawn_from) {
      text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", units_of(size), size.n);
    }
    return text + fmt::format(", and {} x {}", units_of(tried_on), tried_on.n);
  }
};

/// How long a size takes to count, in elements that move through an elementwise kernel.
double cost_of(const PublishedTable& table, Size size) {
  const double tokens = double(tokens_of(table, size.n));
  if (table.family == "tpa_decode") return tokens * double(size.batch) * 320 * 20;
  const double elements = tokens * units_of(size) * 128;
  return table.family == "flao" ? elements * 100 : elements;  // tensor cores are slow to emulate
}
constexpr double largest_cost = 500e6;

/// With the table's own batch, or where that costs much with two smaller ones; where only the
/// product of batch and heads matters, with one head.
void add_plans(const PublishedTable& table, const std::vector<std::int64_t>& n,
               std::int64_t tried_on, std::vector<Plan>& plans) {
  constexpr double much = 50e6;
  const auto add = [&](const std::vector<std::int64_t>& batches, std::int64_t heads) {
    Plan plan;
    plan.tried_on = {tried_on, batches.back(), heads};
    for (const std::int64_t batch : batches) {
      for (const std::int64_t tokens : n) plan.drawn_from.push_back({tokens, batch, heads});
    }
    plan.cost = cost_of(table, plan.tried_on);
    for (const Size& size : plan.drawn_from) plan.cost += cost_of(table, size);
    if (plan.cost <= largest_cost) plans.push_back(plan);
    return plan.cost;
  };
  if (table.family == "flao") {
    add({1, 2}, 1);
    return;
  }
  constexpr std::int64_t heads = Size{}.heads;
  if (add({table.batch}, heads) <= much) return;
  add({table.batch / 4, table.batch / 2}, heads);
  add({1, 2}, heads);
}

/// What can be counted in seconds, the quickest first. The sizes are such that blocks, which come
/// in whole numbers, do not grow evenly with them.
std::vector<Plan> plans_for(const PublishedTable& table, std::int64_t wanted) {
  std::vector<Plan> plans;
  const bool line = tokens_of(table, 2) == 2;  // else n is the side of a grid
  for (std::int64_t scale = line ? 16 : 2; scale <= 1 << 14; scale *= 2) {
    if (line) {
      add_plans(table, {4 * scale, 17 * scale / 4, 8 * scale}, 25 * scale / 4, plans);
      add_plans(table, {4 * scale, 17 * scale / 4, 5 * scale}, 19 * scale / 4, plans);
    } else {
      add_plans(table, {2 * scale, 3 * scale}, 4 * scale, plans);
    }
  }
  if (line) add_plans(table, {wanted * 10 / 16, wanted * 11 / 16, wanted}, wanted * 14 / 16, plans);
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Plan& a, const Plan& b) { return a.cost < b.cost; });
  return plans;
}

/// Whether all sizes of a plan run the kernels of the size that is wanted; `cut_alike`: and lead to
/// its blocks.
bool leads_to(Counter& counter, const Plan& plan, Size wanted, bool cut_alike) {
  const Sample target = counter.rehearsed(wanted);
  std::vector<Sample> samples;
  for (const Size& size : plan.drawn_from) {
    samples.push_back(counter.rehearsed(size));
    if (!same_kernels(samples.back().counts, target.counts)) return false;
  }
  if (!same_kernels(counter.rehearse(plan.tried_on), target.counts)) return false;
  return !cut_alike || Growth(std::move(samples)).knows(target.tokens, target.units, target.counts);
}

/// The growth of the counts of rows that run the same kernels.
struct Fit {
  std::optional<Growth> growth;
  Plan plan;
  double deviation = INFINITY;
};

Fit fit_plan(Counter& counter, const Plan& plan) {
  std::vector<Sample> samples;
  for (const Size& size : plan.drawn_from) samples.push_back(counter.counted(size));
  Fit fit{Growth(std::move(samples)), plan, 0};
  const Sample other = counter.counted(plan.tried_on);
  fit.growth->choose_gaps(other);
  fit.deviation = fit.growth->deviation_from(other);
  return fit;
}

/// By the first plan that is cut as the wanted size is; where blocks do not grow with the work, by
/// any that runs its kernels.
Fit fit_growth(Counter& counter, const PublishedTable& table, Size wanted) {
  Fit best;
  for (const bool cut_alike : {true, false}) {
    for (const Plan& plan : plans_for(table, wanted.n)) {
      if (!leads_to(counter, plan, wanted, cut_alike)) continue;
      Fit fit = fit_plan(counter, plan);
      if (fit.deviation < best.deviation) best = std::move(fit);
      if (best.deviation <= allowed_deviation) return best;
    }
  }
  return best;
}

/// "softmax_rows<4, float>" of "quipu::detail::on_cuda::(anonymous namespace)::softmax_rows<4,
/// float>".
std::string short_name(std::string kernel) {
  const std::size_t arguments = kernel.find('<');
  const std::size_t scope = kernel.rfind("::", arguments);
  if (scope != std::string::npos) kernel.erase(0, scope + 2);
  return kernel.size() > 60 ? kernel.substr(0, 57) + "..." : kernel;
}

std::string text_of(const std::vector<LaunchTime>& launches) {
  std::string text;
  for (const LaunchTime& launch : launches) {
    text += fmt::format("{}{} {:.4f} ms ({:.0f} blocks, {:.4g} MB, {})", text.empty() ? "" : "; ",
                        short_name(launch.kernel), launch.ms, launch.blocks,
                        launch.memory_bytes / 1e6, launch.bound);
  }
  return text.empty() ? "no launch" : text;
}

/// The rows of one column.
class Column {
 public:
  Column(const PublishedTable& table, const Variant& variant, const Card& card)
      : table_(table), variant_(variant), card_(card), counter_(table, variant) {}

  double predict(std::int64_t n, std::vector<std::string>& notes) {
    const Size size{n, table_.batch};
    const CallCounts& target = counter_.rehearse(size);
    const Fit& fit = fit_of(target, size, notes);
    if (!fit.growth && !target.empty()) return none;
    const CallCounts counts =
        target.empty() ? target
                       : fit.growth->at(double(tokens_of(table_, n)), units_of(size), target);
    const std::vector<LaunchTime> launches = time_of(counts, card_);
    if (largest_.empty()) {
      largest_ = fmt::format("{} at n = {}: {}", variant_.column, n, text_of(launches));
    }
    return total_ms(launches);
  }
  /// What the largest row consists of.
  const std::string& largest() const { return largest_; }

 private:
  const Fit& fit_of(const CallCounts& target, Size size, std::vector<std::string>& notes) {
    for (const auto& [counts, fit] : fits_) {
      if (same_kernels(counts, target)) return fit;
    }
    fits_.emplace_back(target, target.empty() ? Fit() : fit_growth(counter_, table_, size));
    const Fit& fit = fits_.back().second;
    if (target.empty()) return fit;
    if (!fit.growth) {
      notes.push_back(fmt::format(
          "{} up to n = {}: not predicted, its kernels run at no size that could be counted",
          variant_.column, size.n));
    } else {
      notes.push_back(
          fmt::format("{} up to n = {}: counted at {} tokens; the last is met to {:.2f} %{}",
                      variant_.column, size.n, fit.plan.text(), 100 * fit.deviation,
                      fit.deviation > allowed_deviation ? ", so growth is not as assumed" : ""));
    }
    return fit;
  }

  const PublishedTable& table_;
  const Variant& variant_;
  const Card& card_;
  Counter counter_;
  std::vector<std::pair<CallCounts, Fit> > fits_;
  std::string largest_;
};

}  // namespace

bool can_predict() {
  return true;
}

Comparison predict(const PublishedTable& table, const Card& card, std::int64_t max_n,
                   Columns columns) {
  check(table.kind == Kind::speed, "only speed is predicted, and ", table.name, " is not about it");
  Comparison result{&table, "cuda", variants_of(table), {}, card.title, {}};
  if (columns == Columns::first) result.variants.resize(1);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::int64_t n = table.rows[i].n;
    if (max_n > 0 && tokens_of(table, n) > max_n) continue;
    result.rows.push_back({i, {}, 1e3 * least_bytes(table, n) / card.memory_bytes_per_s});
  }
  for (Variant& variant : result.variants) {
    Column column(table, variant, card);
    std::string missing;
    // From the largest row down: rows that run the same kernels share what leads to the largest.
    for (auto row = result.rows.rbegin(); row != result.rows.rend(); ++row) {
      double ms = none;
      try {
        if (missing.empty()) ms = column.predict(table.rows[row->index].n, result.notes);
      } catch (const Error& error) {
        missing = error.what();
        result.notes.push_back(fmt::format("{}: not predicted: {}", variant.column, missing));
      }
      row->ours.push_back(ms);
    }
    if (!column.largest().empty()) result.notes.push_back(column.largest());
  }
  for (Variant& variant : result.variants) variant.column += "_predicted";
  return result;
}

#endif

}  // namespace quipu::bench
