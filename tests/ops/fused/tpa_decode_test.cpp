#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "quipu/ops/tpa_decode/kernels.h"
#include "tpa_support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::tpa;

namespace {

const Size small_sizes[] = {
    {1, 1, 1, 1, 1, 1},       {2, 3, 2, 2, 3, 4},       {1, 5, 3, 2, 4, 3},
    {3, 2, 1, 3, 2, 5},       {2, 7, 4, 3, 5, 2},       {1, 4, 2, 5, 7, 3},
    {2, 5, 3, 1, 1, 6},       {1, 9, 5, 2, 3, 1},       {2, 4, 3, 2, 3, 4, 2, 1},
    {2, 4, 3, 2, 3, 4, 1, 2}, {1, 5, 2, 3, 4, 3, 3, 2}, {2, 3, 2, 2, 2, 2, 2, 3},
    {1, 1, 3, 2, 4, 5, 4, 1}, {3, 1, 2, 4, 3, 2, 1, 4}, {1, 17, 2, 2, 3, 3},
    {2, 6, 1, 6, 2, 2, 2, 2}};
const Size with_zeros[] = {
    {0, 3, 2, 2, 3, 4},   {2, 0, 2, 2, 3, 4},       {2, 3, 0, 2, 3, 4},
    {2, 3, 2, 0, 3, 4},   {2, 3, 2, 2, 0, 4},       {2, 3, 2, 2, 3, 0},
    {2, 300, 2, 2, 3, 0}, {2, 3, 2, 2, 3, 4, 0, 1}, {2, 3, 2, 2, 3, 4, 1, 0}};

/// Scales and lengths in every pair of choices: a few rows of a table.
std::vector<TpaOptions> option_rows(const Size& s, Device device) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < s.b; ++b) lengths.push_back((s.m + 1) * (b + 1) / (s.b + 1));
  const Tensor some = from(lengths, {s.b}, i64, device);
  return {{},
          {.scale = 0.3, .scale_q = 0.5, .scale_k = 1.5, .scale_v = 0.7},
          {.scale = 0.3, .scale_k = -1.2, .lengths = some},
          {.scale_q = 0.8, .scale_k = 0.4},
          {.scale_q = 0.8, .scale_v = 2.0, .lengths = some},
          {.scale = -0.6, .scale_q = 1.3, .scale_v = -0.5}};
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: agrees with its composition in f64") {
  std::vector<Size> sizes(std::begin(small_sizes), std::end(small_sizes));
  if (is_emulated(device)) {
    sizes.insert(sizes.end(), {{1, 70, 33, 5, 17, 9},
                               {1, 530, 2, 3, 20, 300},
                               {1, 5, 130, 7, 12, 40, 2, 3},
                               {1, 3, 2, 3, 300, 5},
                               {1, 35, 17, 31, 129, 63}});
  } else {
    sizes.insert(sizes.end(), {{2, 300, 33, 5, 17, 9},
                               {1, 1100, 5, 3, 20, 300},
                               {3, 70, 130, 7, 12, 40, 2, 3},
                               {1, 3, 2, 3, 300, 5},
                               {2, 2049, 17, 31, 129, 63}});
  }
  for (const Size& s : sizes) {
    CAPTURE(text(s));
    const Six in = inputs_of(s, f64, device);
    const Tensor d_o = randn({s.b, 1, s.h, s.e}, f64, device);
    for (const TpaOptions& options : option_rows(s, device)) {
      const Six ours = everything(fused, in, d_o, options);
      const Six theirs = everything(composed, in, d_o, options);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        CHECK(allclose(ours[i], theirs[i], {1e-12, 1e-12 * std::max(1.0, largest_of(theirs[i]))}));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice,
                  "tpa_decode: near f64 and nearer than the composition, in every type") {
  manual_seed(2024);
  // The last two are sizes that tensor cores take, in one block and in several.
  std::vector<Size> sizes = {{2, 2049, 17, 31, 129, 63},
                             {2, 300, 31, 17, 127, 65, 2, 2},
                             {2, 600, 32, 16, 128, 128},
                             {1, 200, 40, 35, 72, 152, 2, 3}};
  if (is_emulated(device)) {
    sizes = {{1, 70, 17, 31, 129, 63},
             {2, 40, 31, 17, 127, 65, 2, 2},
             {1, 299, 32, 16, 128, 128},
             {2, 70, 40, 35, 72, 152, 2, 3}};
  }
  for (const Size& s : sizes) {
    CAPTURE(text(s));
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(dtype);
      const Six in = inputs_of(s, dtype, device);
      const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device).to(dtype);
      const Six ours = everything(fused, in, d_o), theirs = everything(composed, in, d_o);
      const Six exact = everything(fused, as(f64, in), d_o.to(f64));
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        // Sums of some thousand terms in f32; otherwise the last rounding.
        const double bound = dtype == f32 ? 2e-6 : 0.51 * epsilon_of(dtype);
        CHECK(distance(ours[i], exact[i]) <= bound);
        CHECK(distance(ours[i], exact[i]) <= std::max(distance(theirs[i], exact[i]), bound));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: gradients where one key has nearly all the weight") {
  manual_seed(2024);
  const Size s{2, 40, 3, 2, 8, 8};
  for (const DType dtype : {bf16, f16}) {
    CAPTURE(dtype);
    const Six in = inputs_of(s, dtype, device);
    const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device).to(dtype);
    const TpaOptions steep{.scale = 3};
    const Six ours = everything(fused, in, d_o, steep);
    const Six exact = everything(fused, as(f64, in), d_o.to(f64), steep);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      const Tensor off = max(abs(ours[i].to(f64) - exact[i]), -1);
      const Tensor allowed = max(abs(exact[i]), -1) * (2 * epsilon_of(dtype)) + 1e-6;
      CHECK(largest_of(max(off / allowed)) <= 1);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: gradients of every input, all sizes and options") {
  int checked = 0;
  for (const Size& s : small_sizes) {
    CAPTURE(text(s));
    const std::vector<TpaOptions> rows = option_rows(s, device);
    for (const std::size_t row : {static_cast<std::size_t>(checked) % rows.size(),
                                  static_cast<std::size_t>(checked + 2) % rows.size()}) {
      const auto f = [&](const Six& in) { return fused(in, rows[row]); };
      CHECK(gradcheck(f, wanting(inputs_of(s, f64, device))));
      ++checked;
    }
  }
  CHECK(checked >= 30);
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: every subset of inputs that want gradients") {
  for (const Size& s : {Size{2, 3, 2, 2, 3, 4}, Size{1, 4, 3, 2, 2, 3, 2, 2}}) {
    CAPTURE(text(s));
    for (unsigned subset = 1; subset < 64; ++subset) {
      CAPTURE(subset);
      const Six in = inputs_of(s, f64, device);
      for (unsigned i = 0; i < 6; ++i) in[i].set_requires_grad((subset >> i & 1) != 0);
      CHECK(gradcheck([](const Six& x) { return fused(x); }, in));
    }
  }
}

// What tensor cores take: sizes that are multiples of 8, rows on 16-byte borders.
TEST_CASE_FIXTURE(EachDevice, "tpa_decode: even sizes in reduced types, with every option") {
  const Size s{2, 70, 16, 9, 24, 40};
  for (const DType dtype : {bf16, f16}) {
    CAPTURE(dtype);
    const Six in = inputs_of(s, dtype, device), wide = as(f64, in);
    const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device).to(dtype);
    for (const TpaOptions& options : option_rows(s, device)) {
      const Six ours = everything(fused, in, d_o, options);
      const Six exact = everything(fused, wide, d_o.to(f64), options);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        CHECK(distance(ours[i], exact[i]) <= 0.51 * epsilon_of(dtype));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: even sizes in bf16, any subset, factors in one tensor") {
  const Size s{2, 40, 8, 3, 16, 24};
  const Six in = inputs_of(s, bf16, device);
  const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device).to(bf16);
  const Six exact = everything(fused, as(f64, in), d_o.to(f64));
  const double bound = 0.51 * epsilon_of(bf16);
  for (unsigned subset = 1; subset < 64; ++subset) {
    CAPTURE(subset);
    const Six leaves = wanting(as(bf16, in), subset);
    Tape tape;
    tape.backward(fused(leaves), {d_o});
    for (std::size_t i = 0; i < 6; ++i) {
      if (leaves[i].requires_grad()) CHECK(distance(leaves[i].grad(), exact[i + 1]) <= bound);
    }
  }
  // Side by side, and one over the other: then gradients are added to each other.
  for (const std::int64_t shift : {s.d, std::int64_t{8}}) {
    CAPTURE(shift);
    const Tensor b = cat({in[4], in[5]}, 2).set_requires_grad();
    const auto decode = [&](const Tensor& both) {
      const auto up = [&](std::size_t i) { return in[i].to(both.dtype()); };
      return tpa_decode(up(0), up(1), up(2), up(3), both.slice(2, 0, s.d),
                        both.slice(2, shift, shift + s.e));
    };
    const Tensor wide = b.detach().to(f64).detach().set_requires_grad();
    Tape tape;
    tape.backward(decode(b), {d_o});
    tape.backward(decode(wide), {d_o.to(f64)});
    CHECK(distance(b.grad(), wide.grad()) <= 2 * bound);
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: any strides, in inputs, upstream and gradients") {
  const Size s{2, 70, 5, 3, 6, 7, 2, 1};
  for (const DType dtype : {f64, bf16}) {
    const Six in = inputs_of(s, dtype, device);
    const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device).to(dtype);
    const Six wanted = everything(fused, in, d_o);
    const auto strided = [](const Six& x, const TpaOptions&) {
      return fused(turned(x)).transpose(2, 3).contiguous().transpose(2, 3);
    };
    const Six ours = everything(strided, in, d_o.transpose(2, 3).contiguous().transpose(2, 3));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      CHECK(same_bits(ours[i].contiguous(), wanted[i].contiguous()));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: gradients may lie in one tensor") {
  const auto f = [](const Six& in) {
    return tpa_decode(in[0], in[1].slice(2, 0, 3), in[1].slice(2, 2, 5), in[2],
                      in[3].slice(2, 0, 4), in[3].slice(2, 1, 5));
  };
  const auto input = [&](const Shape& shape) {
    return randn(shape, f64, device).set_requires_grad();
  };
  CHECK(
      gradcheck(f, {input({2, 1, 3, 2}), input({2, 4, 5}), input({2, 1, 2, 4}), input({2, 4, 5})}));
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: lengths cut entries off") {
  const Size s{4, 700, 3, 4, 8, 5};
  const Six in = inputs_of(s, f64, device);
  const std::vector<std::int64_t> lengths = {0, 1, 300, 700};
  const TpaOptions options{.lengths = from(lengths, {4}, i64, device)};
  const Tensor d_o = randn({s.b, 1, s.h, s.e}, f64, device);
  const Six ours = everything(fused, in, d_o, options);
  for (std::int64_t b = 0; b < s.b; ++b) {
    CAPTURE(b);
    Six part;
    for (std::size_t i = 0; i < 6; ++i) {
      const Tensor one = in[i].slice(0, b, b + 1);
      part.push_back(i == 0 || i == 3 ? one
                                      : one.slice(1, 0, lengths[static_cast<std::size_t>(b)]));
    }
    const Six alone = everything(fused, part, d_o.slice(0, b, b + 1));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      const Tensor mine = ours[i].slice(0, b, b + 1);
      const bool is_cut = i != 0 && i != 1 && i != 4;
      CHECK(allclose(is_cut ? mine.slice(1, 0, lengths[static_cast<std::size_t>(b)]) : mine,
                     alone[i], {1e-12, 1e-12}));
      if (is_cut) CHECK(largest_of(mine.slice(1, lengths[static_cast<std::size_t>(b)])) == 0);
    }
  }
  CHECK(largest_of(ours[0][0]) == 0);
  for (const std::int64_t bad : {-1, 701}) {
    const TpaOptions wrong{.lengths = full({4}, bad, i64, device)};
    expect_error([&] { fused(in, wrong); }, "tpa_decode", "lengths at (0,)");
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: large scores and not a number") {
  Six in = inputs_of({1, 600, 2, 2, 4, 3}, f32, device);
  const TpaOptions steep{.scale = 1e4};
  CHECK(allclose(fused(in, steep), fused(as(f64, in), steep).to(f32), {1e-4, 1e-4}));
  in[1].slice(1, 555, 556).fill_(std::numeric_limits<double>::quiet_NaN());
  for (const double v : fused(in).to_vector()) CHECK(std::isnan(v));
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: same bits on any number of threads") {
  std::vector<Size> sizes = {{1, 3000, 9, 5, 20, 13, 2, 1}, {5, 300, 70, 6, 9, 150}};
  if (is_emulated(device)) sizes = {{1, 300, 9, 5, 20, 13, 2, 1}, {2, 30, 70, 6, 9, 150}};
  for (const Size& s : sizes) {
    const Six in = inputs_of(s, f32, device);
    const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device);
    check_bits_on_threads([&] { return everything(fused, in, d_o); });
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: sizes of 0") {
  for (const Size& s : with_zeros) {
    CAPTURE(text(s));
    for (const DType dtype : {f64, bf16}) {
      const Six in = inputs_of(s, dtype, device);
      const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, device).to(dtype);
      for (const Tensor& x : everything(fused, in, d_o)) {
        for (const double v : x.to_vector()) CHECK(std::isfinite(v));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "tpa_decode: without a tape") {
  const Size s{2, 300, 3, 2, 5, 4, 2, 1};
  const Six in = inputs_of(s, f64, device);
  const Tensor d_o = randn({s.b, 1, s.h, s.e}, f64, device);
  const Six wanted = everything(fused, in, d_o);
  const TpaOutput out = tpa_decode_with_lse(in[0], in[1], in[2], in[3], in[4], in[5]);
  CHECK(same_bits(out.o, wanted[0]));
  Six d;
  for (const Tensor& x : in) d.push_back(ones(x.shape(), f64, device));
  const auto grad = [&](std::size_t i) { return Grad::add_to(d[i]); };
  tpa_decode_backward(in[0], in[1], in[2], in[3], in[4], in[5], out, d_o,
                      {grad(0), grad(1), grad(2), grad(3), grad(4), grad(5)});
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(allclose(d[i], wanted[i + 1] + 1, {1e-12, 1e-12}));
  }
}

TEST_CASE("tpa_decode: says what does not fit, before anything is allocated") {
  const Size s{2, 5, 3, 2, 4, 6};
  const Six good = inputs_of(s, f32, cpu);
  const auto with = [&](std::size_t i, const Tensor& x) {
    Six in = good;
    in[i] = x;
    return [in] { fused(in); };
  };
  const std::uint64_t before = memory_stats(cpu).allocations;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_error([&] { fused(good, {.scale = nan}); }, "tpa_decode", "scale is nan");
  expect_error([&] { fused(good, {.scale_q = 1 / 0.0}); }, "scale_q is inf");
  expect_error([&] { fused(good, {.scale_k = -1 / 0.0}); }, "scale_k is -inf");
  expect_error([&] { fused(good, {.scale_v = nan}); }, "scale_v is nan");
  expect_error([&] { fused(good, {.scale = 1e200, .scale_q = 1e200}); }, "not finite");
  CHECK(memory_stats(cpu).allocations == before);

  expect_error(with(0, arange(3)), "tpa_decode", "aq is i64");
  expect_error(with(1, good[1].to(bf16)), "ak is bf16");
  expect_error(with(5, zeros({2, 5, 6}, f32, Device(cpu.kind(), 0, true))), "bv on meta");
  expect_error(with(0, zeros({2, 2, 3, 2})), "aq has shape (2, 2, 3, 2)", "(b, 1, h, r)");
  expect_error(with(3, zeros({2, 1, 5, 4})), "bq has shape (2, 1, 5, 4)", "agree in b and r");
  expect_error(with(1, zeros({2, 5, 4})), "ak has shape (2, 5, 4)", "(2, 5, 3) is wanted");
  expect_error(with(1, zeros({5})), "ak has shape (5,)");
  expect_error(with(2, zeros({2, 4, 3})), "av has shape (2, 4, 3)", "(2, 5, 3) is wanted");
  expect_error(with(4, zeros({2, 5, 1, 4})), "bk has shape (2, 5, 1, 4)", "ak has shape (2, 5, 3)");
  expect_error(with(4, zeros({2, 5, 5})), "bk has shape (2, 5, 5)", "agree in d");
  expect_error(with(5, zeros({2, 6, 6})), "bv has shape (2, 6, 6)");
  expect_error([&] { fused(good, {.lengths = zeros({2})}); }, "lengths is f32");
  expect_error([&] { fused(good, {.lengths = zeros({3}, i64)}); }, "lengths has shape (3,)");
  expect_error([&] { fused(inputs_of({1, 1, 2000, 1, 1, 1}, f32, cpu)); }, "1024 heads");
}
