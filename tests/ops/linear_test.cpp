#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "quipu/ops/matmul/kernels.h"
#include "support/several_inputs.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

using Three = Tensors;

struct Size {
  Shape rows;
  std::int64_t in, out;
};

std::string text(const Size& s) {
  return detail::concat("rows ", s.rows, " in ", s.in, " out ", s.out);
}
Shape with_last(Shape shape, std::int64_t last) {
  shape.push_back(last);
  return shape;
}
/// x, weight, bias
Three inputs_of(const Size& s, DType dtype, Device device) {
  return random_tensors({with_last(s.rows, s.in), {s.out, s.in}, {s.out}}, dtype, device);
}
Tensor upstream_of(const Size& s, DType dtype, Device device) {
  return random_tensor(with_last(s.rows, s.out), dtype, device);
}

Tensor fused(const Three& in) {
  return linear(in[0], in[1], in[2]);
}
Tensor composed(const Three& in) {
  return linear_composed(in[0], in[1], in[2]);
}

/// The output and all gradients.
template <class F>
Three everything(F f, const Three& in, const Tensor& d_o) {
  return with_gradients(f, in, d_o);
}

std::vector<Size> small_sizes() {
  std::vector<Size> sizes;
  for (const Shape& rows : {Shape{}, Shape{1}, Shape{5}, Shape{2, 3}, Shape{2, 1, 3}, Shape{7}}) {
    for (const auto& [in, out] : {std::pair(1, 1), std::pair(3, 2), std::pair(2, 5),
                                  std::pair(6, 1), std::pair(1, 4), std::pair(5, 7)}) {
      sizes.push_back({rows, in, out});
    }
  }
  return sizes;
}
const Size with_zeros[] = {{{0}, 3, 2}, {{2}, 0, 3}, {{2}, 3, 0}, {{2, 0, 3}, 4, 2}, {{}, 0, 2}};
const Size larger[] = {{{70, 3}, 130, 65}, {{33}, 257, 129}, {{1}, 600, 300}, {{4, 100}, 64, 256}};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "linear: agrees with its composition in f64") {
  std::vector<Size> sizes = small_sizes();
  sizes.insert(sizes.end(), std::begin(larger), std::end(larger));
  for (const Size& s : sizes) {
    CAPTURE(text(s));
    const Three in = inputs_of(s, f64, device);
    const Tensor d_o = upstream_of(s, f64, device);
    const Three ours = everything(fused, in, d_o), theirs = everything(composed, in, d_o);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(ours[i], theirs[i]) <= 1e-12);
    }
    CHECK(distance(linear(in[0], in[1]), linear_composed(in[0], in[1])) <= 1e-12);
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: no further from the truth than the composition") {
  for (const Size& s : larger) {
    CAPTURE(text(s));
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(dtype);
      const Three in = inputs_of(s, dtype, device);
      const Tensor d_o = upstream_of(s, dtype, device);
      const Three ours = everything(fused, in, d_o), theirs = everything(composed, in, d_o);
      const Three exact = everything(fused, as(f64, in), d_o.to(f64));
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        CHECK(distance(ours[i], exact[i]) <=
              std::max(distance(theirs[i], exact[i]), epsilon_of(dtype)));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: gradients of every input, all sizes") {
  int checked = 0;
  for (const Size& s : small_sizes()) {
    CAPTURE(text(s));
    CHECK(gradcheck(fused, wanting(inputs_of(s, f64, device))));
    ++checked;
  }
  CHECK(checked >= 30);
}

