// Counts the launches of our columns on the emulated device and puts them through the model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "predict.h"
#include "quipu/core/error.h"
#include "quipu/core/memory.h"

#ifdef QUIPU_EMULATE
#include "quipu/cuda/emulator/emulator.h"
#endif

namespace quipu::bench {

#ifndef QUIPU_EMULATE

bool can_predict() {
  return false;
}

Comparison predict(const PublishedTable&, const Card&, std::int64_t) {
  fail("predictions need the emulated device: cmake --preset emulate, then build/emulate/bin/...");
}

#else

namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();
constexpr double allowed_deviation = 0.01;

/// The emulator's settings as they are, again when this ends.
class SettingsScope {
 public:
  SettingsScope() : before_(emulator::settings()) {}
  ~SettingsScope() {
    emulator::clear_counters();  // waits
    emulator::settings() = before_;
  }
  SettingsScope(const SettingsScope&) = delete;
  SettingsScope& operator=(const SettingsScope&) = delete;

 private:
  emulator::Settings before_;
};

/// While it lives nothing runs. Memory of that time holds nothing, so none of it is kept.
class Rehearsal {
 public:
  Rehearsal() {
    release_cached("cuda");
    emulator::settings().run = false;
    emulator::settings().seed = 0;  // blocks in the order of a device
  }
  ~Rehearsal() {
    emulator::settings().run = false;
    release_cached("cuda");
  }
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

 private:
  SettingsScope scope_;
};

LaunchCounts counts_of(const emulator::LaunchRecord& record) {
  const emulator::Counters& c = record.counters;
  LaunchCounts counts;
  counts.kernel = record.kernel;
  counts.threads = double(record.block[0]) * record.block[1] * record.block[2];
  counts.blocks = double(record.grid[0]) * record.grid[1] * record.grid[2];
  counts.shared_bytes = double(record.shared_bytes);
  counts[Count::read_bytes] = double(c.unique_read_bytes);
  counts[Count::written_bytes] = double(c.unique_written_bytes);
  counts[Count::sectors] = double(c.load.units + c.store.units + c.atomic.units);
  counts[Count::passes] = double(c.shared_load.units + c.shared_store.units);
  counts[Count::mma_flops] = double(c.mma_flops);
  counts[Count::again_in_block] = double(c.in_block.sectors);
  counts[Count::gap_in_block] = c.in_block.mean_distance();
  counts[Count::again_across] = double(c.across_blocks.sectors);
  counts[Count::gap_across] = c.across_blocks.mean_distance();
  return counts;
}

/// One column of a table, and what was counted of it so far.
class Counter {
 public:
  Counter(const PublishedTable& table, const Variant& variant) : table_(table), variant_(variant) {}

  /// The launches of a call with gradients already there; nothing runs, only how work is cut is
  /// known.
  const CallCounts& rehearse(Size size) {
    const auto [it, fresh] = rehearsed_.try_emplace({size.n, size.batch});
    if (fresh) it->second = run(size, false);
    return it->second;
  }
  Sample count(Size size) {
    return {double(tokens_of(table_, size.n)), double(size.batch), run(size, true)};
  }

 private:
  CallCounts run(Size size, bool for_real) {
    const Rehearsal rehearsal;
    emulator::Settings& settings = emulator::settings();
    // Where reads of what nobody wrote are looked for, everything before has to run, too.
    settings.run = for_real && settings.check;
    CallCounts counts;
    with_run(variant_, table_.pass, "cuda", size, Values::zero, [&](const Call& call) {
      call();
      emulator::clear_counters();
      settings.run = for_real;
      call();
      for (const auto& record : emulator::launches()) counts.push_back(counts_of(record));
    });
    return counts;
  }

  const PublishedTable& table_;
  const Variant& variant_;
  std::map<std::pair<std::int64_t, std::int64_t>, CallCounts> rehearsed_;
};

/// Two sizes to draw lines through, and a third to try them on.
struct Plan {
  std::array<std::int64_t, 3> n;
  std::vector<std::int64_t> batches;  // one, or two where the table's own is too large to count
  double cost = 0;

  std::string text() const {
    return fmt::format("n = {}, {} and {}, batch {}", n[0], n[1], n[2],
                       fmt::join(batches, " and "));
  }
};

/// How long a size takes to count, in elements that move through an elementwise kernel.
double cost_of(const PublishedTable& table, Size size) {
  const double tokens = double(tokens_of(table, size.n)) * double(size.batch);
  if (table.family == "tpa_decode") return tokens * 320 * 4;
  const double elements = tokens * 12 * 128;
  return table.family == "flao" ? elements * 8 : elements;
}
constexpr double largest_cost = 250e6;

/// Three sizes with the table's batch, and where that costs much with smaller ones.
void add_plans(const PublishedTable& table, const std::array<std::int64_t, 3>& n,
               std::vector<Plan>& plans) {
  constexpr double much = 24e6;
  const double full = cost_of(table, {n[2], table.batch});
  if (full <= largest_cost) plans.push_back({n, {table.batch}, full});
  if (full <= much) return;
  for (const std::int64_t batch : {table.batch / 4, std::int64_t{1}}) {
    const double cost = 2 * cost_of(table, {n[2], 2 * batch});
    if (cost <= largest_cost) plans.push_back({n, {batch, 2 * batch}, cost});
  }
}

/// What can be counted in seconds, the quickest first.
std::vector<Plan> plans_for(const PublishedTable& table, std::int64_t wanted) {
  std::vector<Plan> plans;
  const bool line = tokens_of(table, 2) == 2;  // else n is the side of a grid
  for (std::int64_t scale = line ? 16 : 2; scale <= 1 << 14; scale *= 2) {
    if (!line) {
      add_plans(table, {2 * scale, 3 * scale, 4 * scale}, plans);
      continue;
    }
    add_plans(table, {4 * scale, 8 * scale, 12 * scale}, plans);
    add_plans(table, {4 * scale, 5 * scale, 6 * scale}, plans);
  }
  if (wanted >= 16) add_plans(table, {wanted * 5 / 8, wanted * 6 / 8, wanted}, plans);
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Plan& a, const Plan& b) { return a.cost < b.cost; });
  return plans;
}

