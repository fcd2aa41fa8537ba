#pragma once
// One row of logits as a team of threads samples it: which classes are kept, and the draw.
#include <cmath>
#include <limits>

#include "index_check.cuh"
#include "quipu/cuda/tile/philox.cuh"
#include "quipu/cuda/tile/radix.cuh"
#include "quipu/cuda/tile/rows.cuh"

namespace quipu::detail::on_cuda {

using Weight = unsigned long long;

struct SampledRows {
  Walk<1> walk;
  std::uint32_t count;
  std::int64_t first;  // the number of the first row
  void* logits;
  DType dtype;
  std::int64_t step, classes;
  std::int64_t* o;
  double inverse;  // of the temperature
  std::int64_t top_k;
  double top_p;
  double unit;  // fixed-point scale of weights
  PhiloxState state;
  IndexGuard guard;
};

struct SampleScratch {
  static constexpr unsigned warps = block_threads / warp_size;
  unsigned counts[256];
  Weight weights[256];
  Weight sums[warps];
  unsigned slots[2][warps];
  unsigned digit, last;
  Weight before, digit_weight;
  unsigned digit_count;
};

/// One row of logits and which of its classes may be drawn. A team of one thread uses no scratch.
template <class Chunk, unsigned team>
struct SampledRow {
  using T = typename Chunk::Number;
  const SampledRows& rows;
  SampleScratch& work;
  std::int64_t start;
  unsigned thread = threadIdx.x % team;
  T largest = -std::numeric_limits<T>::infinity();
  // The smallest logit that is kept, as a key; how many of those equal to it are, and are not.
  std::uint64_t last = last_key<T>;
  std::int64_t equal_kept = std::numeric_limits<std::int64_t>::max(), equal_left = 0;

  __device__ __forceinline__ T logit(std::int64_t i) const {
    return load_element<T>(rows.logits, rows.dtype, start + i * rows.step);
  }
  /// Calls f with every logit that is this thread's, in any order.
  template <class F>
  __device__ __forceinline__ void each_logit(F f) const {
    const ChunkedRow<Chunk> row(rows.logits, rows.dtype, start, rows.step, rows.classes);
    row.template each_entry<team>(thread, [&](T z, std::int64_t) { f(z); });
  }
  /// exp((z - largest) / temperature)
  __device__ __forceinline__ T share(T z) const {
    constexpr T lowest = std::numeric_limits<T>::lowest();
    if (z == -std::numeric_limits<T>::infinity()) return T(0);
    const T below = z - largest;
    // Finite, because a high temperature may make the factor 0.
    return std::exp((below < lowest ? lowest : below) * static_cast<T>(rows.inverse));
  }
  __device__ __forceinline__ Weight weight(T z) const {
    // Far below 2^52, where the sum is exact enough: NOLINTNEXTLINE(bugprone-incorrect-roundings)
    return static_cast<Weight>(static_cast<double>(share(z)) * rows.unit + 0.5);
  }

  /// False where there are no probabilities: NaN, +infinity, or nothing but -infinity.
  __device__ __forceinline__ bool find_largest(T* scratch) {
    int bad = 0;
    each_logit([&](T z) {
      bad |= z != z ? 1 : 0;
      largest = z > largest ? z : largest;
    });
    largest = fold_team<team>(largest, scratch, [](T a, T b) { return a > b ? a : b; });
    if constexpr (team > 1) bad = __syncthreads_or(bad);
    return bad == 0 && isfinite(largest);
  }

  /// The first of the largest logits.
  __device__ __forceinline__ std::int64_t best(long long* scratch) const {
    long long found = rows.classes;
    for (std::int64_t i = thread; i < rows.classes && found == rows.classes; i += team) {
      if (logit(i) == largest) found = i;
    }
    return fold_team<team>(found, scratch, [](long long a, long long b) { return a < b ? a : b; });
  }

