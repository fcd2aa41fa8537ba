// Factories, access to values, reading them back. Printing and comparison have files of their own.
#include "quipu/core/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "quipu/core/memory/memory.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<double> constant(std::size_t n, double value) {
  return std::vector<double>(n, value);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "tensor: what a handle tells") {
  const Tensor x = zeros({2, 3, 4}, bf16, device);
  CHECK(x.defined());
  CHECK(x.dim() == 3);
  CHECK(x.size(0) == 2);
  CHECK(x.size(-1) == 4);
  CHECK(x.numel() == 24);
  CHECK(x.nbytes() == 48);
  CHECK(x.strides() == Strides{12, 4, 1});
  CHECK(x.device() == device);
  CHECK(x.is_contiguous());
  CHECK_FALSE(Tensor().defined());
  const Tensor y = x;  // a copy of the handle is the same tensor
  CHECK(y.same_as(x));
  CHECK_FALSE(x.detach().same_as(x));
  CHECK(&x.detach().storage() == &x.storage());
  expect_error([&] { return x.size(3); }, "dimension 3", "3 dimensions");
}

TEST_CASE_FIXTURE(EachDevice, "tensor: zeros, ones and full in every type") {
  for (const DType t : {f64, f32, bf16, f16, i64, i32, u8, boolean}) {
    CAPTURE(to_string(t));
    CHECK(zeros({3, 2}, t, device).to_vector() == constant(6, 0));
    CHECK(ones({3, 2}, t, device).to_vector() == constant(6, 1));
    CHECK(full({5}, 1, t, device).to_vector() == constant(5, 1));
    CHECK(zeros({0, 3}, t, device).to_vector().empty());
    CHECK(full({}, 1, t, device).item() == 1);
    CHECK(zeros_like(ones({2}, t, device)).dtype() == t);
  }
  CHECK(full({2}, 0.1, f32, device)[0].item() == 0.1f);
  CHECK(full({2}, -infinity, f16, device)[1].item() == -infinity);
  CHECK(std::isnan(scalar_tensor(std::nan(""), f64, device).item()));
  const std::int64_t big = (std::int64_t{1} << 60) + 1;
  CHECK(full({2}, big, i64, device)[1].item_int() == big);
}

TEST_CASE_FIXTURE(EachDevice, "tensor: a fill does not touch its neighbours") {
  const Tensor x = zeros({100}, f32, device);
  x.slice(0, 7, 93).fill_(1);
  std::vector<double> wanted = constant(100, 0);
  std::fill(wanted.begin() + 7, wanted.begin() + 93, 1);
  CHECK(x.to_vector() == wanted);
}

TEST_CASE_FIXTURE(EachDevice, "tensor: arange") {
  CHECK(arange(4, i64, device).to_vector() == std::vector<double>{0, 1, 2, 3});
  CHECK(arange(0, i64, device).numel() == 0);
  CHECK(arange(2, 8, 3, i32, device).to_vector() == std::vector<double>{2, 5});
  CHECK(arange(1, 0, -0.25, f32, device).to_vector() == std::vector<double>{1, 0.75, 0.5, 0.25});
  CHECK(arange(0, 1, 0.1, f64, device).numel() == 10);
  CHECK(arange(3, 1, 1, f32, device).numel() == 0);
  CHECK(arange(1e300, -1e300, 1e-3, f64, device).numel() == 0);
  CHECK(arange(256, u8, device)[255].item() == 255);
  CHECK(arange(2, boolean, device).to_vector() == std::vector<double>{0, 1});
  const Tensor x = arange(100003, f64, device);  // more than one chunk of work
  CHECK(x[100002].item() == 100002);
  CHECK(x[54321].item() == 54321);
}

TEST_CASE_FIXTURE(EachDevice, "tensor: linspace has both ends exactly") {
  CHECK(linspace(0, 1, 5, f64, device).to_vector() == std::vector<double>{0, 0.25, 0.5, 0.75, 1});
  CHECK(linspace(2, 7, 1, f64, device).to_vector() == std::vector<double>{2});
  CHECK(linspace(2, 7, 0, f64, device).numel() == 0);
  for (const std::int64_t n : {2, 3, 7, 49, 50, 1001}) {
    const std::vector<double> v = linspace(-0.3, 1.7, n, f64, device).to_vector();
    CHECK(v.front() == -0.3);
    CHECK(v.back() == 1.7);
    CHECK(std::is_sorted(v.begin(), v.end()));
  }
}

