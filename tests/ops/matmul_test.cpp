// Matrix products against three loops; gradients: gradients_test.cpp.
#include <cmath>

#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/tensor.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

/// Element by element in f64; a (b, m, k), x (b, k, n).
Tensor by_hand(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  const auto batches = static_cast<std::size_t>(a.size(0)), m = static_cast<std::size_t>(a.size(1)),
             k = static_cast<std::size_t>(a.size(2)), n = static_cast<std::size_t>(b.size(2));
  std::vector<double> o(batches * m * n);
  for (std::size_t p = 0; p < batches; ++p) {
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::size_t l = 0; l < k; ++l) sum += x[(p * m + i) * k + l] * y[(p * k + l) * n + j];
        o[(p * m + i) * n + j] = sum;
      }
    }
  }
  return from(o, {a.size(0), a.size(1), b.size(2)}, f64, a.device());
}

/// Three dimensions, the batch broadcast to `batch`.
Tensor with_batch(const Tensor& x, const Shape& batch) {
  Shape shape = batch;
  shape.push_back(x.size(-2));
  shape.push_back(x.size(-1));
  return x.expand(shape).reshape({numel(batch), x.size(-2), x.size(-1)});
}

/// Values of one sign, so that no sum cancels, as rounding errors are measured against it.
Tensor values(const Shape& shape, DType dtype, Device device, std::uint64_t seed) {
  Generator g(seed);
  return rand(shape, dtype, device, g);
}

void check_product(const Tensor& a, const Tensor& b, const Shape& shape, const Shape& batch) {
  CAPTURE(to_string(a.shape()));
  CAPTURE(to_string(b.shape()));
  CAPTURE(to_string(a.dtype()));
  const Tensor o = matmul(a, b);
  CHECK(o.shape() == shape);
  CHECK(o.dtype() == a.dtype());
  if (o.numel() == 0) return;
  const Tensor expected = by_hand(with_batch(a, batch), with_batch(b, batch)).reshape(shape);
  const double sum_error = static_cast<double>(a.size(-1)) * epsilon_of(compute_type(a.dtype()));
  const double tolerance = epsilon_of(a.dtype()) + sum_error;
  const Difference difference = compare(o.to(f64), expected, {tolerance, tolerance});
  CHECK_MESSAGE(difference.ok, difference.text);
}

TEST_CASE_FIXTURE(EachDevice, "matmul: matrices of all types and odd sizes") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{1, 1, 1},
                                  {3, 5, 7},
                                  {67, 31, 129},
                                  {1, 300, 1},
                                  {130, 1, 3},
                                  {5, 0, 4},
                                  {0, 3, 4},
                                  {3, 4, 0}}) {
      check_product(values({m, k}, dtype, device, 1), values({k, n}, dtype, device, 2), {m, n},
                    {1});
    }
  }
  CHECK(sum(matmul(ones({5, 0}, f32, device), ones({0, 4}, f32, device))).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "matmul: batches broadcast") {
  const auto a = [&](const Shape& s) { return values(s, f32, device, 1); };
  const auto b = [&](const Shape& s) { return values(s, f32, device, 2); };
  check_product(a({4, 3, 5}), b({4, 5, 2}), {4, 3, 2}, {4});
  check_product(a({4, 3, 5}), b({5, 2}), {4, 3, 2}, {4});
  check_product(a({3, 5}), b({4, 5, 2}), {4, 3, 2}, {4});
  check_product(a({2, 1, 3, 5}), b({4, 5, 2}), {2, 4, 3, 2}, {2, 4});
  check_product(a({2, 4, 3, 5}), b({2, 1, 5, 2}), {2, 4, 3, 2}, {2, 4});
  check_product(a({1, 3, 5}), b({1, 5, 2}), {1, 3, 2}, {1});
  check_product(a({0, 3, 5}), b({5, 2}), {0, 3, 2}, {0});
}

TEST_CASE_FIXTURE(EachDevice, "matmul: vectors") {
  const Tensor v = from({1.0, 2.0, 3.0}, f32, device),
               m = arange(0, 6, 1, f32, device).reshape({3, 2});
  CHECK(matmul(v, v).item() == 14);
  CHECK(matmul(v, v).shape() == Shape{});
  CHECK(matmul(v, m).to_vector() == std::vector<double>{16, 22});
  CHECK(matmul(m.t(), v).to_vector() == std::vector<double>{16, 22});
  CHECK(matmul(ones({4, 2, 3}, f32, device), v).shape() == Shape{4, 2});
  CHECK(matmul(v, ones({4, 3, 2}, f32, device)).shape() == Shape{4, 2});
}