  /// The logits of one key: how many, and their weight.
  struct Level {
    std::uint64_t key;
    Weight count = 0, weight = 0;
  };
  __device__ __forceinline__ Level level_from(std::uint64_t first, bool by_weight) const {
    Level level{~std::uint64_t{0}};
    for (std::int64_t i = 0; i < rows.classes; ++i) {
      const T z = logit(i);
      const std::uint64_t key = key_of(z, true);
      if (key < first || key > last || key > level.key || share(z) == T(0)) continue;
      if (key < level.key) level = {key};
      level.count += 1;
      level.weight += by_weight ? weight(z) : Weight{1};
    }
    return level;
  }

  /// As `narrow`, for a team of one thread.
  __device__ __forceinline__ void narrow_alone(Weight goal, bool by_weight) {
    Weight above = 0;
    Level level = level_from(0, by_weight);
    for (;;) {
      if (level.key == last && equal_left > 0) {
        level.weight = level.weight / level.count * static_cast<Weight>(equal_kept);
        level.count = static_cast<Weight>(equal_kept);
      }
      const Level next = level_from(level.key + 1, by_weight);
      if (above + level.weight >= goal || next.count == 0) break;
      above += level.weight;
      level = next;
    }
    keep_equals(level.key, level.count, level.weight, goal, above);
  }

  /// The last key and how many of its equals are kept, once all above it are.
  __device__ __forceinline__ void keep_equals(std::uint64_t key, Weight count, Weight own,
                                              Weight goal, Weight above) {
    Weight kept = count;
    if (own > 0) {
      const Weight each = own / count;
      const Weight wanted = goal > above ? (goal - above + each - 1) / each : 1;
      kept = wanted < 1 ? 1 : wanted < count ? wanted : count;
    }
    const std::int64_t had_left = key == last ? equal_left : 0;
    last = key;
    equal_kept = static_cast<std::int64_t>(kept);
    equal_left = static_cast<std::int64_t>(count - kept) + had_left;
  }

  /// Histogram of one digit of the keys that agree with `prefix` in the digits before.
  __device__ __forceinline__ void fill_histogram(std::uint64_t prefix, int shift, bool by_weight) {
    for (unsigned digit = thread; digit < 256; digit += team) {
      work.counts[digit] = 0;
      work.weights[digit] = 0;
    }
    __syncthreads();
    each_logit([&](T z) {
      const std::uint64_t key = key_of(z, true);
      if (key > last || ((key ^ prefix) >> shift) > 255 || share(z) == T(0)) return;
      atomicAdd(&work.counts[key >> shift & 255], 1u);
      atomicAdd(&work.weights[key >> shift & 255], by_weight ? weight(z) : Weight{1});
    });
    __syncthreads();
  }

  /// Radix select: keeps the fewest of the largest logits whose weights, or counts, reach a goal.
  /// `unwanted` is the weight of each of those equal to the last that an earlier filter has left
  /// out.
  __device__ __forceinline__ void narrow(Weight goal, bool by_weight, Weight unwanted) {
    constexpr unsigned digits = 256 / team;  // of a thread
    Weight above = 0;
    std::uint64_t prefix = 0;
    for (int shift = 8 * key_digits<T> - 8; shift >= 0; shift -= 8) {
      fill_histogram(prefix, shift, by_weight);
      unsigned counts[digits];
      Weight weights[digits], own = 0;
      for (unsigned j = 0; j < digits; ++j) {
        const unsigned digit = thread * digits + j;
        const bool has_last = ((last ^ prefix) >> shift) == digit;
        counts[j] = work.counts[digit] - (has_last ? static_cast<unsigned>(equal_left) : 0u);
        weights[j] =
            work.weights[digit] - (has_last ? static_cast<Weight>(equal_left) * unwanted : 0);
        own += weights[j];
      }
      if (thread == 0) {
        work.digit = 256;
        work.last = 0;
      }
      Weight total;
      const Weight before = above + sum_before<team>(own, work.sums, total);
      Weight through = before;
      for (unsigned j = 0; j < digits; ++j) {
        through += weights[j];
        if (counts[j] == 0) continue;
        atomicMax(&work.last, thread * digits + j);
        if (through >= goal) atomicMin(&work.digit, thread * digits + j);
      }
      __syncthreads();
      const unsigned digit = work.digit < 256 ? work.digit : work.last;
      if (thread == digit / digits) {
        Weight sum = before;
        for (unsigned j = 0; j < digits;
             ++j) {  // by fixed places, so that arrays stay in registers
          if (j < digit % digits) sum += weights[j];
          if (j != digit % digits) continue;
          work.digit_count = counts[j];
          work.digit_weight = weights[j];
        }
        work.before = sum;
      }
      __syncthreads();
      above = work.before;
      prefix |= std::uint64_t{digit} << shift;
    }
    keep_equals(prefix, work.digit_count, work.digit_weight, goal, above);
    __syncthreads();
  }

