// Sampling against a plain reference on the host: which classes may be drawn, and how often.
#include "quipu/ops/index/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/loss_checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// The probabilities by the definition: sorted, cut off, normalised.
std::vector<double> probabilities(const std::vector<double>& logits, double temperature,
                                  std::int64_t top_k, double top_p) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return logits[i] > logits[j]; });
  if (top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(top_k)));
  std::vector<double> p(logits.size(), 0.0);
  double total = 0, kept = 0;
  for (const std::size_t i : order) {
    total += p[i] = std::exp((logits[i] - logits[order[0]]) / temperature);
  }
  for (const std::size_t i : order) {
    if (kept > 0 && kept >= top_p * total) p[i] = 0;
    kept += p[i];
  }
  for (double& value : p) value /= kept;
  return p;
}

/// How far counts are from what probabilities let expect, in the usual measure.
double chi_square(const std::vector<double>& drawn, const std::vector<double>& p) {
  std::vector<double> counts(p.size(), 0.0);
  for (const double c : drawn) counts[static_cast<std::size_t>(c)] += 1;
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * static_cast<double>(drawn.size());
    if (expected == 0 && counts[i] == 0) continue;
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}
constexpr double unlikely = 35;  // for up to 7 degrees of freedom: once in 90000 seeds

struct Setting {
  double temperature;
  std::int64_t top_k;
  double top_p;
};
const Setting settings[] = {{1, 0, 1},     {0.5, 0, 1},   {2, 3, 1},    {1, 0, 0.7},
                            {0.7, 5, 0.9}, {1, 1, 1},     {1, 0, 0},    {3, 0, 0.999},
                            {1, 100, 1},   {1, 2, 0.999}, {10, 7, 0.3}, {1e30, 0, 0.5}};

Tensor draw(const Tensor& logits, const Setting& s, std::uint64_t seed = 5) {
  Generator generator(seed);
  return sample(logits, {s.temperature, s.top_k, s.top_p, &generator});
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "sample: draws as often as the probabilities say") {
  const std::vector<double> z{0.5, -1, 2, 1.75, -infinity, 0, 1, -3};
  const std::int64_t draws = sized(20000, 4000);
  const Tensor rows = from(z, {1, 8}, f64, device).expand({draws, 8});
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const Setting& s : settings) {
      CAPTURE(dtype);
      CAPTURE(s.temperature);
      CAPTURE(s.top_k);
      CAPTURE(s.top_p);
      const Tensor drawn = draw(rows.to(dtype), s);
      CHECK(drawn.shape() == Shape{draws});
      const std::vector<double> p = probabilities(z, s.temperature, s.top_k, s.top_p);
      CHECK(chi_square(drawn.to_vector(), p) < unlikely);
    }
  }
  // Another temperature does not get by.
  const std::vector<double> wrong = probabilities(z, sized(1.1, 1.3), 0, 1);
  CHECK(chi_square(draw(rows, {1, 0, 1}).to_vector(), wrong) > 2 * unlikely);
}

