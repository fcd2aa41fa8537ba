// Random numbers and dropout.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "quipu/autograd/tape.h"
#include "quipu/core/random/philox.h"
#include "quipu/core/random/random.h"
#include "quipu/core/tensor.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/dropout.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using Values = std::vector<double>;

void check_block(const PhiloxBlock& block, const std::array<std::uint32_t, 4>& expected) {
  CHECK(std::array<std::uint32_t, 4>{block.w0, block.w1, block.w2, block.w3} == expected);
}

TEST_CASE("random: philox gives the published answers") {
  check_block(philox_block({0, 0, 0, 0}, PhiloxKey(0)),
              {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  check_block(philox_block({ones, ones, ones, ones}, PhiloxKey(~std::uint64_t{0})),
              {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Digits of pi.
  check_block(
      philox_block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, PhiloxKey(0x299f31d0a4093822)),
      {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(philox(0, 0) ==
        std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
}

TEST_CASE("random: a generator's state can be saved and restored") {
  Generator g(42);
  rand({10}, f32, cpu, g);
  const PhiloxState state = g.state();
  CHECK(state.offset > 0);
  const Tensor first = rand({1001}, f32, cpu, g), next = rand({1001}, f32, cpu, g);
  CHECK(!same_bits(first, next));
  g.set_state(state);
  CHECK(same_bits(rand({1001}, f32, cpu, g), first));
  g.seed(42);
  CHECK(g.state() == PhiloxState{42, 0});
  manual_seed(5);
  const Tensor a = randn({3});
  manual_seed(5);
  CHECK(same_bits(randn({3}), a));
}

TEST_CASE_FIXTURE(EachDevice, "random: uniforms come straight from the words at their position") {
  const auto words = philox(7, 1);
  Generator g(7);
  const Values narrow = rand({9}, f32, device, g).to_vector();
  CHECK(narrow[5] == (words[1] >> 8) * 0x1p-24);
  g.seed(7);
  const Values many = rand({5, 1001}, f32, device, g).to_vector();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < many.size(); ++i)
    wrong += many[i] != (philox(7, i / 4)[i % 4] >> 8) * 0x1p-24;
  CHECK(wrong == 0);
  g.seed(7);
  const Values wide = rand({9}, f64, device, g).to_vector();
  const std::uint64_t pair = (std::uint64_t{words[2]} << 32) | words[3];
  CHECK(wide[3] == static_cast<double>(pair >> 11) * 0x1p-53);
  g.seed(7);
  const Values half = rand({9}, f16, device, g).to_vector();
  CHECK(half[5] == (words[1] >> 21) * 0x1p-11);
  g.seed(7);
  const Values brain = rand({9}, bf16, device, g).to_vector();
  CHECK(brain[5] == (words[1] >> 24) * 0x1p-8);
}

/// Mean and standard deviation.
std::pair<double, double> moments(const Values& v) {
  const auto n = static_cast<double>(v.size());
  const double mean = std::accumulate(v.begin(), v.end(), 0.0) / n;
  double squares = 0;
  for (const double x : v) squares += (x - mean) * (x - mean);
  return {mean, std::sqrt(squares / n)};
}

TEST_CASE_FIXTURE(EachDevice, "random: distributions") {
  constexpr std::int64_t n = 200000;
  const double five_sigma = 5 / std::sqrt(static_cast<double>(n));
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(to_string(dtype));
    Generator g(1);
    const Values uniform = rand({n}, dtype, device, g).to_vector();
    const double step = dtype == bf16 ? 0x1p-8 : dtype == f16 ? 0x1p-11 : 0;
    CHECK(std::all_of(uniform.begin(), uniform.end(), [](double x) { return x >= 0 && x < 1; }));
    CHECK(std::abs(moments(uniform).first - (0.5 - step / 2)) <= five_sigma * 0.289);
    CHECK(std::abs(moments(uniform).second - 0.288675) <= five_sigma * 0.3);
    const Values normal = randn({n}, dtype, device, g).to_vector();
    CHECK(std::abs(moments(normal).first) <= five_sigma);
    CHECK(std::abs(moments(normal).second - 1) <= five_sigma);
    std::int64_t beyond = 0;
    for (const double x : normal) beyond += std::abs(x) > 1.959964;
    CHECK(std::abs(static_cast<double>(beyond) / n - 0.05) <= five_sigma * 0.22);
  }
}

TEST_CASE_FIXTURE(EachDevice, "random: normals of two types are the same numbers, rounded") {
  Generator g(3);
  const Tensor x = randn({1001}, f32, device, g);
  g.seed(3);
  CHECK(same_bits(randn({1001}, bf16, device, g).to(f32), x.to(bf16).to(f32)));
  const auto words = philox(3, 0);
  const double radius = std::sqrt(-2 * std::log((words[2] + 1.0) * 0x1p-32));
  const double angle = 2 * std::acos(-1.0) * (words[3] * 0x1p-32);
  CHECK(std::abs(x[2].item() - radius * std::cos(angle)) <= 1e-6);
  CHECK(std::abs(x[3].item() - radius * std::sin(angle)) <= 1e-6);
}

TEST_CASE_FIXTURE(EachDevice, "random: whole numbers fill their range evenly") {
  Generator g(4);
  const Tensor x = randint(-3, 4, {70000}, i64, device, g);
  for (int v = -3; v < 4; ++v) {
    const double count = static_cast<double>(sum(eq(x, v)).item_int());
    CHECK(std::abs(count - 10000) <= 5 * std::sqrt(10000 * 6.0 / 7));
  }
  g.seed(4);
  CHECK(same_bits(randint(-3, 4, {70000}, i32, device, g).to(i64), x));
  const std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                     high = std::numeric_limits<std::int64_t>::max();
  const Tensor wide = randint(low, high, {1000}, i64, device, g);
  CHECK(sum(wide < 0).item_int() > 400);
  CHECK(sum(wide > 0).item_int() > 400);
  CHECK(max(randint(0, 256, {10000}, u8, device, g)).item_int() == 255);
}

TEST_CASE_FIXTURE(EachDevice, "random: a permutation") {
  Generator g(5);
  const Values order = randperm(1000, device, g).to_vector();
  Values sorted = order;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == arange(1000).to_vector());
  CHECK(order != sorted);
  CHECK(randperm(0, device, g).numel() == 0);
}

TEST_CASE("random: calls do not overlap, and threads change nothing") {
  Generator g(6), h(6);
  const auto draw = [](Generator& from) {
    return std::vector<Tensor>{
        rand({50001}, f32, cpu, from), rand({3}, f64, cpu, from), randn({50001}, f64, cpu, from),
        randint(0, 9, {50001}, i64, cpu, from), randn({50001}, f32, cpu, from)};
  };
  const int threads = set_num_threads(1);
  const std::vector<Tensor> one = draw(g);
  set_num_threads(4);
  const std::vector<Tensor> four = draw(h);
  set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], four[i]));
  CHECK(!same_bits(one[0].slice(0, 0, 3), rand({3}, f32, cpu, g)));
}