  /// The weight of all that is kept.
  __device__ __forceinline__ Weight total() {
    Weight better = 0, equal = 0;
    each_logit([&](T z) {
      const std::uint64_t key = key_of(z, true);
      if (key < last) better += weight(z);
      if (key == last) equal += weight(z);
    });
    const auto plus = [](Weight a, Weight b) { return a + b; };
    better = fold_team<team>(better, work.sums, plus);
    if (equal_left == 0) return better + fold_team<team>(equal, work.sums, plus);
    equal = fold_team<team>(equal, work.sums, plus);
    const auto kept = static_cast<Weight>(equal_kept), left = static_cast<Weight>(equal_left);
    return better + equal / (kept + left) * kept;
  }

  __device__ __forceinline__ void filter(Weight goal, bool by_weight) {
    if constexpr (team == 1) {
      narrow_alone(goal, by_weight);
    } else {
      narrow(goal, by_weight, by_weight ? equal_weight() : 0);
    }
  }
  __device__ __forceinline__ void keep() {
    if (rows.top_k > 0 && rows.top_k < rows.classes) filter(static_cast<Weight>(rows.top_k), false);
    if (rows.top_p < 1) {
      const double goal = ceil(rows.top_p * static_cast<double>(total()));
      filter(static_cast<Weight>(goal), true);
    }
  }
  /// The weight of the last logit that is kept.
  __device__ __forceinline__ Weight equal_weight() {
    if (equal_left == 0) return 0;
    Weight found = 0;
    each_logit([&](T z) {
      if (key_of(z, true) == last) found = weight(z);
    });
    return fold_team<team>(found, work.sums, [](Weight a, Weight b) { return a > b ? a : b; });
  }

  /// The class at which the running sum of the weights passes a share of their total.
  __device__ __forceinline__ std::int64_t draw(Weight target, long long* scratch) {
    long long found = 0;
    Weight passed = 0;
    std::int64_t equals = 0;
    int buffer = 0;
    for (std::int64_t base = 0; base < rows.classes && passed <= target;
         base += team, buffer ^= 1) {
      const std::int64_t i = base + thread;
      const T z = i < rows.classes ? logit(i) : -std::numeric_limits<T>::infinity();
      const std::uint64_t key = key_of(z, true);
      const bool is_equal = i < rows.classes && key == last;
      const Slots slots = slots_in_order<team>(is_equal, work.slots[buffer]);
      const bool kept = key < last || (is_equal && equals + slots.own < equal_kept);
      const Weight own = kept ? weight(z) : 0;
      Weight all;
      const Weight before = passed + sum_before<team>(own, work.sums, all);
      if (before <= target && target < before + own) found = i;  // one thread
      equals += slots.total;
      passed += all;
    }
    return fold_team<team>(found, scratch, [](long long a, long long b) { return a > b ? a : b; });
  }
};

}  // namespace quipu::detail::on_cuda