/// Whether all sizes of a plan run the kernels of the size that is wanted; `cut_alike`: and their
/// blocks grow to as many as there.
bool leads_to(Counter& counter, const PublishedTable& table, const Plan& plan, Size wanted,
              bool cut_alike) {
  const CallCounts& target = counter.rehearse(wanted);
  std::vector<Sample> samples;
  for (const std::int64_t batch : plan.batches) {
    for (const std::int64_t n : plan.n) {
      const CallCounts& counts = counter.rehearse({n, batch});
      if (!same_kernels(counts, target)) return false;
      if (n != plan.n[2]) samples.push_back({double(tokens_of(table, n)), double(batch), counts});
    }
  }
  if (!cut_alike) return true;
  for (Sample& sample : samples) {
    for (LaunchCounts& launch : sample.counts) launch[Count::sectors] = launch.blocks;
  }
  const CallCounts grown =
      Growth(samples).at(double(tokens_of(table, wanted.n)), double(wanted.batch));
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (std::abs(grown[i][Count::sectors] - target[i].blocks) > 0.01 * target[i].blocks) {
      return false;
    }
  }
  return true;
}

/// The growth of the counts of rows that run the same kernels.
struct Fit {
  std::optional<Growth> growth;
  Plan plan;
  double deviation = INFINITY;
};

Fit fit_plan(Counter& counter, const Plan& plan) {
  std::vector<Sample> samples;
  for (const std::int64_t batch : plan.batches) {
    for (const std::int64_t n : {plan.n[0], plan.n[1]})
      samples.push_back(counter.count({n, batch}));
  }
  Fit fit{Growth(std::move(samples)), plan, 0};
  fit.deviation = fit.growth->deviation_from(counter.count({plan.n[2], plan.batches.back()}));
  return fit;
}

/// By the first plan that is cut as the wanted size is; where blocks do not grow with the work, by
/// any that runs its kernels.
Fit fit_growth(Counter& counter, const PublishedTable& table, Size wanted) {
  Fit best;
  for (const bool cut_alike : {true, false}) {
    for (const Plan& plan : plans_for(table, wanted.n)) {
      if (!leads_to(counter, table, plan, wanted, cut_alike)) continue;
      Fit fit = fit_plan(counter, plan);
      if (fit.deviation < best.deviation) best = std::move(fit);
      if (best.deviation <= allowed_deviation) return best;
    }
  }
  return best;
}

/// "softmax_rows<4, float>" of "quipu::on_cuda::(anonymous namespace)::softmax_rows<4, float>".
std::string short_name(std::string kernel) {
  const std::size_t arguments = kernel.find('<');
  const std::size_t scope = kernel.rfind("::", arguments);
  if (scope != std::string::npos) kernel.erase(0, scope + 2);
  return kernel.size() > 60 ? kernel.substr(0, 57) + "..." : kernel;
}

std::string text_of(const std::vector<LaunchTime>& launches) {
  std::string text;
  for (const LaunchTime& launch : launches) {
    text +=
        fmt::format("{}{} {:.4f} ms ({:.4g} MB, {})", text.empty() ? "" : "; ",
                    short_name(launch.kernel), launch.ms, launch.memory_bytes / 1e6, launch.bound);
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
    if (!fit.growth) return none;
    CallCounts counts = fit.growth->at(double(tokens_of(table_, n)), double(size.batch));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i].blocks = target[i].blocks;
      counts[i].threads = target[i].threads;
      counts[i].shared_bytes = target[i].shared_bytes;
    }
    const std::vector<LaunchTime> launches = time_of(counts, card_, stated_flops(table_, n));
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
    fits_.emplace_back(target, target.empty() ? Fit{Growth({{0, 1, {}}, {1, 1, {}}}), {}, 0}
                                              : fit_growth(counter_, table_, size));
    const Fit& fit = fits_.back().second;
    if (!fit.growth) {
      notes.push_back(fmt::format(
          "{} up to n = {}: not predicted, its kernels run at no size that could be counted",
          variant_.column, size.n));
    } else if (!target.empty()) {
      notes.push_back(
          fmt::format("{} up to n = {}: counted at {}; the third is met to {:.2g} %{}",
                      variant_.column, size.n, fit.plan.text(), 100 * fit.deviation,
                      fit.deviation > allowed_deviation ? ", so growth is no line" : ""));
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

Comparison predict(const PublishedTable& table, const Card& card, std::int64_t max_n) {
  check(table.kind == Kind::speed, "only speed is predicted, and ", table.name, " is not about it");
  const SettingsScope scope;
  emulator::settings().device_bytes = std::size_t{80} << 30;
  Comparison result{&table, "cuda", variants_of(table), {}, card.title, {}};
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
    release_cached("cuda");
  }
  for (Variant& variant : result.variants) variant.column += "_predicted";
  return result;
}

#endif

}  // namespace quipu::bench
