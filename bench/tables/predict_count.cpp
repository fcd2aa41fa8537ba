#ifdef QUIPU_EMULATE
#include "predict_count.h"

#include <map>
#include <regex>
#include <tuple>

#include "quipu/core/memory/memory.h"
#include "quipu/cuda/emulator/emulator.h"

namespace quipu::bench {
namespace {

/// The emulator's settings as they are, again when this ends.
class SettingsScope {
 public:
  /// The cards that are predicted for have the shared memory of an A100, or more.
  SettingsScope() : before_(emulator::settings()) {
    emulator::settings().cards = {emulator::find_card("a100")};
  }
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
  counts[Count::lane_bytes] = double(c.load.bytes + c.store.bytes + c.atomic.bytes);
  counts[Count::shared_lane_bytes] = double(c.shared_load.bytes + c.shared_store.bytes);
  counts[Count::barriers] = double(c.barriers);
  counts[Count::again_in_block] = double(c.in_block.sectors);
  counts[Count::gap_in_block] = c.in_block.mean_distance();
  counts[Count::again_shared] = double(c.in_block_of_shared.sectors);
  counts[Count::gap_shared] = c.in_block_of_shared.mean_distance();
  counts[Count::again_across] = double(c.across_blocks.sectors);
  counts[Count::gap_across] = c.across_blocks.mean_distance();
  return counts;
}

}  // namespace

Counter::Counter(const PublishedTable& table, const Variant& variant)
    : table_(table), variant_(variant) {
  // Tables that differ in what others keep for backward have the same columns of ours.
  name_ = std::regex_replace(table.name, std::regex("-cache_.*"), "") + variant.column;
}

Sample Counter::sample(Size size, bool for_real) {
  return {double(tokens_of(table_, size.n)), units_of(size), known(size, for_real)};
}

const CallCounts& Counter::known(Size size, bool for_real) {
  static std::map<std::tuple<std::string, Size, bool>, CallCounts> all;
  const std::tuple key{name_, size, for_real};
  const auto it = all.find(key);
  return it != all.end() ? it->second : all.emplace(key, run(size, for_real)).first->second;
}

CallCounts Counter::run(Size size, bool for_real) const {
  const Rehearsal rehearsal;
  emulator::Settings& settings = emulator::settings();
  settings.device_bytes = std::size_t{80} << 30;
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

}  // namespace quipu::bench
#endif