TEST_CASE_FIXTURE(EachDevice, "matmul: operands as they lie") {
  const Tensor a = values({6, 5, 4}, f32, device, 1), b = values({6, 4, 3}, f32, device, 2);
  const Tensor expected = matmul(a, b);
  const auto near = [&](const Tensor& o) {
    return allclose(o, expected, {4 * epsilon_of(f32), 0.0});
  };
  CHECK(near(matmul(a.transpose(1, 2).contiguous().transpose(1, 2), b)));
  CHECK(near(matmul(a, b.transpose(1, 2).contiguous().transpose(1, 2))));
  CHECK(near(matmul(a.permute({2, 0, 1}).contiguous().permute({1, 2, 0}), b)));
  const Tensor gaps = empty({6, 10, 8}, f32, device).slice(1, 0, {}, 2).slice(2, 0, {}, 2);
  gaps.copy_from(a);
  CHECK(near(matmul(gaps, b)));
  // One row, repeated: stride 0 inside the matrix.
  const Tensor row = values({1, 4}, f32, device, 3);
  CHECK(same_bits(matmul(row.expand({5, 4}), b[0]), matmul(row.expand({5, 4}).contiguous(), b[0])));
  const Tensor column = values({4, 1}, f32, device, 4);
  CHECK(same_bits(matmul(a, column.expand({4, 7})), matmul(a, column.expand({4, 7}).contiguous())));
}

TEST_CASE("matmul: transposed operands are not copied, rows of a batch are one product") {
  const Device meta("meta:cpu");
  const Tensor x = empty({8, 64, 32}, f32, meta),
               w = empty({128, 32}, f32, meta).set_requires_grad();
  PeakMemory peak(meta);
  Tape tape;
  const Tensor o = matmul(x, w.t());
  CHECK(peak.bytes_above() == o.nbytes());
  tape.backward(o, {empty(o.shape(), f32, meta)});
  // The upstream gradient and that of w, straight into its place.
  CHECK(peak.bytes_above() == 2 * o.nbytes() + w.nbytes());
}

TEST_CASE_FIXTURE(EachDevice, "matmul: gradients are added where they belong") {
  const Tensor x = values({2, 3, 4}, f64, device, 1),
               w = values({4, 5}, f64, device, 2).set_requires_grad();
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape;
    tape.backward(sum(matmul(x, w)));
  }
  const Tensor once = sum(x, {0, 1}).unsqueeze(1).expand({4, 5});
  CHECK(allclose(w.grad(), once * 2));
}

TEST_CASE("matmul: errors name the operator and the argument") {
  const Tensor a = ones({2, 3});
  expect_error(
      [&] {
        matmul(a, ones({4, 5}));
      },
      "matmul", "b has shape (4, 5)", "a has shape (2, 3)", "3 columns");
  expect_error(
      [&] {
        matmul(a, ones({3, 5}, bf16));
      },
      "matmul", "a is f32 and b is bf16", ".to(f32)");
  expect_error([&] { matmul(a.to(i64), ones({3, 5}, i64)); }, "matmul", "a is i64", ".to(f32)");
  expect_error([&] { matmul(a, scalar_tensor(1)); }, "matmul", "at least one dimension");
  expect_error([&] { matmul(ones({2, 2, 3}), ones({3, 3, 5})); }, "matmul", "(2,)", "(3,)");
  expect_error([&] { matmul(a, ones({3, 5}, f32, "meta:cpu")); }, "matmul", "meta:cpu");
}

TEST_CASE("matmul: the number of threads changes nothing") {
  const Tensor a = values({3, 257, 300}, f32, cpu, 1), b = values({300, 190}, f32, cpu, 2);
  const int threads = set_num_threads(1);
  const Tensor one = matmul(a, b);
  set_num_threads(4);
  CHECK(same_bits(matmul(a, b), one));
  set_num_threads(threads);
}

TEST_CASE_FIXTURE(EachDevice, "matmul: few rows or columns, however the matrix lies") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      for (const auto& [k, n] :
           {std::pair<std::int64_t, std::int64_t>{1, 33}, {193, 7}, {1100, 19}}) {
        const Tensor a = values({rows, k}, dtype, device, 1);
        // One element further than a vector or a pair would begin.
        const Tensor b = values({k * n + 1}, dtype, device, 2).slice(0, 1).reshape({k, n});
        check_product(a, b, {rows, n}, {1});
        check_product(a.t().contiguous().t(), b.t().contiguous().t(), {rows, n}, {1});
        check_product(b.t(), a.t(), {n, rows}, {1});
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "matmul: long sums of few results") {
  for (const DType dtype : {f64, f32, bf16}) {
    check_product(values({3, 4099}, dtype, device, 1), values({4099, 5}, dtype, device, 2), {3, 5},
                  {1});
    check_product(values({2, 20, 4099}, dtype, device, 1), values({4099, 17}, dtype, device, 2),
                  {2, 20, 17}, {2});
  }
  Generator g(3);
  const Tensor a = randn({4200, 33}, f32, device, g), b = randn({4200, 9}, f32, device, g);
  const int threads = set_num_threads(1);
  const Tensor one = matmul(a.t(), b);
  set_num_threads(4);
  CHECK(same_bits(matmul(a.t(), b), one));
  set_num_threads(threads);
  // What is there counts, and NaN stays where it arises.
  const Tensor x = ones({4096, 2}, bf16, device),
               w = ones({4096, 2}, bf16, device).set_requires_grad();
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape;
    tape.backward(sum(matmul(x, w.t())));
  }
  CHECK(w.grad().to_vector() == std::vector<double>(8192, 8192));
  const Tensor bad = ones({2, 5000}, f32, device);
  bad[0].slice(0, 4999).fill_(std::nan(""));
  const std::vector<double> o = matmul(bad, ones({5000, 1}, f32, device)).to_vector();
  CHECK(std::isnan(o[0]));
  CHECK(o[1] == 5000);
}

