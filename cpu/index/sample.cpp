// Sampling. Rows are independent and go to the threads. Nothing is sorted and nothing stored: a
// filter is a threshold, found digit by digit from histograms of the logits' bits (of counts for
// top_k, of probabilities for top_p), and the draw walks through what is left in the order of the
// classes. A row is read three times, and four times more for each filter (eight in f64); rows are
// short enough to stay in a cache. Bound by exp.
#include <array>
#include <atomic>
#include <cmath>

#include "quipu/core/error.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/rows.h"
#include "quipu/cpu/simd/philox_words.h"
#include "quipu/cpu/simd/whole_numbers.h"
#include "quipu/ops/index/sample_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t piece = 2048;
constexpr std::int64_t task = 16384;  // entries that are worth a task of their own

/// Bits in the order of the numbers; both zeros are one.
template <class T>
typename math::Format<T>::Bits ordered_bits(T x) {
  using Bits = typename math::Format<T>::Bits;
  constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
  const Bits bits = math::bits_of(x + T(0));
  return bits & sign ? ~bits : bits | sign;
}

/// One row of logits and which of its classes may be drawn.
template <class T>
class Row {
 public:
  using Bits = typename math::Format<T>::Bits;

  Row(const View& logits, std::int64_t start, const SampleFilter& filter)
      : logits_(logits),
        start_(start),
        stride_(logits.strides.back()),
        classes_(logits.shape.back()),
        inverse_(static_cast<T>(1 / filter.temperature)) {}

  /// False where there are no probabilities: NaN, +infinity, or nothing but -infinity.
  bool find_largest() {
    int bad = 0;
    for_each_piece([&](std::int64_t, const T* z, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) bad |= z[i] != z[i] ? 1 : 0;
      largest_ = std::max(largest_, row_maximum(z, n));
      return true;
    });
    return bad == 0 && std::isfinite(largest_);
  }

  /// The first of the largest logits.
  std::int64_t best() const {
    std::int64_t found = 0;
    for_each_piece([&](std::int64_t first, const T* z, std::int64_t n) {
      const T* place = std::find(z, z + n, largest_);
      found = first + (place - z);
      return place == z + n;
    });
    return found;
  }

  /// True where the temperature leaves the largest alone.
  bool is_frozen() const { return !std::isfinite(inverse_); }

  void keep(const SampleFilter& filter) {
    if (filter.top_k > 0 && filter.top_k < classes_) {
      narrow([](T) { return 1.0; }, static_cast<double>(filter.top_k));
    }
    if (filter.top_p < 1) {
      narrow([](T weight) { return static_cast<double>(weight); }, filter.top_p * total());
    }
  }

  /// The class at which the running sum of the weights passes a share of their total.
  std::int64_t draw(double uniform) const {
    const double target = uniform * total();
    double sum = 0;
    std::int64_t found = 0;
    for_each_weights([&](std::int64_t first, const T*, const T* weights, std::int64_t n) {
      const double next = sum + static_cast<double>(row_sum(weights, n));
      const bool here = next > target;
      for (std::int64_t i = 0; i < n && (here || next == target); ++i) {
        if (weights[i] == 0) continue;
        found = first + i;
        sum += static_cast<double>(weights[i]);
        if (sum > target) break;
      }
      sum = next;
      return !here;
    });
    return found;
  }

 private:
  /// Calls f(first, z, n) for all pieces until it returns false.
  template <class F>
  void for_each_piece(F f) const {
    alignas(64) T tile[piece];
    for (std::int64_t first = 0; first < classes_; first += piece) {
      const std::int64_t n = std::min(piece, classes_ - first);
      if (!f(first, read_row(tile, logits_, start_ + first * stride_, stride_, n), n)) return;
    }
  }

  /// Calls f(first, z, weights, n), where weights are exp((z - largest) / temperature), 0 for
  /// classes that are not kept, until it returns false.
  template <class F>
  void for_each_weights(F f) const {
    std::int64_t equal_left = equal_kept_;
    for_each_piece([&](std::int64_t first, const T* z, std::int64_t n) {
      alignas(64) T weights[piece];
      constexpr T lowest = std::numeric_limits<T>::lowest();
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i) {
        const T below = z[i] - largest_;
        // Finite, because a high temperature may make the factor 0.
        const T e = math::exp_below((below < lowest ? lowest : below) * inverse_);
        weights[i] = z[i] == -std::numeric_limits<T>::infinity() ? T(0) : e;
      }
      if (filtered_) {
        for (std::int64_t i = 0; i < n; ++i) {
          const Bits bits = ordered_bits(z[i]);
          if (bits < lowest_ || (bits == lowest_ && equal_left-- <= 0)) weights[i] = 0;
        }
      }
      return f(first, z, weights, n);
    });
  }

  double total() const {
    double sum = 0;
    for_each_weights([&](std::int64_t, const T*, const T* weights, std::int64_t n) {
      sum += static_cast<double>(row_sum(weights, n));
      return true;
    });
    return sum;
  }

  /// Keeps the fewest of the largest logits whose measures, which depend on their weights, reach a
  /// goal. Finds the lowest of them, eight bits at a time.
  template <class Measure>
  void narrow(Measure measure, double goal) {
    double above = 0;  // the measure of what is larger than the prefix
    Bits prefix = 0;
    Digit digit;
    for (int shift = 8 * static_cast<int>(sizeof(T)) - 8; shift >= 0; shift -= 8) {
      std::array<Digit, 256> histogram{};
      for_each_weights([&](std::int64_t, const T* z, const T* weights, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          const Bits bits = ordered_bits(z[i]);
          if (weights[i] == 0 || ((bits ^ prefix) >> shift) > 255) continue;
          histogram[static_cast<std::size_t>(bits >> shift & 255)].add(measure(weights[i]));
        }
        return true;
      });
      std::size_t d = 255;
      const auto reached = [&] { return above + histogram[d].sum >= goal; };
      std::size_t lowest = 0;  // with anything in it; sums may fall short of the goal by rounding
      while (histogram[lowest].count == 0 && lowest < 255) ++lowest;
      for (; d > lowest && (histogram[d].count == 0 || !reached()); --d) above += histogram[d].sum;
      digit = histogram[d];
      prefix |= static_cast<Bits>(d) << shift;
    }
    lowest_ = prefix;
    equal_kept_ = digit.count;
    const double each = digit.sum / static_cast<double>(std::max<std::int64_t>(digit.count, 1));
    for (std::int64_t few = 1; few < digit.count; ++few) {
      if (above + static_cast<double>(few) * each < goal) continue;
      equal_kept_ = few;
      break;
    }
    filtered_ = true;
  }

  /// The logits with one value of the bits that are looked at.
  struct Digit {
    double sum = 0;
    std::int64_t count = 0;
    void add(double measure) {
      sum += measure;
      ++count;
    }
  };

  const View& logits_;
  std::int64_t start_, stride_, classes_;
  T inverse_, largest_ = -std::numeric_limits<T>::infinity();
  bool filtered_ = false;
  Bits lowest_ = 0;              // the smallest logit that is kept
  std::int64_t equal_kept_ = 0;  // how many of those equal to it are
};