TEST_CASE_FIXTURE(EachDevice, "linear: every subset of inputs, and what each keeps") {
  for (const Size& s : {Size{{2, 3}, 4, 5}, Size{{3}, 2, 1}}) {
    CAPTURE(text(s));
    for (unsigned subset = 0; subset < 8; ++subset) {
      CAPTURE(subset);
      const Three in = wanting(inputs_of(s, f64, device), subset);
      if (subset != 0) CHECK(gradcheck(fused, in));
      for (const bool has_bias : {false, true}) {
        Tape tape;
        linear(in[0], in[1], has_bias ? in[2] : Tensor());
        const bool of_x = (subset & 1) != 0, of_weight = (subset & 2) != 0;
        const bool of_bias = has_bias && (subset & 4) != 0;
        CHECK(tape.saved_bytes() == (of_weight ? in[0].nbytes() : 0) + (of_x ? in[1].nbytes() : 0));
        CHECK(tape.size() == (of_x || of_weight || of_bias ? 1 : 0));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: the bias is rounded with the sum") {
  // 256 + 1 is no bf16, 256 + 2 is one; a sum that is rounded before the bias is added loses 1.
  const Tensor x = ones({5, 257}, bf16, device), weight = ones({6, 257}, bf16, device);
  const Tensor bias = ones({6}, bf16, device);
  for (const double v : linear(x, weight, bias).to_vector()) CHECK(v == 258);
  for (const double v : linear_composed(x, weight, bias).to_vector()) CHECK(v != 258);
}

TEST_CASE_FIXTURE(EachDevice, "linear: any strides, in inputs, upstream and gradients") {
  const Size s{{4, 9}, 21, 18};
  for (const DType dtype : {f64, bf16}) {
    CAPTURE(dtype);
    const Three in = inputs_of(s, dtype, device);
    const Tensor d_o = upstream_of(s, dtype, device);
    const Three wanted = everything(fused, in, d_o);
    const auto strided = [](const Three& x) {
      return fused(turned(x)).transpose(0, 2).contiguous().transpose(0, 2);
    };
    const double bound = 4 * epsilon_of(dtype);  // some dozen terms in another order
    const Three ours = everything(strided, in, d_o.transpose(0, 1).contiguous().transpose(0, 1));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(ours[i], wanted[i]) <= bound);
    }
    for (const std::size_t i : {0u, 1u, 2u}) {
      for (const Tensor& other : other_layouts(in[i])) {
        Three views = in;
        views[i] = other;
        CHECK(distance(fused(views), wanted[0]) <= bound);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: same bits on any number of threads") {
  for (const DType dtype : {f32, bf16}) {
    const Size s{{300}, 200, 400};
    const Three in = inputs_of(s, dtype, device);
    const Tensor d_o = upstream_of(s, dtype, device);
    check_bits_on_threads([&] { return everything(fused, in, d_o); });
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: sizes of 0") {
  for (const Size& s : with_zeros) {
    CAPTURE(text(s));
    for (const DType dtype : {f64, bf16}) {
      const Three in = inputs_of(s, dtype, device);
      const Tensor d_o = upstream_of(s, dtype, device);
      const Three ours = everything(fused, in, d_o), theirs = everything(composed, in, d_o);
      for (std::size_t i = 0; i < ours.size(); ++i) CHECK(distance(ours[i], theirs[i]) <= 0.02);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: memory: as declared, as on meta, less than composed") {
  const auto peak_of = [](const Size& s, DType dtype, Device where, auto f) {
    const Three in = wanting(inputs_of(s, dtype, where));
    const PeakMemory peak(where);
    Tape tape;
    const Tensor o = f(in);
    const std::size_t forward = peak.bytes_above();
    tape.backward(o, {zeros(o.shape(), dtype, where)});
    return std::pair(forward, peak.bytes_above());
  };
  const auto whole = [](std::int64_t bytes) {
    return static_cast<std::size_t>((bytes + 511) / 512 * 512);
  };
  for (const DType dtype : {f64, f32, bf16}) {
    for (const Size& s : {Size{{5, 70}, 33, 65}, Size{{3}, 256, 128}}) {
      const auto ours = peak_of(s, dtype, device, fused);
      CHECK(ours == peak_of(s, dtype, Device(device.kind(), 0, true), fused));
      const std::int64_t out = numel(s.rows) * s.out;
      const std::int64_t space = matmul_workspace(device.kind(), numel(s.rows), s.out);
      CHECK(ours.first == whole(out * static_cast<std::int64_t>(size_of(dtype))) + whole(space));
      const auto theirs = peak_of(s, dtype, device, composed);
      // The composition holds two results at once, or one and what cuBLAS gets.
      CHECK((space == 0 ? ours.first < theirs.first : ours.first <= theirs.first));
      CHECK(ours.second <= theirs.second);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "linear: without a tape, into gradients that are there") {
  const Size s{{2, 30}, 20, 10};
  const Three in = inputs_of(s, f64, device);
  const Tensor d_o = upstream_of(s, f64, device);
  const Three wanted = everything(fused, in, d_o);
  Three d;
  for (const Tensor& x : in) d.push_back(ones(x.shape(), f64, device));
  linear_backward(in[0], in[1], d_o, Grad::add_to(d[0]), Grad::add_to(d[1]), Grad::add_to(d[2]));
  for (std::size_t i = 0; i < 3; ++i) CHECK(distance(d[i] - 1, wanted[i + 1]) <= 1e-12);
  linear_backward(in[0], in[1], d_o, {}, Grad::write_to(d[1]), {});
  CHECK(same_bits(d[1], wanted[2]));
}

TEST_CASE_FIXTURE(EachDevice, "linear: gradients may lie in one tensor") {
  const auto f = [](const Three& in) {
    return linear(in[0].slice(1, 0, 3), in[0].slice(1, 2, 5), in[0].select(1, 1));
  };
  CHECK(gradcheck(f, {randn({4, 5}, f64, device).set_requires_grad()}));
}

TEST_CASE_FIXTURE(EachDevice, "linear: not a number stays in its row") {
  const Three in = inputs_of({{6}, 5, 4}, f32, device);
  in[0].slice(0, 2, 3).slice(1, 3, 4).fill_(std::numeric_limits<double>::quiet_NaN());
  const std::vector<double> o = fused(in).to_vector();
  for (std::size_t i = 0; i < o.size(); ++i) CHECK(std::isnan(o[i]) == (i / 4 == 2));
}

TEST_CASE("linear: says what does not fit, before anything is allocated") {
  const Three in = inputs_of({{2}, 3, 4}, f32, cpu);
  const Tensor whole = arange(3), flat = zeros({3}), wide = zeros({4, 5}), reduced = in[1].to(bf16);
  const Tensor scalar = zeros({}), other = zeros({4, 3}, f32, meta_cpu), short_bias = zeros({3});
  const std::uint64_t before = memory_stats(cpu).allocations;
  expect_error([&] { linear(whole, in[1]); }, "linear", "x is i64");
  expect_error([&] { linear(scalar, in[1]); }, "linear", "x has shape ()", "(..., in)");
  expect_error([&] { linear(in[0], flat); }, "weight has shape (3,)", "(out, in)");
  expect_error([&] { linear(in[0], wide); }, "weight has shape (4, 5)", "x has shape (2, 3)");
  expect_error([&] { linear(in[0], reduced); }, "weight is bf16");
  expect_error([&] { linear(in[0], other); }, "weight on meta");
  expect_error([&] { linear(in[0], in[1], short_bias); }, "bias has shape (3,)", "needs (4,)");
  expect_error([&] { linear_backward(in[0], in[1], in[0], {}, {}, {}); }, "linear_backward",
               "d_o has shape (2, 3)", "(2, 4)");
  CHECK(memory_stats(cpu).allocations == before);
}
