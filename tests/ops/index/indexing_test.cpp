// Indexing by tensors and masks, slices as in Python, and what looks for entries: beside loops.
#include <quipu/quipu.h>

#include <algorithm>
#include <numeric>

#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

std::vector<double> numbers(const Tensor& x) {
  return x.to_vector();
}
using Numbers = std::vector<double>;

Tensor whole(const std::vector<std::int64_t>& values, Device device) {
  return from(values, {static_cast<std::int64_t>(values.size())}, i64, device);
}

/// 0, 1, 2, ... in a shape.
Tensor counted(const Shape& shape, Device device) {
  return arange(numel(shape), i64, device).to(f32).view(shape);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "indexing: slices as in Python") {
  const Tensor x = counted({7}, device);
  CHECK(numbers(x.slice(0, 2, 100)) == Numbers{2, 3, 4, 5, 6});
  CHECK(numbers(x.slice(0, -100, 2)) == Numbers{0, 1});
  CHECK(numbers(x.slice(0, 5, 2)).empty());
  CHECK(numbers(x.slice(0, 10, 20)).empty());
  CHECK(numbers(x.slice(0, -1, {}, -1)) == Numbers{6, 5, 4, 3, 2, 1, 0});
  CHECK(numbers(x.slice(0, 5, 0, -2)) == Numbers{5, 3, 1});
  CHECK(numbers(x.slice(0, 100, -3, -1)) == Numbers{6, 5});
  CHECK(numbers(x(slice(4, {}, -3))) == Numbers{4, 1});
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  CHECK(numbers(x.slice(0, 3, {}, lowest)) == Numbers{3});
  CHECK(numbers(x.slice(0, lowest, {}, 3)) == Numbers{0, 3, 6});
  expect_error([&] { x.slice(0, 0, 3, 0); }, "slice", "step is 0");
}

TEST_CASE_FIXTURE(EachDevice, "indexing: tensors of positions") {
  const Tensor x = counted({3, 4, 5}, device), rows = whole({2, 0, -1}, device);
  const Tensor one = x(rows);
  CHECK(one.shape() == Shape{3, 4, 5});
  CHECK(same_bits(one[2], x[2]));
  CHECK(same_bits(one[1], x[0]));
  const Tensor table = whole({1, 0, -1, 3}, device).view({2, 2});
  const Tensor middle = x(all, table, all);
  CHECK(middle.shape() == Shape{3, 2, 2, 5});
  CHECK(same_bits(middle(1, 1, 0), x(1, 3)));
  const Tensor both = x(rows, whole({0, 1, 2}, device));  // pairs
  CHECK(both.shape() == Shape{3, 5});
  CHECK(same_bits(both[2], x(2, 2)));
  const Tensor apart = x(rows, all, whole({4}, device));  // apart: in front
  CHECK(apart.shape() == Shape{3, 4});
  CHECK(same_bits(apart[0], x(2, all, 4)));
  CHECK(same_bits(x(0, rows.slice(0, 0, 2).to(i32), slice(1, 3)),
                  x[0](rows.slice(0, 0, 2), slice(1, 3))));
  CHECK(x(whole({}, device)).shape() == Shape{0, 4, 5});
  expect_error(
      [&] {
        x(whole({3}, device));
        synchronize(device);
      },
      "index", "3");
  expect_error([&] { x(ones({2}, f32, device)); }, "index", "f32");
}

TEST_CASE_FIXTURE(EachDevice, "indexing: masks") {
  const Tensor x = counted({3, 4}, device), mask = x > 6;
  CHECK(numbers(x(mask)) == Numbers{7, 8, 9, 10, 11});
  CHECK(numbers(masked_select(x, mask)) == Numbers{7, 8, 9, 10, 11});
  CHECK(x(x > 100).shape() == Shape{0});
  CHECK(same_bits(x(x(all, 0) > 2), x.slice(0, 1)));
  CHECK(numbers(nonzero(x(slice(0, 2), slice(0, 2)))) == Numbers{0, 1, 1, 0, 1, 1});
  CHECK(nonzero(scalar_tensor(3.0, f32, device)).shape() == Shape{1, 0});
  expect_error([&] { x(x(0) > 1); }, "index", "mask has shape (4,)");
  expect_error([] { nonzero(ones({2}, f32, "meta:cpu")); }, "nonzero", "meta:cpu");

  const Tensor leaf = randn({3, 4}, f64, device).set_requires_grad();
  Tape tape;
  tape.backward(sum(leaf(mask) * 2));
  CHECK(same_bits(leaf.grad(), mask.to(f64) * 2));
}