TEST_CASE_FIXTURE(EachDevice, "sample: nothing outside top_k and top_p ever comes") {
  for (const std::int64_t classes : {1, 2, 17, 300, sized(5003, 1101)}) {
    const std::int64_t rows = classes > 1000 ? sized(20, 4) : classes > 100 ? sized(200, 20) : 200;
    // Multiples of a quarter, so that many are equal.
    const Tensor logits = (normals({rows, classes}, f64, device) * 8).to(i64).to(f64) * 0.25;
    for (const Setting& s : settings) {
      CAPTURE(classes);
      CAPTURE(s.top_k);
      CAPTURE(s.top_p);
      for (const DType dtype : {f64, f32}) {
        const std::vector<double> drawn = draw(logits.to(dtype), s).to_vector();
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::vector<double> p =
              probabilities(logits[r].to_vector(), s.temperature, s.top_k, s.top_p);
          CHECK(p[static_cast<std::size_t>(drawn[static_cast<std::size_t>(r)])] > 0);
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "sample: exactly k of equal classes, the first ones") {
  const std::int64_t classes = sized(3000, 1200);
  const Tensor equal = zeros({sized(2000, 64), classes}, f32, device);
  CHECK(max(draw(equal, {1, 5, 1})).item() == 4);
  CHECK(max(draw(equal, {1, 8, 0.5})).item() == 3);
  CHECK(max(draw(equal, {1, 0, 0.5})).item() < classes / 2);
  CHECK(max(draw(equal, {1, 0, 1})).item() > sized(2900, 1000));
  const Tensor zero_signs = from({-0.0, 0.0, -0.0}, {1, 3}, f64, device).expand({100, 3});
  CHECK(max(draw(zero_signs, {1, 1, 1})).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "sample: temperature 0 takes the first of the largest") {
  const Tensor logits = (normals({50, 300}, f64, device) * 2).to(i64).to(f64);
  const Tensor best = argmax(logits, -1);
  for (const DType dtype : {f64, f32, bf16, f16}) {
    Generator generator(1);
    const PhiloxState before = generator.state();
    CHECK(same_bits(sample(logits.to(dtype), {.temperature = 0, .generator = &generator}), best));
    CHECK(generator.state() == before);
    CHECK(same_bits(draw(logits.to(dtype), {1e-310, 0, 1}), best));
    CHECK(same_bits(draw(logits.to(dtype), {1, 1, 1}), best));
    CHECK(same_bits(draw(logits.to(dtype), {1, 0, 0}), best));
  }
}

TEST_CASE_FIXTURE(EachDevice, "sample: a draw depends on the state and the position alone") {
  const Tensor logits = normals({6, 50, 70}, f32, device);
  Generator generator(9);
  const PhiloxState start = generator.state();
  const Tensor first = sample(logits, {.generator = &generator});
  const Tensor second = sample(logits, {.generator = &generator});
  CHECK(!same_bits(first, second));
  generator.set_state(start);
  CHECK(same_bits(sample(logits, {.generator = &generator}), first));
  generator.set_state(start);
  CHECK(same_bits(sample(logits.slice(0, 0, 2), {.generator = &generator}), first.slice(0, 0, 2)));

  manual_seed(3);
  const Tensor by_default = sample(logits);
  manual_seed(3);
  CHECK(same_bits(sample(logits), by_default));
}

TEST_CASE_FIXTURE(EachDevice, "sample: any strides, sizes and number of threads") {
  const int threads = num_threads();
  for (const Shape& shape : {Shape{5}, Shape{1, 1}, Shape{0, 4}, Shape{0, 0}, Shape{3, 4, 5},
                             Shape{sized(300, 20), 129}, Shape{2, sized(20000, 1101)}}) {
    for (const Setting& s : settings) {
      const Tensor logits = normals(shape, f32, device);
      set_num_threads(1);
      const Tensor wanted = draw(logits, s);
      for (const Tensor& view : strided_forms(logits)) CHECK(same_bits(draw(view, s), wanted));
      for (const int count : {2, 3}) {
        set_num_threads(count);
        CHECK(same_bits(draw(logits, s), wanted));
      }
    }
  }
  set_num_threads(threads);
}

TEST_CASE_FIXTURE(EachDevice, "sample: logits at the ends of the range") {
  const Tensor far = from({-3e38, 3e38, 3e38}, {1, 3}, f32, device).expand({200, 3});
  for (const Setting& s : settings)
    CHECK(min(draw(far, s)).item() >= (s.temperature > 1e29 ? 0 : 1));
  const Tensor only = from({-infinity, -infinity, -500.0}, {1, 3}, f64, device).expand({200, 3});
  for (const Setting& s : settings) CHECK(min(draw(only, s)).item() == 2);
  CHECK(min(draw(only, {0, 0, 1})).item() == 2);
}

TEST_CASE_FIXTURE(EachDevice, "sample: works on meta") {
  const Tensor logits = empty({3, 4, 5}, bf16, meta_of(device));
  for (const Setting& s : settings) CHECK(draw(logits, s).shape() == Shape{3, 4});
  const auto peak_on = [](Device where) {
    const Tensor there = zeros({40, 1000}, f32, where);
    const PeakMemory peak(where);
    draw(there, {1, 50, 0.9});
    return peak.bytes_above();
  };
  CHECK(peak_on(meta_of(device)) == peak_on(device));
  CHECK(peak_on(device) == 512);
}

TEST_CASE("sample: says what does not fit") {
  const Tensor logits = zeros({2, 3, 4});
  expect_error([] { sample(arange(3)); }, "sample", "logits is i64");
  expect_error([] { sample(ones({})); }, "sample", "at least one dimension");
  expect_error([] { sample(ones({2, 0})); }, "sample", "no class to draw");
  const auto expect = [&](const SampleOptions& options, const char* text) {
    expect_error([&] { sample(logits, options); }, "sample", text);
  };
  expect({.temperature = -1}, "temperature is -1");
  expect({.temperature = infinity}, "temperature is inf");
  expect({.top_k = -1}, "top_k is -1");
  expect({.top_p = 1.5}, "top_p is 1.5");
  expect({.top_p = std::nan("")}, "top_p is");
  for (const double temperature : {0.0, 1.0}) {
    for (const double bad : {std::nan(""), infinity, -infinity}) {
      const Tensor z = zeros({2, 3, 4});
      z[1][2].fill_(bad);
      expect_error([&] { sample(z, {.temperature = temperature}); }, "sample", "logits at (1, 2)");
    }
  }
}
