// Reading and adding at indices, joining and splitting.
#include "quipu/ops/index/gather.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/tensor.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/join.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

namespace {

using namespace quipu;
using Values = std::vector<double>;

constexpr DType all_types[] = {f64, f32, bf16, f16, i64, i32, u8, boolean};

TEST_CASE_FIXTURE(EachDevice, "gather: along each dimension, in every type") {
  for (const DType dtype : all_types) {
    CAPTURE(to_string(dtype));
    const Tensor x = arange(0, 12, 1, i64, device).reshape({3, 4}).to(dtype);
    const Tensor columns = from({0, 3, 1, 1, 2, 2}, {3, 2}, i64, device);
    const Tensor rows = from({2, 0, 1, 0}, {1, 4}, i32, device);
    const Values across{0, 3, 5, 5, 10, 10}, down{8, 1, 6, 3};
    if (dtype == boolean) {
      CHECK(gather(x, 1, columns).to_vector() == Values{0, 1, 1, 1, 1, 1});
    } else {
      CHECK(gather(x, 1, columns).to_vector() == across);
      CHECK(gather(x, 0, rows).to_vector() == down);
      CHECK(gather(x.t(), -2, columns.t()).to_vector() == Values{0, 5, 10, 3, 5, 10});
    }
    CHECK(gather(x, 1, columns).dtype() == dtype);
  }
}

TEST_CASE_FIXTURE(EachDevice, "gather: rows, columns and slices by index_select") {
  const Tensor x = arange(0, 24, 1, f32, device).reshape({2, 3, 4});
  const Tensor index = from({2, 0, 2}, i64, device);
  for (const Tensor& layout : {x, x.transpose(0, 2).contiguous().transpose(0, 2)}) {
    for (int dim = 0; dim < 3; ++dim) {
      const Tensor picks = dim == 0 ? from({1, 0, 1}, i32, device) : index;
      const Tensor o = index_select(layout, dim, picks);
      CHECK(o.size(dim) == 3);
      for (std::int64_t i = 0; i < 3; ++i) {
        CHECK(same_bits(o.select(dim, i), x.select(dim, picks[i].item_int())));
      }
    }
  }
  const Tensor table = arange(0, 3000, 1, bf16, device).reshape({1000, 3});
  Generator g(1);
  const Tensor ids = randint(0, 1000, {50000}, i64, device, g);
  CHECK(same_bits(index_select(table, 0, ids),
                  gather(table, 0, ids.unsqueeze(1).expand({50000, 3}))));
  CHECK(index_select(x, 1, zeros({0}, i64, device)).shape() == Shape{2, 0, 4});
  CHECK(index_select(zeros({3, 0}, f32, device), 0, index).shape() == Shape{3, 0});
}

/// Adds one by one.
Tensor scatter_by_hand(const Tensor& x, const Tensor& index, const Tensor& source) {
  Values sums = x.to_vector();
  const Values places = index.to_vector(), values = source.to_vector();
  const auto columns = static_cast<std::size_t>(x.size(1)),
             width = static_cast<std::size_t>(index.size(1));
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[static_cast<std::size_t>(places[i]) * columns + i % width] += values[i];
  }
  return from(sums, x.shape(), x.dtype(), x.device());
}