TEST_CASE_FIXTURE(EachDevice, "indexing: index_put_") {
  const Tensor x = zeros({3, 4}, f32, device);
  x.index_put_({whole({0, 2, 0}, device), 1}, from({1.0f, 2.0f, 3.0f}).to(device));
  CHECK(numbers(x(all, 1)) == Numbers{3, 0, 2});  // the last of two
  x.index_put_({whole({0, 2, 0}, device), 1}, full({}, 1, f32, device), true);
  CHECK(numbers(x(all, 1)) == Numbers{5, 0, 3});
  x.index_put_({x > 4}, full({}, -1, f32, device));
  CHECK(numbers(x(0)) == Numbers{0, -1, 0, 0});
  x.t().index_put_({0, slice(0, 2)}, from({8.0f, 9.0f}).to(device));
  CHECK(numbers(x(all, 0)) == Numbers{8, 9, 0});
  expect_error([&] { x.index_put_({0}, ones({3}, f32, device)); }, "index_put_",
               "does not broadcast");
  expect_error([&] { x.index_put_({0}, ones({4}, f64, device)); }, "index_put_", "f64");
}

TEST_CASE_FIXTURE(
    EachDevice,
    "indexing: index_put_ changes nothing that a tape knows, nor takes what it records") {
  const Tensor leaf = zeros({3}, f32, device).set_requires_grad(), plain = zeros({3}, f32, device);
  Tape tape;
  const Tensor inner = leaf * 2;
  expect_error([&] { leaf.index_put_({0}, ones({}, f32, device)); }, "NoGrad");
  expect_error([&] { inner.index_put_({0}, ones({}, f32, device)); }, "NoGrad");
  expect_error([&] { plain.index_put_({0}, inner[0]); }, "index_put_", "values wants a gradient");
  const NoGrad no_grad;
  leaf.index_put_({0}, ones({}, f32, device));
  CHECK(numbers(leaf) == Numbers{1, 0, 0});
}

TEST_CASE_FIXTURE(EachDevice, "indexing: scatter") {
  const Tensor x = full({2, 4}, 2, f32, device);
  const Tensor index = from({0, 2, 0, 3, 3, 1}, {2, 3}, i64, device);
  const Tensor source = from({5.0f, -1.0f, 7.0f, 1.0f, 4.0f, 3.0f}, {2, 3}).to(device);
  CHECK(numbers(scatter(x, 1, index, source)) == Numbers{7, 2, -1, 2, 2, 3, 2, 4});
  CHECK(numbers(scatter(x, 1, index, source, ScatterMode::mul)) ==
        Numbers{70, 2, -2, 2, 2, 6, 2, 8});
  CHECK(numbers(scatter(x, 1, index, source, ScatterMode::max)) == Numbers{7, 2, 2, 2, 2, 3, 2, 4});
  CHECK(numbers(scatter(x, 1, index, source, ScatterMode::min)) ==
        Numbers{2, 2, -1, 2, 2, 2, 2, 1});
  // Gradients go to the one that stays, and with zeros among the factors, too.
  for (const ScatterMode mode :
       {ScatterMode::overwrite, ScatterMode::mul, ScatterMode::max, ScatterMode::min}) {
    const auto f = [&](const std::vector<Tensor>& in) {
      return scatter(in[0], 1, index, in[1], mode);
    };
    const Tensor values = source.to(f64) * 1.1;
    if (mode == ScatterMode::mul) values.index_put_({0, 0}, zeros({}, f64, device));
    CHECK(gradcheck(f, {x.to(f64).set_requires_grad(), values.set_requires_grad()}));
  }
}