TEST_CASE_FIXTURE(EachDevice, "random: dropout keeps the mean, and backward draws the same mask") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(to_string(dtype));
    Generator g(8);
    const Tensor x = ones({300, 336}, dtype, device).set_requires_grad();
    Tape tape;
    const Tensor o = dropout(x, 0.25, g);
    CHECK(tape.saved_bytes() == 0);
    const Values values = o.to_vector();
    std::int64_t kept = 0, strange = 0;
    for (const double v : values) {
      kept += v != 0;
      strange += !(v == 0 || std::abs(v - 1 / 0.75) <= epsilon_of(dtype));
    }
    CHECK(strange == 0);
    CHECK(std::abs(static_cast<double>(kept) / 100800 - 0.75) <= 5 * 0.433 / std::sqrt(100800));
    tape.backward(o, {ones(o.shape(), dtype, device)});
    CHECK(same_bits(x.grad(), o.detach()));
  }
}

TEST_CASE_FIXTURE(EachDevice, "random: dropout of strided tensors, of nothing and of everything") {
  Generator g(9);
  const Tensor x = randn({70, 33}, f32, device, g);
  g.seed(1);
  const Tensor o = dropout(x.t(), 0.5, g);
  g.seed(1);
  CHECK(same_bits(o, dropout(x.t().contiguous(), 0.5, g)));
  CHECK(dropout(x, 0).same_as(x));
  CHECK(sum(ne(dropout(x, 1), 0)).item_int() == 0);
  CHECK(dropout(zeros({0, 3}, f32, device), 0.5).numel() == 0);
  expect_error([&] { dropout(x, 1.5); }, "dropout", "p is 1.5");
  expect_error([&] { dropout(x, std::nan("")); }, "dropout", "p is nan");
  expect_error([&] { dropout(x.to(i64), 0.5); }, "dropout", "x is i64", ".to(f32)");
}

}  // namespace