double uniform_of(PhiloxState state, std::int64_t row) {
  std::uint32_t words[2];
  philox_words(words, state, 2 * static_cast<std::uint64_t>(row), 2);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

template <class T>
void sample_as(const View& logits, const View& o, const SampleFilter& filter, PhiloxState state) {
  Layout<1> leading{o.shape, {logits.strides}};
  leading[0].erase(logits.dim() - 1);
  const Layout<1> layout = leading.merged();
  const std::int64_t rows = o.numel();
  std::atomic<std::int64_t> first_bad{rows};
  parallel_for(rows, std::max<std::int64_t>(1, task / logits.shape.back()),
               [&](std::int64_t begin, std::int64_t end) {
                 Odometer<1> place(layout);
                 place.seek(begin);
                 for (std::int64_t r = begin; r < end; ++r, place.next()) {
                   Row<T> row(logits, place.offsets()[0], filter);
                   if (!row.find_largest()) {
                     for (std::int64_t known = first_bad;
                          r < known && !first_bad.compare_exchange_weak(known, r);) {
                     }
                     continue;
                   }
                   if (!row.is_frozen()) row.keep(filter);
                   o.as<std::int64_t>()[r] =
                       row.is_frozen() ? row.best() : row.draw(uniform_of(state, r));
                 }
               });
  check(first_bad == rows, "logits at ", index_of(o.shape, first_bad < rows ? first_bad.load() : 0),
        " hold NaN, +infinity, or nothing but -infinity, so there are no probabilities");
}

void sample(View logits, View o, SampleFilter filter, PhiloxState state) {
  if (o.numel() == 0) return;
  (logits.dtype == f64 ? sample_as<double> : sample_as<float>)(logits, o, filter, state);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_sample() {
  sample_kernel.provide(Variant::cpu, on_cpu::sample);
}

}  // namespace quipu::detail