TEST_CASE_FIXTURE(EachDevice, "indexing: scatter along short and long lines beside loops") {
  for (const DType dtype : {f64, f32, i64}) {
    for (const std::int64_t length : {5, 300}) {
      const std::int64_t places = 7;
      const Tensor x = full({2, places}, 3, dtype, device);
      const Tensor index =
          randint(0, places - 1, {2, length}).to(device);  // the last is never named
      const Tensor source = (randint(0, 2, {2, length}) * 2 - 1).to(dtype).to(device);
      const Numbers at = numbers(index), values = numbers(source);
      for (const ScatterMode mode : {ScatterMode::mul, ScatterMode::max, ScatterMode::min}) {
        Numbers wanted = numbers(x);
        for (std::size_t i = 0; i < at.size(); ++i) {
          const std::size_t line = i / static_cast<std::size_t>(length);
          double& entry =
              wanted[line * static_cast<std::size_t>(places) + static_cast<std::size_t>(at[i])];
          entry = mode == ScatterMode::mul   ? entry * values[i]
                  : mode == ScatterMode::max ? std::max(entry, values[i])
                                             : std::min(entry, values[i]);
        }
        CHECK(numbers(scatter(x, 1, index, source, mode)) == wanted);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "indexing: sort, unique, bincount, searchsorted") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = from({3.0, 1.0, nan, 1.0, -2.0, 3.0}, {6}, f32, device);
  CHECK(numbers(sort(x).indices) == Numbers{4, 1, 3, 0, 5, 2});
  CHECK(numbers(sort(x, 0, true).indices) == Numbers{2, 0, 5, 1, 3, 4});
  CHECK(numbers(argsort(randperm(5000).to(device)))[0] >= 0);
  const Tensor shuffled = randperm(5000).to(device);
  CHECK(same_bits(sort(shuffled).values, arange(5000).to(device)));
  const Tensor lines = randint(0, 9, {7, 33}).to(device);
  const Tensor down = sort(lines, 0).values;
  CHECK(all(down.slice(0, 1) >= down.slice(0, 0, 6)).item() == 1);

  const Unique found = unique(from({3, 1, 3, -2, 1, 3}, {2, 3}, i64, device));
  CHECK(numbers(found.values) == Numbers{-2, 1, 3});
  CHECK(numbers(found.inverse) == Numbers{2, 1, 2, 0, 1, 2});
  CHECK(found.inverse.shape() == Shape{2, 3});
  CHECK(numbers(found.counts) == Numbers{1, 2, 3});
  CHECK(unique(x).values.numel() == 4);

  const Tensor whole_numbers = whole({1, 3, 1}, device);
  CHECK(numbers(bincount(whole_numbers)) == Numbers{0, 2, 0, 1});
  CHECK(numbers(bincount(whole_numbers, from({0.5f, 1.0f, 2.0f}).to(device), 6)) ==
        Numbers{0, 2.5, 0, 1, 0, 0});
  expect_error([&] { bincount(whole({-1}, device)); }, "bincount", "below 0");

  for (const std::int64_t n : {0, 1, 2, 3, 7, 64, 65}) {
    std::vector<double> sorted;
    for (std::int64_t i = 0; i < n; ++i) sorted.push_back(static_cast<double>(i / 3));
    std::vector<double> wanted = {-1, 0, 0.5, 1, 7, 100};
    const Tensor in = from(sorted, {n}, f32, device), at = from(wanted, {6}, f32, device);
    const Numbers left = numbers(searchsorted(in, at)), right = numbers(searchsorted(in, at, true));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CHECK(left[i] == std::lower_bound(sorted.begin(), sorted.end(), wanted[i]) - sorted.begin());
      CHECK(right[i] == std::upper_bound(sorted.begin(), sorted.end(), wanted[i]) - sorted.begin());
    }
  }
  const Tensor many = counted({2, 4}, device);
  CHECK(numbers(searchsorted(many, from({1.5f, 6.0f}, {2, 1}).to(device))) == Numbers{2, 2});
}

TEST_CASE_FIXTURE(EachDevice, "rearranged: beside loops") {
  const Tensor x = counted({2, 3}, device);
  CHECK(numbers(flip(x)) == Numbers{5, 4, 3, 2, 1, 0});
  CHECK(numbers(flip(x, 1)) == Numbers{2, 1, 0, 5, 4, 3});
  CHECK(numbers(roll(x, 1, 1)) == Numbers{2, 0, 1, 5, 3, 4});
  CHECK(numbers(roll(x, -4, 1)) == Numbers{1, 2, 0, 4, 5, 3});
  CHECK(numbers(repeat(x(0), {2, 2})) == Numbers{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2});
  CHECK(repeat(x, {0, 2}).shape() == Shape{0, 6});
  CHECK(numbers(tril(x + 1)) == Numbers{1, 0, 0, 4, 5, 0});
  CHECK(numbers(triu(x + 1, 1)) == Numbers{0, 2, 3, 0, 0, 6});
  CHECK(numbers(triu(x + 1, -1)) == Numbers{1, 2, 3, 4, 5, 6});
  CHECK(numbers(tril(x + 1, -100)) == Numbers{0, 0, 0, 0, 0, 0});
  CHECK(numbers(x.diagonal()) == Numbers{0, 4});
  CHECK(numbers(x.diagonal(1)) == Numbers{1, 5});
  CHECK(numbers(x.diagonal(-1)) == Numbers{3});
  CHECK(x.diagonal(7).shape() == Shape{0});
  CHECK(numbers(one_hot(whole({2, 0, 5}, device), 3)) == Numbers{0, 0, 1, 1, 0, 0, 0, 0, 0});
  const Tensor line = counted({4}, device);
  CHECK(numbers(pad(line, {{1, 2}}, PadMode::constant, 9)) == Numbers{9, 0, 1, 2, 3, 9, 9});
  CHECK(numbers(pad(line, {{2, 5}}, PadMode::reflect)) == Numbers{2, 1, 0, 1, 2, 3, 2, 1, 0, 1, 2});
  CHECK(numbers(pad(line, {{2, 1}}, PadMode::edge)) == Numbers{0, 0, 0, 1, 2, 3, 3});
  CHECK(numbers(pad(line, {{-1, -1}})) == Numbers{1, 2});
  CHECK(numbers(pad(line, {{-6, 4}}, PadMode::constant, 9)) == Numbers{9, 9});
  CHECK(numbers(pad(line, {{1, -2}}, PadMode::edge)) == Numbers{0, 0, 1});
  expect_error([&] { pad(line, {{-3, -3}}); }, "pad", "cut more");
  CHECK(numbers(outer(line.slice(0, 1, 3), line)) == Numbers{0, 1, 2, 3, 0, 2, 4, 6});
}

TEST_CASE_FIXTURE(EachDevice, "einsum: beside matmul, sums and diagonals") {
  const Tensor a = randn({3, 4, 5}, f64, device), b = randn({3, 5, 2}, f64, device),
               m = randn({4, 4}, f64, device);
  CHECK(allclose(einsum("bij,bjk->bik", {a, b}), matmul(a, b)));
  CHECK(allclose(einsum("bij, bjk", {a, b}), sum(matmul(a, b), 0)));
  CHECK(allclose(einsum("...ij,...jk->...ik", {a, b}), matmul(a, b)));
  CHECK(allclose(einsum("ii->i", {m}), m.diagonal()));
  CHECK(allclose(einsum("ii", {m}), sum(m.diagonal())));
  CHECK(allclose(einsum("ij->ji", {m}), m.t()));
  CHECK(allclose(einsum("bij->i", {a}), sum(a, {0, 2})));
  CHECK(allclose(einsum("bij,ik,bjl->kl", {a, m, b}), sum(matmul(matmul(m.t(), a), b), 0)));
  CHECK(allclose(einsum("i,j->ij", {m[0], m[1]}), outer(m[0], m[1])));
  CHECK(einsum("bij,bjk->bik", {a.slice(2, 0, 0), b.slice(1, 0, 0)}).shape() == Shape{3, 4, 2});
  const auto f = [](const std::vector<Tensor>& in) {
    return einsum("bij,kj,ii->bk", {in[0].slice(2, 0, 4), in[1], in[1]});
  };
  CHECK(gradcheck(f, {a.set_requires_grad(), m.set_requires_grad()}));
  expect_error([&] { einsum("ij,jk", {m}); }, "einsum", "2 operands, but 1");
  expect_error([&] { einsum("ijk->i", {m}); }, "einsum", "shape (4, 4)");
  expect_error(
      [&] {
        einsum("ij,jk", {m, ones({3, 3}, f64, device)});
      },
      "einsum", "letter 'j' is 4 and 3");
  expect_error([&] { einsum("ij->ix", {m}); }, "einsum", "'x' in its result alone");
  expect_error([&] { einsum("i!", {m}); }, "einsum", "'!'");
}

TEST_CASE_FIXTURE(EachDevice,
                  "decided: tensors without dimensions, two numbers, bounds that cross") {
  const Tensor one = scalar_tensor(3.0, f32, device);
  for (const int dim : {0, -1}) {
    CHECK(sum(one, dim).item() == 3);
    CHECK(max(one, dim).item() == 3);
    CHECK(argmax(one, dim).item() == 0);
    CHECK(softmax(one, dim).item() == 1);
    CHECK(log_softmax(one, dim).item() == 0);
    CHECK(cumsum(one, dim).item() == 3);
    CHECK(cumprod(one, dim).item() == 3);
    CHECK(sort(one, dim).values.item() == 3);
    CHECK(one.squeeze(dim).dim() == 0);
  }
  expect_error([&] { sum(one, 1); }, "sum", "dimension 1");
  const Tensor x = counted({2, 3}, device);
  CHECK(x.squeeze(0).shape() == Shape{2, 3});
  // A tensor without dimensions promotes as any other; a number does not.
  CHECK((one.to(f64) + x).dtype() == f64);
  const Tensor mask = x > 2;
  CHECK(where(mask, 1.5, 0).dtype() == f32);
  CHECK(where(mask, 1, 0).dtype() == i64);
  CHECK(where(mask, true, false).dtype() == boolean);
  CHECK(numbers(where(mask, 2, -1)) == Numbers{-1, -1, -1, 2, 2, 2});
  CHECK(numbers(clamp(x, 4, 1)) == Numbers{1, 1, 1, 1, 1, 1});
}
