// Activations, alone: values against the composition and at the ends, gradients, memory.
#include <quipu/quipu.h>

#include <limits>

#include "fused_checks.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

struct Choice {
  Act kind;
  std::optional<int> dim;
};

std::string text_of(const Choice& c) {
  return name_of(c.kind) + (c.dim ? " " + std::to_string(*c.dim) : std::string());
}

/// Every activation; softmax over each dimension, counted from either end.
std::vector<Choice> choices(int dims) {
  std::vector<Choice> result{{Act::none, {}}, {Act::relu, {}}, {Act::sigmoid, {}}, {Act::silu, {}}};
  for (int d = -dims; d < dims; ++d) result.push_back({Act::softmax, d});
  return result;
}

UnaryFunction fused(const Choice& c) {
  return [=](const Tensor& x) { return act(x, c.kind, c.dim); };
}
UnaryFunction composed(const Choice& c) {
  return [=](const Tensor& x) { return act_composed(x, c.kind, c.dim); };
}

/// Calls f(shape, choice) for all of them.
template <class F>
void for_each_choice(std::initializer_list<Shape> shapes, F f) {
  for (const Shape& shape : shapes) {
    for (const Choice& c : choices(shape.size())) {
      const std::string name = text_of(c) + " of " + to_string(shape);
      CAPTURE(name);
      f(shape, c);
    }
  }
}

std::vector<double> softmax(const std::vector<double>& x, DType dtype) {
  return act(from(x, {static_cast<std::int64_t>(x.size())}, dtype), Act::softmax, 0).to_vector();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "act: agrees with its composition in f64") {
  for_each_choice({{7}, {1, 1}, {5, 33}, {2, 3, 17}, {2, 3, 4, 5}, {67, 3}, {3, 200}},
                  [&](const Shape& shape, const Choice& c) {
                    check_composition(fused(c), composed(c), input_of(shape, f64, device));
                  });
}

