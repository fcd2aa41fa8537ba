#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "attention_support.h"
#include "quipu/ops/attention_kernels.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::softmax_attention;

namespace {

/// The root of the mean square difference.
double mean_square(const Tensor& x, const Tensor& wanted) {
  const Tensor off = x.to(f64) - wanted.to(f64);
  return std::sqrt(mean(off * off).item());
}

const Size small_sizes[] = {
    {1, 1, 1, 1, 1, 1, 1}, {2, 2, 1, 3, 3, 4, 4}, {1, 2, 2, 3, 5, 2, 3}, {2, 1, 3, 4, 2, 3, 5},
    {1, 3, 1, 5, 4, 1, 2}, {3, 1, 1, 1, 7, 5, 3}, {1, 2, 3, 1, 4, 3, 1}, {2, 1, 2, 7, 7, 2, 2},
    {1, 1, 1, 9, 3, 4, 5}, {1, 1, 4, 2, 6, 7, 4}, {1, 4, 1, 4, 5, 3, 3}, {4, 4, 1, 3, 2, 3, 2},
    {8, 2, 2, 2, 3, 2, 2}, {1, 1, 1, 6, 1, 3, 3}, {2, 2, 2, 1, 1, 2, 3}, {1, 17, 1, 2, 2, 1, 1}};
/// Several blocks of keys and parts of them, tiles of rows and units of work; wide features; many
/// heads and few.
const Size larger[] = {{2, 3, 1, 130, 130, 32, 32},  {1, 2, 3, 70, 150, 17, 40},
                       {2, 8, 1, 100, 67, 33, 9},    {1, 16, 2, 50, 129, 20, 65},
                       {1, 1, 1, 300, 400, 64, 64},  {1, 1, 2, 65, 70, 300, 512},
                       {16, 1, 1, 50, 40, 512, 100}, {1, 1, 1, 13, 9, 512, 512}};
/// The same where every access takes its time.
const Size larger_emulated[] = {{2, 1, 1, 66, 70, 32, 32}, {1, 2, 3, 25, 70, 17, 40},
                                {1, 2, 1, 30, 67, 33, 9},  {1, 2, 2, 10, 129, 20, 65},
                                {1, 1, 1, 70, 67, 64, 64}, {1, 1, 2, 5, 70, 130, 100},
                                {1, 1, 1, 3, 5, 512, 16},  {1, 1, 1, 5, 3, 16, 512}};

const AttentionOptions option_rows[] = {
    {}, {.causal = true}, {.scale = 0.3}, {.causal = true, .scale = -1.2}};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "attention: agrees with its composition in f64") {
  std::vector<Size> sizes(std::begin(small_sizes), std::end(small_sizes));
  const auto& more = is_emulated(device) ? larger_emulated : larger;
  int number = 0;
  sizes.insert(sizes.end(), std::begin(more), std::end(more));
  for (const Size& s : sizes) {
    CAPTURE(text(s));
    const Three in = inputs_of(s, f64, device);
    const Tensor d_o = randn(output_of(s), f64, device);
    for (const AttentionOptions& options : option_rows) {
      CAPTURE(options.causal);
      if (is_emulated(device) && number++ % 5 % 2 == 1) continue;  // every size has two or three
      const Three ours = everything(fused, in, d_o, options);
      const Three theirs = everything(composed, in, d_o, options);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        CHECK(allclose(ours[i], theirs[i], {1e-12, 1e-12 * std::max(1.0, largest_of(theirs[i]))}));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "attention: no further from the truth than the composition") {
  const std::vector<Size> usual = {
      {2, 8, 1, 128, 128, 32, 32}, {1, 2, 2, 200, 300, 64, 64}, {1, 1, 1, 64, 1000, 40, 16}};
  const std::vector<Size> emulated = {
      {1, 2, 1, 70, 70, 32, 32}, {1, 1, 2, 40, 150, 64, 64}, {1, 1, 1, 30, 400, 40, 16}};
  for (const Size& s : is_emulated(device) ? emulated : usual) {
    CAPTURE(text(s));
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(dtype);
      for (const bool causal : {false, true}) {
        CAPTURE(causal);
        const AttentionOptions options{.causal = causal};
        const Three in = inputs_of(s, dtype, device);
        const Tensor d_o = random_tensor(output_of(s), dtype, device);
        const Three exact = everything(fused, as(f64, in), d_o.to(f64), options);
        const Three ours = everything(fused, in, d_o, options);
        const Three theirs = everything(composed, in, d_o, options);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          CAPTURE(i);
          // On the whole it is closer, but for gradients in f32, and on CUDA for the output, too:
          // there the composition has sums of weights in f64. Emulated, where products are rounded
          // before they are added, outputs are 1.42 times as far and gradients 1.49 times.
          const double times = dtype == f32 && (i > 0 || device.is_cuda()) ? 1.5 : 1;
          CHECK(mean_square(ours[i], exact[i]) <= times * mean_square(theirs[i], exact[i]));
          // The worst entry: sums of so many terms in f32; in reduced types the last rounding and,
          // in gradients, that of the output.
          const double terms = static_cast<double>(std::max(s.n, s.m));
          const double floor = (dtype == f32 ? std::sqrt(terms) : 1) * epsilon_of(dtype);
          const double mine = distance(ours[i], exact[i]);
          CHECK(mine <= std::max(distance(theirs[i], exact[i]), floor));
          CHECK(mine <= 2 * floor);
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "attention: gradients of every input, all sizes and options") {
  int checked = 0;
  for (const Size& s : small_sizes) {
    CAPTURE(text(s));
    for (int i = 0; i < (is_emulated(device) ? 1 : 2); ++i) {
      const AttentionOptions& options = option_rows[checked % 4];
      const auto f = [&](const Three& in) { return fused(in, options); };
      CHECK(gradcheck(f, wanting(inputs_of(s, f64, device))));
      ++checked;
    }
  }
  CHECK(checked >= (is_emulated(device) ? 16 : 30));
}

TEST_CASE_FIXTURE(EachDevice, "attention: every subset of inputs that want gradients") {
  const std::vector<Size> usual = {{2, 2, 2, 3, 4, 3, 2}, {4, 4, 1, 3, 2, 2, 3}};
  const std::vector<Size> emulated = {{1, 1, 2, 3, 4, 3, 2}};
  for (const Size& s : is_emulated(device) ? emulated : usual) {
    CAPTURE(text(s));
    for (unsigned subset = 1; subset < 8; ++subset) {
      CAPTURE(subset);
      for (const bool causal : {false, true}) {
        const auto f = [&](const Three& in) { return fused(in, {.causal = causal}); };
        CHECK(gradcheck(f, wanting(inputs_of(s, f64, device), subset)));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "attention: causal means the last query sees everything") {
  const Size s{1, 2, 1, 5, 8, 4, 3};
  const Three in = inputs_of(s, f64, device);
  const Tensor all = fused(in, {.causal = true});
  for (std::int64_t i = 0; i < s.n; ++i) {
    const std::int64_t seen = i + 1 + s.m - s.n;
    const Tensor one = attention(in[0].slice(2, i, i + 1), in[1].slice(2, 0, seen),
                                 in[2].slice(2, 0, seen), {.causal = true});
    CHECK(allclose(all.slice(2, i, i + 1), one, {1e-12, 1e-12}));
  }
  // More queries than keys: the first ones attend to nothing.
  const Three few = {in[0], in[1].slice(2, 0, 2), in[2].slice(2, 0, 2)};
  const AttentionOutput out = attention_with_lse(few[0], few[1], few[2], {.causal = true});
  CHECK(largest_of(out.o.slice(2, 0, 3)) == 0);
  CHECK(largest_of(out.o.slice(2, 3, 5)) > 0);
  for (const double v : out.lse.slice(2, 0, 3).to_vector()) {
    CHECK(v == -std::numeric_limits<double>::infinity());
  }
  const Three d = everything(fused, few, randn({1, 2, 5, 3}, f64, device), {.causal = true});
  CHECK(largest_of(d[1].slice(2, 0, 3)) == 0);
}

TEST_CASE_FIXTURE(EachDevice, "attention: large scores and not a number") {
  const Size s{1, 2, 1, 20, 150, 8, 3};
  Three in = inputs_of(s, f32, device);
  const AttentionOptions steep{.scale = 1e4};
  const Tensor d_o = randn(output_of(s), f32, device);
  const Three ours = everything(fused, in, d_o, steep);
  const Three exact = everything(fused, as(f64, in), d_o.to(f64), steep);
  // Scores of 1e5 are off by a part of 1e-2, and so are the weights.
  CHECK(distance(ours[0], exact[0]) <= 2e-2);
  CHECK(distance(ours[3], exact[3]) <= 2e-2);
  // Weights are 0 or 1: what is left of the other gradients is rounding, scaled.
  for (const std::size_t i : {1u, 2u}) {
    for (const double v : ours[i].to_vector()) CHECK(std::isfinite(v));
  }
  in[1].slice(2, 77, 78).slice(1, 1, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  const Tensor o = fused(in);
  for (const double v : o.slice(1, 0, 1).to_vector()) CHECK(std::isfinite(v));
  for (const double v : o.slice(1, 1, 2).to_vector()) CHECK(std::isnan(v));
  const Three d = everything(fused, in, d_o);
  for (const double v : d[1].slice(1, 1, 2).to_vector()) CHECK(std::isnan(v));
  for (const double v : d[3].slice(1, 0, 1).to_vector()) CHECK(std::isfinite(v));
}

TEST_CASE_FIXTURE(EachDevice, "attention: gradients of scores beyond the range of f16") {
  const Size s{1, 1, 2, 35, 70, 16, 32};
  const Three in = inputs_of(s, f16, device);
  in[1].mul_(1e-3);
  in[2].mul_(100);
  Tensor d_o = random_tensor(output_of(s), f16, device) * 3000;
  d_o.slice(2, 3, 9).mul_(1e-4);  // rows and keys of all sizes
  in[2].slice(2, 40, 60).mul_(1e-4);
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    const Three ours = everything(fused, in, d_o, {.causal = causal, .scale = 1e-2});
    const Three exact =
        everything(fused, as(f64, in), d_o.to(f64), {.causal = causal, .scale = 1e-2});
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(ours[i], exact[i]) <= 2 * epsilon_of(f16));
    }
    // Small rows have their own digits; the gradient of a score is a difference of terms that are
    // some times as large.
    for (std::int64_t row = 3; row < 9; ++row) {
      CHECK(distance(ours[1].slice(2, row, row + 1), exact[1].slice(2, row, row + 1)) <=
            16 * epsilon_of(f16));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "attention: few queries over many keys") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Size& s : {Size{1, 2, 4, 1, 700, 64, 48}, Size{2, 1, 1, 3, 600, 112, 128}}) {
    CAPTURE(text(s));
    for (const DType dtype : {bf16, f16}) {
      CAPTURE(dtype);
      for (const AttentionOptions& options : {AttentionOptions{.causal = true}, {.scale = -0.2}}) {
        const Three in = inputs_of(s, dtype, device), wide = as(f64, in);
        const AttentionOutput got = attention_with_lse(in[0], in[1], in[2], options);
        const AttentionOutput exact = attention_with_lse(wide[0], wide[1], wide[2], options);
        CHECK(distance(got.o, exact.o) <= epsilon_of(dtype));
        CHECK(distance(got.lse, exact.lse) <= 32 * epsilon_of(f32));
        // A part without weight changes nothing, and a query whose scores are all -infinity has no
        // output.
        const Tensor first = in[1].slice(2, 0, 320).slice(3, 0, 1);
        const double down = options.scale ? infinity : -infinity;
        in[0].slice(3, 0, 1).fill_(1);
        first.fill_(down);
        const Tensor rest = attention(in[0], in[1].slice(2, 320), in[2].slice(2, 320), options);
        CHECK(distance(fused(in, options), rest) <= 2 * epsilon_of(dtype));
        in[1].slice(3, 0, 1).fill_(down);
        for (const double v : fused(in, options).to_vector()) CHECK(std::isnan(v));
      }
    }
  }
}

TEST_CASE("attention: the measure of these tests sees what is wrong") {
  const Tensor x = ones({2, 3}), off = ones({2, 3});
  off.select(0, 1).fill_(1.5);
  CHECK(distance(off, x) == 0.5);
  off.select(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  CHECK(!(distance(off, x) <= 1));
  CHECK(!(distance(x, off) <= 1));
}
