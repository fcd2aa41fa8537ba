#pragma once
// Philox random numbers: value i of a call depends on the seed and its position alone, so bits are
// the same on every device and for any number of threads.
#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace quipu {
namespace detail {

/// Which numbers a kernel draws: a key and the first counter. Four 32-bit words a counter.
struct PhiloxState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  /// While a StepGraph is recorded: seed and first counter in device memory, as they are at each
  /// replay. Then `offset` counts from there, and `seed` does not matter.
  const std::uint64_t* origin = nullptr;
  bool operator==(const PhiloxState&) const = default;
};

class DrawScope;
class StepRecorder;

}  // namespace detail

/// A stream of random numbers: a seed and the position behind the last number drawn. Threads may
/// share it; each draw gets numbers of its own.
class Generator {
 public:
  /// At the start of the stream of `seed`.
  explicit Generator(std::uint64_t seed = 0) : state_{seed, 0} {}
  /// Back to the start of the stream of `seed`, as a new generator.
  void seed(std::uint64_t seed);
  /// State to save and to restore; afterwards the same numbers come again.
  detail::PhiloxState state() const;
  /// Continues from a state that state() gave, also of another generator.
  void set_state(detail::PhiloxState state);
  /// Hands out `counters` counters and moves past them.
  detail::PhiloxState reserve(std::uint64_t counters);

 private:
  friend class detail::DrawScope;
  friend class detail::StepRecorder;
  detail::PhiloxState take(std::uint64_t counters);
  detail::PhiloxState advance(std::uint64_t counters);
  mutable std::mutex mutex_;
  detail::PhiloxState state_;
};

/// The generator that random operators use unless told otherwise.
Generator& default_generator();
/// Seeds the default generator.
void manual_seed(std::uint64_t seed);

/// Philox4x32-10 of one counter: random words without a generator, for a data set that makes sample
/// `counter` from nothing else.
std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint64_t counter);

namespace detail {

/// While it lives, what all generators hand out on this thread is noted, or what was noted is
/// handed out again whatever the state of the generators, which then stay as they are.
class DrawScope {
 public:
  enum class Mode { note, repeat };
  DrawScope(std::vector<PhiloxState>& draws, Mode mode);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  friend class quipu::Generator;
  PhiloxState next(Generator& generator, std::uint64_t counters);
  std::vector<PhiloxState>& draws_;
  Mode mode_;
  std::size_t repeated_ = 0;
  DrawScope* outer_;
};

/// What to reserve for a call that draws n values: kernels use at most one counter for two of them.
constexpr std::uint64_t philox_counters(std::int64_t n) {
  return static_cast<std::uint64_t>(n) / 2 + 1;
}

}  // namespace detail
}  // namespace quipu