TEST_CASE_FIXTURE(EachDevice, "act: lines and strips that do not fit a tile") {
  std::vector<std::pair<Shape, int>> lines{
      {{2, 40000}, 1}, {{40000, 3}, 0}, {{3000, 130}, 0}, {{700, 200}, 0}};
  if (is_emulated(device)) {  // where every access takes its time
    lines = {{{1, 70000}, 1}, {{9000, 3}, 0}, {{2500, 34}, 0}, {{5000, 16}, 0}, {{700, 40}, 0}};
  }
  for (const auto& [shape, dim] : lines) {
    const std::string size = to_string(shape);
    CAPTURE(size);
    const Choice c{Act::softmax, dim};
    check_composition(fused(c), composed(c), input_of(shape, f64, device));
    const Tensor x = input_of(shape, bf16, device);
    const Outcome got = run(fused(c), x), exact = run(fused(c), x.to(f64));
    check_units(got.o, exact.o, 1, 0);
    check_units(got.d_x, exact.d_x, 1, 1e-2);  // the output is rounded before it is kept
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: reduced types are rounded once") {
  for (const DType dtype : {f32, bf16, f16}) {
    CAPTURE(name_of(dtype));
    const Shape wide = is_emulated(device) ? Shape{2, 40, 64} : Shape{6, 128, 64};
    for_each_choice({wide, {5, 9, 127}}, [&](const Shape& shape, const Choice& c) {
      const Tensor x = input_of(shape, dtype, device);
      const Outcome got = run(fused(c), x), exact = run(fused(c), x.to(f64));
      const bool is_softmax = c.kind == Act::softmax;
      check_units(got.o, exact.o, 1, dtype == f32 ? 1e-6 : 0);
      check_units(got.d_x, exact.d_x, 1, is_softmax ? 2 * epsilon_of(dtype) : 1e-6);
    });
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: gradients where one entry has nearly all the weight") {
  // Differences of nearly equal numbers, from an output that was rounded.
  for (const DType dtype : {bf16, f16}) {
    CAPTURE(name_of(dtype));
    for (const int dim : {0, 1}) {
      CAPTURE(dim);
      Tensor x = input_of({50, 50}, dtype, device);
      x.slice(dim, 20, 21).fill_(9.5);
      const UnaryFunction f = fused({Act::softmax, dim});
      const Outcome got = run(f, x), exact = run(f, x.to(f64));
      const Tensor off = max(abs(got.d_x.to(f64) - exact.d_x), dim);
      const Tensor largest = max(abs(exact.d_x), dim);
      CHECK(largest_of(off / largest) <= 2 * epsilon_of(dtype));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: no further from f64 than the composition") {
  for (const DType dtype : {f32, bf16, f16}) {
    CAPTURE(name_of(dtype));
    const Shape wide = is_emulated(device) ? Shape{2, 16, 96} : Shape{4, 64, 96};
    for_each_choice({wide}, [&](const Shape& shape, const Choice& c) {
      const Tensor x = input_of(shape, dtype, device);
      const Outcome exact = run(fused(c), x.to(f64));
      const auto distance = [&](const UnaryFunction& f) {
        return largest_of(run(f, x).o.to(f64) - exact.o);
      };
      CHECK(distance(fused(c)) <= distance(composed(c)) + 4 * epsilon_of(f32));
    });
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: gradients") {
  for_each_choice({{1}, {5}, {37}, {3, 1}, {1, 4}, {5, 7}, {2, 3, 4}, {2, 1, 3, 5}},
                  [&](const Shape& shape, const Choice& c) {
                    expect_gradients(fused(c), input_of(shape, f64, device));
                  });
  const Tensor wide = input_of({9, 11}, f64, device).t();
  for (const Choice& c : choices(2)) expect_gradients(fused(c), wide);
}

TEST_CASE_FIXTURE(EachDevice, "act: any strides") {
  for (const DType dtype : {f32, bf16}) {
    for_each_choice({{5, 7, 9}, {3, 40, 70}}, [&](const Shape& shape, const Choice& c) {
      check_layouts(fused(c), input_of(shape, dtype, device));
    });
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: the same bits for any number of threads") {
  for_each_choice({{12, 64, 129}}, [&](const Shape& shape, const Choice& c) {
    for (const DType dtype : {f32, bf16}) {
      check_threads(fused(c), input_of(shape, dtype, device));
    }
  });
}

TEST_CASE_FIXTURE(EachDevice, "act: none is x itself") {
  const Tensor x = ones({2, 3}, f32, device);
  const PeakMemory peak(device);
  CHECK(act(x, Act::none).same_as(x));
  CHECK(peak.bytes_above() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "act: at the ends") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(name_of(dtype));
    const Tensor x = from({-infinity, -1e4, -0.0, 0.0, 1e4, infinity, nan_value}, dtype, device);
    const std::vector<double> s = act(x, Act::sigmoid).to_vector();
    CHECK(std::vector(s.begin(), s.end() - 1) == std::vector{0.0, 0.0, 0.5, 0.5, 1.0, 1.0});
    CHECK(std::isnan(s.back()));
    const std::vector<double> r = act(x, Act::relu).to_vector();
    CHECK(std::vector(r.begin(), r.end() - 2) == std::vector{0.0, 0.0, 0.0, 0.0, x.to_vector()[4]});
    CHECK(r[5] == infinity);
    CHECK(std::isnan(r[6]));
    const std::vector<double> silu = act(x.slice(0, 1, 5), Act::silu).to_vector();
    CHECK(silu == std::vector{0.0, 0.0, 0.0, x.to_vector()[4]});
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: relu passes nothing at 0") {
  const Tensor x = from({-1.0, -0.0, 0.0, 1.0}, f64, device);
  x.set_requires_grad();
  Tape tape;
  tape.backward(sum(act(x, Act::relu)));
  CHECK(x.grad().to_vector() == std::vector{0.0, 0.0, 0.0, 1.0});
}

TEST_CASE_FIXTURE(EachDevice, "act: relu's gradient is written and added alike") {
  // NaN passes everything on, what is not passed on leaves no trace even of NaN and infinity.
  const std::vector<double> at{-1, -0.0, 0, 1, -infinity, infinity, nan_value};
  const std::vector<double> up{-2, nan_value, infinity, -0.0, -infinity, 3, 4};
  const std::vector<double> wanted{0, 0, 0, -0.0, 0, 3, 4};
  for (const DType dtype : {f64, f32, bf16}) {
    CAPTURE(name_of(dtype));
    std::vector<double> x, d_o, d_x;
    for (int i = 0; i < 40; ++i) {  // vectors and a rest
      const auto k = static_cast<std::size_t>(i) % at.size();
      x.push_back(at[k]), d_o.push_back(up[k]), d_x.push_back(wanted[k]);
    }
    const Tensor written = zeros({40}, dtype, device), added = full({40}, 5, dtype, device);
    const Tensor saved = from(x, {40}, dtype, device), upstream = from(d_o, {40}, dtype, device);
    act_backward(saved, upstream, Grad::write_to(written), Act::relu);
    act_backward(saved, upstream, Grad::add_to(added), Act::relu);
    CHECK(written.to_vector() == d_x);
    for (double& v : d_x) v += 5;
    CHECK(added.to_vector() == d_x);
  }
}

TEST_CASE("act: softmax of large, infinite and missing numbers") {
  for (const DType dtype : {f64, f32}) {
    CHECK(softmax({1e30, 1e30, -1e30}, dtype) == std::vector{0.5, 0.5, 0.0});
    CHECK(softmax({3, -infinity, 3}, dtype) == std::vector{0.5, 0.0, 0.5});
    for (const std::vector<double>& x :
         {std::vector{-infinity, -infinity}, {infinity, 0.0}, {nan_value, 0.0}, {0.0, nan_value}}) {
      for (const double v : softmax(x, dtype)) CHECK(std::isnan(v));
    }
  }
  // Down a column it goes another way, and blocks without any number come first.
  const Tensor x = full({40000, 40}, -infinity);
  x.slice(0, 39990).fill_(1);
  CHECK(largest_of(sum(act(x, Act::softmax, 0), 0) - 1) < 1e-6);
  CHECK(std::isnan(act(x.slice(0, 0, 39990), Act::softmax, 0).to_vector()[0]));
}

TEST_CASE_FIXTURE(EachDevice, "act: keeps x, softmax its output, none nothing") {
  for (const DType dtype : {f64, f32, bf16}) {
    const Tensor x = input_of({5, 6, 7}, dtype, device);
    for (const Choice& c : choices(3)) {
      CAPTURE(text_of(c));
      CHECK(saved_bytes(fused(c), x) == (c.kind == Act::none ? 0 : x.nbytes()));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: holds x, output, upstream and gradient, and no more") {
  const Shape shape{4, 6, 32, 64};
  for (const DType dtype : {f32, bf16}) {
    const std::size_t one = static_cast<std::size_t>(numel(shape)) * size_of(dtype);
    for (const Choice& c : choices(4)) {
      CAPTURE(text_of(c));
      const std::size_t expected = c.kind == Act::none ? 2 * one : 3 * one;
      CHECK(training_peak(fused(c), shape, dtype, device) == expected);
      CHECK(training_peak(fused(c), shape, dtype, meta_cpu) == expected);
      CHECK(training_peak(composed(c), shape, dtype, device) >= expected);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "act: sizes 0 and 1") {
  for_each_choice({{0}, {3, 0}, {0, 3}, {1}, {1, 1, 1}}, [&](const Shape& shape, const Choice& c) {
    for (const DType dtype : {f32, f16}) {
      const Outcome result = run(fused(c), input_of(shape, dtype, device));
      CHECK(result.o.shape() == shape);
      CHECK(result.d_x.shape() == shape);
      if (c.kind == Act::softmax && shape == Shape{1}) CHECK(result.o.to_vector()[0] == 1);
    }
  });
}

TEST_CASE_FIXTURE(EachDevice, "act: backward without a tape writes or adds") {
  const Tensor x = input_of({4, 5, 6}, f32, device);
  for (const Choice& c : choices(3)) {
    CAPTURE(text_of(c));
    const Outcome wanted = run(fused(c), x);
    const Tensor upstream = input_of(x.shape(), f32, device, 7).to(bf16).to(f32);
    const Tensor d_x = full(x.shape(), 100.0, f32, device);
    const Tensor saved = c.kind == Act::softmax ? wanted.o : x;
    act_backward(saved, upstream, Grad::write_to(d_x), c.kind, c.dim);
    CHECK(same_bits(d_x, wanted.d_x));
    act_backward(saved, upstream, Grad::add_to(d_x), c.kind, c.dim);
    CHECK(allclose(d_x, wanted.d_x * 2));
  }
}

TEST_CASE("act: names") {
  for (const char* name : {"none", "relu", "sigmoid", "silu", "softmax"}) {
    CHECK(std::string(name_of(act_named(name))) == name);
  }
  expect_error([] { act_named("swish"); }, "no activation \"swish\"", "sigmoid");
}

TEST_CASE("act: says what does not fit") {
  const Tensor x = ones({2, 3});
  expect_error([&] { act(arange(3), Act::relu); }, "act", "x is i64");
  expect_error([&] { act(x, Act::softmax); }, "act", "softmax needs a dim");
  expect_error([&] { act(x, Act::softmax, 2); }, "act", "2");
  expect_error([&] { act(x, Act::silu, 1); }, "act", "silu was given dim 1");
  expect_error(
      [&] {
        act_backward(x, ones({3, 2}), Grad::write_to(x), Act::relu);
      },
      "act_backward", "(3, 2)");
  expect_error([&] { act_backward(x, x.to(bf16), Grad::write_to(x), Act::relu); }, "act_backward",
               "f32", "bf16");
}

TEST_CASE("act: NaN of any bits stays NaN") {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffffffffu, 0x7f800001u, 0xffc00013u}) {
    const std::vector<float> numbers(40, std::bit_cast<float>(bits));
    const Tensor x = from(numbers, {2, 20});
    for (const Act kind : {Act::relu, Act::sigmoid, Act::silu, Act::softmax}) {
      CAPTURE(kind);
      const auto dim = kind == Act::softmax ? std::optional(1) : std::nullopt;
      for (const double v : act(x, kind, dim).to_vector()) CHECK(std::isnan(v));
    }
    for (const double v : exp(x).to_vector()) CHECK(std::isnan(v));
  }
}