TEST_CASE_FIXTURE(EachDevice, "tensor: eye") {
  CHECK(eye(3, f32, device).to_vector() == std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(eye(1, boolean, device).item() == 1);
  CHECK(eye(0, f32, device).shape() == Shape{0, 0});
}

TEST_CASE_FIXTURE(EachDevice, "tensor: randperm is a permutation, and a seed's own") {
  for (const std::int64_t n : {0, 1, 2, 1000}) {
    Generator g(7), h(7);
    std::vector<double> v = randperm(n, device, g).to_vector();
    CHECK(v == randperm(n, device, h).to_vector());
    CHECK(g.state() == h.state());
    if (n == 1000) CHECK_FALSE(v == randperm(n, device, g).to_vector());
    std::sort(v.begin(), v.end());
    CHECK(v == arange(n).to_vector());
  }
}

TEST_CASE_FIXTURE(EachDevice, "tensor: from values") {
  const std::vector<float> v{1, 2, 3, 4, 5, 6};
  CHECK(from(v, {2, 3}, f32, device).to_vector() == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(from(v, {2, 3}, i32, device)[1][2].item_int() == 6);
  CHECK(from(std::span<const float>(v).subspan(4), {2}, f64, device).to_vector() ==
        std::vector<double>{5, 6});
  CHECK(from({1.5, 2.5}, bf16, device).to_vector() == std::vector<double>{1.5, 2.5});
  CHECK(from({1, 2, 3, 4}, {2, 2}, i32, device)[1][0].item_int() == 3);
  CHECK(from({true, false}, boolean, device).to_vector() == std::vector<double>{1, 0});
  CHECK(from({1, 2}).dtype() == i32);
  CHECK(from({1.0, 2.0}).dtype() == f64);
  CHECK(from({1.0f}).dtype() == f32);
  CHECK(from({std::int64_t{1}}).dtype() == i64);
  CHECK(from(std::vector<double>{}, {0, 2}, f64, device).numel() == 0);
  CHECK(from({to_bf16(0.5)}, bf16, device).item() == 0.5);
}

TEST_CASE("tensor: factories on meta know shape and type and count bytes") {
  const Device meta("meta:cpu");
  const std::size_t before = memory_stats(meta).current;
  Generator g(3);
  const std::vector<Tensor> made{empty({2, 3}, f64, meta),
                                 zeros({2, 3}, f64, meta),
                                 ones({2, 3}, f64, meta),
                                 full({2, 3}, 4, f64, meta),
                                 rand({2, 3}, f64, meta, g),
                                 randn({2, 3}, f64, meta, g),
                                 arange(6, f64, meta),
                                 linspace(0, 1, 6, f64, meta),
                                 randperm(6, meta, g),
                                 randint(0, 9, {6}, i64, meta),
                                 from({1., 2., 3., 4., 5., 6.}, f64, meta)};
  for (const Tensor& x : made) {
    CHECK(x.device() == meta);
    CHECK(x.numel() == 6);
    CHECK(x.nbytes() == 48);
  }
  CHECK(memory_stats(meta).current - before == made.size() * 512);
}

TEST_CASE("tensor: meta draws as many random numbers as the device that it imitates") {
  Generator on_cpu(11), on_meta(11);
  for (const std::int64_t n : {0, 1, 5, 1000}) {
    rand({n}, f32, cpu, on_cpu);
    randn({n}, f64, cpu, on_cpu);
    randint(0, 5, {n}, i64, cpu, on_cpu);
    randperm(n, cpu, on_cpu);
    rand({n}, f32, "meta:cpu", on_meta);
    randn({n}, f64, "meta:cpu", on_meta);
    randint(0, 5, {n}, i64, "meta:cpu", on_meta);
    randperm(n, "meta:cpu", on_meta);
    CHECK(on_cpu.state() == on_meta.state());
  }
}

TEST_CASE("tensor: mistakes in factories are named") {
  expect_error([] { return empty({2, -1}); }, "(2, -1)", "negative");
  expect_error([] { return full({2}, 0.5, i64); }, "full: ", "0.5", "i64");
  expect_error([] { return full({2}, 300, u8); }, "full: ", "300", "u8");
  expect_error([] { return arange(-1); }, "arange: ", "-1", "negative");
  expect_error([] { return arange(257, u8); }, "arange: ", "256", "u8");
  expect_error([] { return arange(0, 1, 0); }, "arange: ", "step");
  expect_error([] { return arange(0, infinity, 1); }, "arange: ", "finite");
  expect_error([] { return arange(0, 1, 1e-300); }, "arange: ", "too many");
  expect_error([] { return arange(0.5, 3, 1, i64); }, "arange: ", "0.5", "whole", "i64");
  expect_error([] { return arange(0x1p53, 0x1p53 + 10, 1, i64); }, "arange: ", "2^53");
  expect_error([] { return linspace(0, 1, -2); }, "linspace: ", "count", "-2");
  expect_error([] { return linspace(0, 1, 2, i64); }, "linspace: ", "i64");
  expect_error([] { return linspace(0, infinity, 2); }, "linspace: ", "finite");
  expect_error([] { return eye(-1); }, "eye: ", "-1");
  expect_error([] { return rand({2}, i32); }, "rand: ", "i32", "randint");
  expect_error([] { return randint(3, 3, {2}); }, "randint: ", "[3, 3)", "empty");
  expect_error([] { return randint(0, 257, {2}, u8); }, "randint: ", "256", "u8");
  expect_error([] { return randint(0, 2, {2}, boolean); }, "randint: ", "bool");
  expect_error([] { return from({1.0, 2.0}, {3}); }, "from: ", "2 values", "(3,)");
}

TEST_CASE_FIXTURE(EachDevice, "tensor: items") {
  CHECK(from({2.5}, f64, device).item() == 2.5);
  CHECK(full({1, 1, 1}, 7, u8, device).item_int() == 7);
  CHECK(from({true}, boolean, device).item_int() == 1);
  expect_error([&] { return zeros({2}, f32, device).item(); }, "item: ", "(2,)", "one element");
  expect_error([&] { return zeros({0}, f32, device).item(); }, "item: ", "(0,)", "one element");
  expect_error([&] { return zeros({1}, f32, device).item_int(); }, "item_int: ", "f32", "item()");
  expect_error([] { return zeros({1}, f32, "meta:cpu").item(); }, "item: ", "meta:cpu",
               "no values");
  expect_error([] { return zeros({1}, f32, "meta:cpu").to_vector(); }, "to_vector: ", "no values");
}

TEST_CASE("tensor: reading values on the CPU leaves the ledger alone") {
  const Tensor x = ones({300, 4}).t();
  const std::uint64_t before = memory_stats().allocations;
  CHECK(x[1][2].item() == 1);
  CHECK(x.to_vector().size() == 1200);
  CHECK(to_string(x).size() > 10);
  CHECK(same_bits(x, x));
  CHECK(memory_stats().allocations == before);
}

TEST_CASE("tensor: data() is typed") {
  const Tensor x = arange(6, f32).reshape({2, 3});
  CHECK(x.data<float>()[5] == 5);
  CHECK(x[1].data<float>()[0] == 3);  // the offset counts
  CHECK(zeros({0}, f32).data<float>() == nullptr);
  expect_error([&] { return x.data<double>(); }, "data<f64>()", "f32", ".to(f64)");
  expect_error([] { return zeros({1}, f32, "meta:cpu").data<float>(); }, "meta:cpu", "no values");
}

TEST_CASE("tensor: foreign memory is used where it is and kept alive") {
  auto values = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4});
  const std::weak_ptr<std::vector<float>> watch = values;
  const std::size_t before = memory_stats().current;
  {
    const Tensor x(Ref<Storage>(new Storage(values->data(), 16, cpu, values)), 0, {2, 2}, {2, 1},
                   f32);
    float* const data = values->data();
    values.reset();
    CHECK(x.data<float>() == data);
    CHECK(x.t().contiguous().to_vector() == std::vector<double>{1, 3, 2, 4});
    x.fill_(9);
    CHECK(data[3] == 9);
    CHECK_FALSE(watch.expired());
    CHECK(memory_stats().current == before);
  }
  CHECK(watch.expired());
}
