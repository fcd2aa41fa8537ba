#include "limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "quipu/core/devices.h"
#include "quipu/core/error.h"
#include "quipu/core/tensor.h"
#include "quipu/core/threads/parallel.h"

namespace quipu::bench {
using namespace detail;
namespace {

/// Seconds of the fastest of `runs` calls.
template <class F>
double best_seconds(int runs, F f) {
  double best = 1e300;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// `steps` multiply-adds in each of several independent chains: more chains than a multiply-add
/// takes cycles, times the two that can start in each, and all of them in registers. A macro,
/// because a vector type is cut to what the function that it stands in may use. // NOLINTBEGIN
#define QUIPU_CHAINS(name, attribute, vector_bytes, chains)                                        \
  template <class T>                                                                               \
  struct name {                                                                                    \
    static constexpr double multiply_adds =                                                        \
        static_cast<double>(vector_bytes / sizeof(T)) * chains;                                    \
    attribute static T run(T factor, T summand, std::int64_t steps) {                              \
      typedef T Vector __attribute__((vector_size(vector_bytes)));                                 \
      const Vector f = Vector{} + factor, s = Vector{} + summand;                                  \
      Vector sums[chains];                                                                         \
      for (int i = 0; i < chains; ++i) sums[i] = Vector{} + T(i); /* different, or they are one */ \
      for (std::int64_t step = 0; step < steps; ++step) {                                          \
        _Pragma("GCC unroll 24") for (int i = 0; i < chains; ++i) sums[i] = sums[i] * f + s;       \
      }                                                                                            \
      Vector total{};                                                                              \
      for (const Vector& sum : sums) total += sum;                                                 \
      return total[0];                                                                             \
    }                                                                                              \
  };
// NOLINTEND
// For the levels of the library's kernels, and for what this file is compiled for.
#if defined(__x86_64__)
QUIPU_CHAINS(ChainsV3, [[gnu::target("avx2,fma")]], 32, 12)
QUIPU_CHAINS(ChainsV4, [[gnu::target("avx512f")]], 64, 24)
#endif
#if defined(__AVX512F__)
QUIPU_CHAINS(Chains, , 64, 24)
#elif defined(__AVX__)
QUIPU_CHAINS(Chains, , 32, 12)
#else
QUIPU_CHAINS(Chains, , 16, 12)
#endif

template <class T, template <class> class Chains>
double measure_peak() {
  constexpr std::int64_t steps = 1 << 14;
  // Read at run time, so that nothing can be computed in advance.
  volatile T factor = T(0.5), summand = T(1), sink = T(0);
  // Eight chunks a thread let a thread that came late catch up.
  const int chunks = 8 * num_threads();
  const double seconds = best_seconds(100, [&] {
    parallel_for(chunks, 1, [&](std::int64_t, std::int64_t) {
      const T result = Chains<T>::run(factor, summand, steps);
      if (result == T(-1)) sink = result;
    });
  });
  return 2.0 * Chains<T>::multiply_adds * static_cast<double>(steps) * chunks / seconds;
}

template <class T>
double measure_peak_of_level() {
#if defined(__x86_64__)
  const std::string_view level = cpu_level();
  if (level.starts_with("v4")) return measure_peak<T, ChainsV4>();
  if (level == "v3") return measure_peak<T, ChainsV3>();
#endif
  return measure_peak<T, Chains>();
}

}  // namespace

double copy_bandwidth(std::size_t bytes) {
  constexpr std::int64_t grain = 256 << 10;
  // Tensors, so that the limit has the same pages behind it as what is measured against it.
  const auto size = static_cast<std::int64_t>(bytes);
  std::vector<Tensor> from, to;
  for (int i = 0; i < copies_in_turn; ++i) {
    from.push_back(ones({size}, u8));
    to.push_back(ones({size}, u8));
  }
  std::vector<double> times;
  for (std::size_t run = 0; run < 5 * copies_in_turn; ++run) {
    const auto* source = from[run % copies_in_turn].data<std::uint8_t>();
    auto* target = to[run % copies_in_turn].data<std::uint8_t>();
    times.push_back(best_seconds(1, [&] {
      parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
        std::memcpy(target + begin, source + begin, static_cast<std::size_t>(end - begin));
      });
    }));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  const double seconds = times[times.size() / 2];
  return 2.0 * static_cast<double>(bytes) / seconds;
}

double multiply_add_peak(DType dtype) {
  check(dtype == f32 || dtype == f64, "multiply_add_peak: wanted f32 or f64, got ", dtype);
  return dtype == f32 ? measure_peak_of_level<float>() : measure_peak_of_level<double>();
}

double copy_limit() {
  static const double bandwidth = copy_bandwidth(16 << 20);
  return bandwidth;
}

double peak_limit(DType dtype) {
  static const double single = multiply_add_peak(f32), twice = multiply_add_peak(f64);
  return dtype == f64 ? twice : single;
}

}  // namespace quipu::bench