TEST_CASE_FIXTURE(EachDevice, "gather: scatter_add against a loop") {
  for (const DType dtype : {f64, f32, bf16, f16, i64, i32}) {
    CAPTURE(to_string(dtype));
    for (const Shape& sizes :
         {Shape{5, 40, 3, 3}, Shape{700, 900, 70, 67}, Shape{9, 3000, 1, 1}, Shape{4, 0, 2, 2}}) {
      CAPTURE(to_string(sizes));
      const std::int64_t places = sizes[0], rows = sizes[1], columns = sizes[2], width = sizes[3];
      Generator g(9);
      const Tensor x = randint(-3, 3, {places, columns}, i64, device, g).to(dtype);
      const Tensor index = randint(0, places, {rows, width}, i64, device, g);
      const Tensor source = randint(-3, 3, {rows, width}, i64, device, g).to(dtype);
      const Tensor expected =
          scatter_by_hand(x, index, source);  // small whole numbers: exact in every type
      CHECK(same_bits(scatter_add(x, 0, index, source), expected));
      CHECK(same_bits(scatter_add(x.t(), 1, index.t().to(i32), source.t()),
                      expected.t().contiguous()));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "gather: many adds to one place are rounded once") {
  const Tensor x = zeros({2}, bf16, device), index = zeros({3000}, i64, device);
  CHECK(scatter_add(x, 0, index, ones({3000}, bf16, device)).to_vector() ==
        Values{3008, 0});  // the nearest bf16
}

TEST_CASE_FIXTURE(EachDevice, "gather: gradients of an embedding add up") {
  const Tensor table = zeros({4, 3}, f32, device).set_requires_grad();
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape;
    tape.backward(sum(index_select(table, 0, from({1, 3, 1}, i64, device))));
  }
  CHECK(table.grad().to_vector() == Values{0, 0, 0, 4, 4, 4, 0, 0, 0, 2, 2, 2});
}

TEST_CASE_FIXTURE(EachDevice, "gather: an index out of range is named") {
  const Tensor x = zeros({3, 4}, f32, device);
  expect_error(
      [&] {
        gather(x, 1, from({0, 1, 2, 9}, {2, 2}, i64, device));
      },
      "gather", "index at (1, 1) is 9", "size 4 in dimension 1");
  expect_error(
      [&] {
        index_select(x, 0, from({0, -1, 7}, i32, device));
      },
      "index_select", "index at (1,) is -1", "size 3 in dimension 0");
  const Tensor o = zeros({3}, f32, device);
  expect_error(
      [&] {
        scatter_add(o, 0, from({1, 3}, i64, device), ones({2}, f32, device));
      },
      "scatter_add", "index at (1,) is 3", "size 3");
  Values many(100000, 0);
  many[77777] = 3;
  many[99999] = 4;
  expect_error([&] { index_select(x, 0, from(many, {100000}, i64, device)); },
               "index at (77777,) is 3");
}

TEST_CASE("gather: errors name the operator and the argument") {
  const Tensor x = zeros({3, 4}), index = zeros({3, 4}, i64);
  expect_error([&] { gather(x, 0, x); }, "gather", "index is f32", ".to(i64)");
  expect_error([&] { gather(x, 0, zeros({3}, i64)); }, "gather", "index has shape (3,)", "(3, 4)");
  expect_error([&] { gather(x, 0, zeros({3, 5}, i64)); }, "gather", "dimension 1");
  expect_error([&] { gather(x, 2, index); }, "gather", "dimension 2");
  expect_error([&] { index_select(x, 0, index); }, "index_select", "one dimension", "flatten()");
  expect_error(
      [&] {
        scatter_add(x, 0, index, zeros({2, 4}));
      },
      "scatter_add", "source has shape (2, 4)");
  expect_error(
      [&] {
        scatter_add(x, 0, index, zeros({3, 4}, f64));
      },
      "scatter_add", "x is f32 and source is f64");
  expect_error([&] { gather(x, 0, zeros({3, 4}, i64, "meta:cpu")); }, "gather", "meta:cpu");
}

TEST_CASE("gather: the number of threads changes nothing") {
  Generator g(2);
  const Tensor index = randint(0, 100, {20000, 70}, i64, cpu, g),
               source = randn({20000, 70}, f32, cpu, g);
  const Tensor flat = index.flatten(), values = source.flatten();
  const auto all = [&] {
    return std::vector<Tensor>{scatter_add(zeros({100, 70}), 0, index, source),
                               scatter_add(zeros({100}), 0, flat, values),
                               scatter_add(zeros({100, 70}, bf16), 0, index, source.to(bf16))};
  };
  const int threads = set_num_threads(1);
  const std::vector<Tensor> one = all();
  set_num_threads(4);
  const std::vector<Tensor> four = all();
  set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], four[i]));
}

TEST_CASE_FIXTURE(EachDevice, "join: cat along each dimension, in every type") {
  for (const DType dtype : all_types) {
    CAPTURE(to_string(dtype));
    const Tensor a = from({1.0, 0.0, 1.0, 1.0}, {2, 2}, dtype, device),
                 b = from({0.0, 1.0}, {1, 2}, dtype, device);
    CHECK(cat({a, b}).to_vector() == Values{1, 0, 1, 1, 0, 1});
    CHECK(cat({a, b.t()}, 1).to_vector() == Values{1, 0, 0, 1, 1, 1});
    CHECK(cat({a, b}, -2).dtype() == dtype);
  }
  const Tensor x = arange(0, 6, 1, f32, device).reshape({2, 3});
  CHECK(cat({x, zeros({2, 0}, f32, device), x.expand({2, 3})}, 1).shape() == Shape{2, 6});
  CHECK(cat({x}).to_vector() == x.to_vector());
}

TEST_CASE_FIXTURE(EachDevice, "join: stack and split") {
  const Tensor x = arange(0, 6, 1, f32, device).reshape({2, 3}), y = x + 10;
  CHECK(stack({x, y}).shape() == Shape{2, 2, 3});
  CHECK(same_bits(stack({x, y}, -1).select(2, 1), y));
  CHECK(stack({scalar_tensor(1), scalar_tensor(2)}).to_vector() == Values{1, 2});
  const std::vector<Tensor> parts = split(x, 2, 1);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].to_vector() == Values{0, 1, 3, 4});
  CHECK(parts[1].to_vector() == Values{2, 5});
  CHECK(&parts[1].storage() == &x.storage());
  CHECK(same_bits(cat(split(x, {1, 0, 2}, 1), 1), x));
  CHECK(split(zeros({0, 3}, f32, device), 2).size() == 1);
}

TEST_CASE("join: errors name the operator and the argument") {
  const Tensor x = zeros({2, 3});
  expect_error([&] { cat({}); }, "cat", "empty");
  expect_error(
      [&] {
        cat({x, x, zeros({3, 3})}, 1);
      },
      "cat", "tensor 2 has shape (3, 3)", "(2, 3)");
  expect_error(
      [&] {
        cat({x, zeros({2, 3}, bf16)});
      },
      "cat", "tensor 0 is f32 and tensor 1 is bf16", ".to(f32)");
  expect_error([&] { cat({x, x}, 2); }, "cat", "dimension 2");
  expect_error([&] { cat({x, zeros({2, 3}, f32, "meta:cpu")}); }, "cat", "tensor 1 on meta:cpu");
  expect_error([&] { stack({x, zeros({3, 2})}); }, "stack", "tensor 1 has shape (3, 2)");
  expect_error([&] { split(x, 0); }, "split", "size is 0");
  expect_error([&] { split(x, {1, 3}, 1); }, "split", "add up to 4", "(2, 3)");
  expect_error([&] { split(x, {4, -1}, 1); }, "split", "-1");
}

}  // namespace