TEST_CASE("matmul: the results of parts of a sum are in the ledger") {
  const Device meta("meta:cpu");
  const Tensor a = empty({64, 1 << 16}, f32, meta), b = empty({1 << 16, 64}, f32, meta);
  const PeakMemory peak(meta);
  const Tensor o = matmul(a, b);
  CHECK(peak.bytes_above() == o.nbytes() * (1 + 32));
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice,
                  "matmul: reduced types, each operand as it is or transposed, odd sums") {
  for (const DType dtype : {bf16, f16}) {
    for (const std::int64_t k : {1, 2, 33, 193, 400}) {
      const Tensor a = randn({50, k}, f32, device).to(dtype),
                   b = randn({k, 70}, f32, device).to(dtype);
      const Tensor wanted = matmul(a.to(f64), b.to(f64)).to(dtype);
      const double terms = std::sqrt(static_cast<double>(k));
      const Tolerance tolerance{.relative = epsilon_of(dtype),
                                .absolute = terms * epsilon_of(f32) * 4};
      for (const Tensor& x : {a, a.t().contiguous().t()}) {
        for (const Tensor& y : {b, b.t().contiguous().t()}) {
          CAPTURE(k);
          const Difference d = compare(matmul(x, y), wanted, tolerance);
          CHECK_MESSAGE(d.ok, d.text);
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "matmul: parts of a sum are not rounded on their way") {
  // In bf16 and f16, big + 1 is big, and big + 2 is the next number.
  for (const auto& [dtype, big] : {std::pair{bf16, 256.0}, {f16, 2048.0}}) {
    const Tensor a = from({big, 1.0, 1.0, 0.0}, dtype, device).reshape({1, 4});
    CHECK(matmul(a, ones({4, 1}, dtype, device)).item() == big + 2);
    CHECK(matmul(a.expand({3, 1, 4}), ones({3, 4, 2}, dtype, device)).to_vector() ==
          std::vector<double>(6, big + 2));
  }
}

TEST_CASE_FIXTURE(EachDevice, "matmul: more products than one call of cuBLAS takes") {
  const std::int64_t n = 65535 + 3;
  const Tensor a = arange(0, 2 * n, 1, f32, device).reshape({n, 1, 2});
  const Tensor b = ones({n, 2, 1}, f32, device).set_requires_grad();
  Tape tape;
  const Tensor o = matmul(a, b);
  CHECK(same_bits(o.reshape({n}), sum(a, {1, 2})));
  tape.backward(sum(o));
  CHECK(same_bits(b.grad().reshape({n, 2}), a.reshape({n, 2})));
}

TEST_CASE_FIXTURE(EachDevice, "matmul: TF32 is for those who ask for it") {
  // Halfway between two neighbours in TF32, which has 10 bits behind the point.
  const double fine = 1 + std::ldexp(3, -11);
  const Tensor a = full({4, 8}, fine, f32, device), b = ones({8, 2}, f32, device);
  const auto product = [&] { return matmul(a, b).to_vector(); };
  const std::vector<double> exact(8, 8 * fine), rounded(8, 8 * (1 + std::ldexp(2, -10)));
  CHECK_FALSE(tf32_allowed());
  CHECK(product() == exact);
  allow_tf32(true);
  CHECK(tf32_allowed());
  if (is_emulated(device)) CHECK(product() == rounded);
  if (device == cpu) CHECK(product() == exact);
  CHECK(matmul(a.to(f64), b.to(f64)).to_vector() == exact);
  allow_tf32(false);
  CHECK(product() == exact);
}

TEST_CASE("matmul: cuBLAS gets the workspace that it asks for") {
  const Device meta("meta:cuda");
  const auto workspace = [&](std::int64_t m, std::int64_t n) {
    const Tensor a = empty({m, 16}, f32, meta), b = empty({16, n}, f32, meta);
    const PeakMemory peak(meta);
    const Tensor o = matmul(a, b);
    constexpr std::size_t block = 512;  // the allocator's
    return peak.bytes_above() - (o.nbytes() + block - 1) / block * block;
  };
  CHECK(workspace(1, 1) == std::size_t{16} << 10);
  CHECK(workspace(11, 11) == std::size_t{16} << 10);
  CHECK(workspace(128, 128) == std::size_t{2} << 20);
  CHECK(workspace(512, 512) == std::size_t{32} << 20);
  CHECK(workspace(4096, 4096) == std::size_t{32} << 20);
}
