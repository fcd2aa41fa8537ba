// What is drawn. Word i of a stream is word i % 4 of the block that Philox makes of counter
// offset + i / 4; elements draw by their row-major position.
#include <numbers>
#include <numeric>
#include <vector>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/error.h"
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/dropout_kernels.h"
#include "quipu/ops/index/sample_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

std::uint32_t word(PhiloxState state, std::int64_t i) {
  const auto place = static_cast<std::uint64_t>(i);
  return philox(state.seed, state.offset + place / 4)[place % 4];
}
/// Words 2 i and 2 i + 1 as one.
std::uint64_t wide_word(PhiloxState state, std::int64_t i) {
  return (std::uint64_t{word(state, 2 * i)} << 32) | word(state, 2 * i + 1);
}
/// 53 of its bits, in [0, 1).
double wide_uniform(PhiloxState state, std::int64_t i) {
  return static_cast<double>(wide_word(state, i) >> 11) * 0x1p-53;
}

/// low + floor(range w / 2^64) with a random w of 64 bits.
void random_int(View o, PhiloxState state, std::int64_t low, std::int64_t high) {
  __extension__ using Product = unsigned __int128;
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  WholeArray values(o.numel());
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const Product product = Product{wide_word(state, i)} * range;
    values[i] = plus(low, static_cast<std::int64_t>(product >> 64));
  }
  store(o, values);
}

/// As many bits as the type holds in [0.5, 1), so that nothing is rounded to 1.
void random_uniform(View o, PhiloxState state) {
  const int bits = o.dtype == f32 ? 24 : o.dtype == f16 ? 11 : 8;
  Array values(o.numel());
  for (std::int64_t i = 0; i < values.size(); ++i) {
    values[i] =
        o.dtype == f64 ? wide_uniform(state, i) : std::ldexp(word(state, i) >> (32 - bits), -bits);
  }
  store(o, values);
}

/// Box and Muller 1958: two uniforms, u in (0, 1] and v in [0, 1), become a pair of normals,
/// sqrt(-2 log u) cos(2 pi v) and sqrt(-2 log u) sin(2 pi v). Where cosine or sine is near 0, it is
/// as far off as the rounded angle makes it.
void random_normal(View o, PhiloxState state) {
  Array values(o.numel()), sizes(o.numel());
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const std::int64_t first = i - i % 2, second = first + 1;
    double u, v;
    if (o.dtype == f64) {
      u = wide_uniform(state, first) + 0x1p-53;
      v = wide_uniform(state, second);
    } else {
      u = (word(state, first) + 1.0) * 0x1p-32;
      v = word(state, second) * 0x1p-32;
    }
    const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
    values[i] = radius * (i == first ? std::cos(angle) : std::sin(angle));
    sizes[i] = radius * angle;
  }
  store(o, values);
  note_term_sizes(o, {sizes.begin(), sizes.end()});
}

/// x / (1 - p) where a uniform of 24 bits is at least p, else 0.
void dropout(View x, Target o, double p, PhiloxState state) {
  Array values = read(x).flat;
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const double uniform = (word(state, i) >> 8) * 0x1p-24;
    values[i] = uniform >= p ? values[i] / (1 - p) : 0;
  }
  store(o, values);
}

/// exp((z - max z) / temperature) of the classes that a filter keeps, 0 of all others.
Array weights_of(const Array& z, const SampleFilter& filter, double inverse_temperature) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double lowest = std::numeric_limits<double>::lowest();
  const double largest = z.maxCoeff();
  const Array weights = z.unaryExpr([&](double v) {
    const double below = std::max(v - largest, lowest);  // its product with 0 is 0
    return v == -infinity ? 0 : std::exp(below * inverse_temperature);
  });
  std::vector<std::int64_t> order(static_cast<std::size_t>(z.size()));  // best first
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return z[a] > z[b]; });
  if (filter.top_k > 0 && filter.top_k < z.size()) {
    order.resize(static_cast<std::size_t>(filter.top_k));
  }
  double total = 0, sum = 0;
  for (const std::int64_t i : order) total += weights[i];
  Array kept = Array::Zero(z.size());
  for (const std::int64_t i : order) {
    kept[i] = weights[i];
    sum += weights[i];
    if (filter.top_p < 1 && sum >= filter.top_p * total) break;
  }
  return kept;
}

/// The class at which the running sum of the weights passes a share of their total.
std::int64_t class_at(const Array& weights, double share) {
  const double goal = share * weights.sum();
  double sum = 0;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < weights.size() && sum <= goal; ++i) {
    if (weights[i] > 0) found = i;
    sum += weights[i];
  }
  return found;
}

void sample(View logits, View o, SampleFilter filter, PhiloxState state) {
  // Where the inverse is infinite in the type that is computed in, the first of the largest logits
  // is drawn.
  const double inverse = rounded_to(compute_type(logits.dtype), 1 / filter.temperature);
  Values z = read(logits);
  WholeArray drawn(o.numel());
  for (std::int64_t r = 0; r < drawn.size(); ++r) {
    const Array row = z.rows().row(r).transpose();
    check(!row.isNaN().any() && std::isfinite(row.maxCoeff()), "logits at ", index_of(r, o.shape),
          " hold NaN, +infinity, or nothing but -infinity, so there are no probabilities");
    if (std::isfinite(inverse)) {
      drawn[r] = class_at(weights_of(row, filter, inverse), wide_uniform(state, r));
    } else {
      row.maxCoeff(&drawn[r]);
    }
  }
  store(o, drawn);
}

}  // namespace
}  // namespace reference

void register_reference_random() {
  random_int_kernel.provide(Variant::reference, reference::random_int);
  random_uniform_kernel.provide(Variant::reference, reference::random_uniform);
  random_normal_kernel.provide(Variant::reference, reference::random_normal);
  dropout_kernel.provide(Variant::reference, reference::dropout);
  sample_kernel.provide(Variant::reference, reference::sample);
}

}  // namespace quipu::detail
