#include "quipu/core/shape.h"

#include <vector>

#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

constexpr std::int64_t huge = std::int64_t{1} << 40;

/// Brute force: walks all indices in row-major order and looks where they lie.
bool lies_row_major(const Shape& shape, const Strides& strides) {
  Dims index = Dims::filled(shape.size(), 0);
  for (std::int64_t linear = 0; linear < numel(shape); ++linear) {
    std::int64_t at = 0;
    for (int d = 0; d < shape.size(); ++d) at += index[d] * strides[d];
    if (at != linear) return false;
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
  return true;
}

}  // namespace

TEST_CASE("shape: lists of up to eight sizes") {
  const Dims eight{1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(eight.size() == 8);
  CHECK(eight.back() == 8);
  CHECK(to_string(eight) == "(1, 2, 3, 4, 5, 6, 7, 8)");
  CHECK(to_string(Dims{3}) == "(3,)");
  CHECK(to_string(Dims()) == "()");
  CHECK(Dims{2, 3} == Dims(std::vector<std::int64_t>{2, 3}));
  CHECK_FALSE(Dims{2, 3} == Dims{2});
  expect_error([] { return Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}; }, "at most 8 dimensions", "9");
  expect_error([&] { Dims(eight).push_back(9); }, "at most 8 dimensions", "9");
  expect_error([&] { Dims(eight).insert(0, 9); }, "at most 8 dimensions");
  expect_error([] { return Dims::filled(9, 1); }, "at most 8 dimensions");
}

TEST_CASE("shape: insert and erase keep the order") {
  Dims dims{1, 2, 3};
  dims.insert(1, 9);
  CHECK(dims == Dims{1, 9, 2, 3});
  dims.erase(0);
  CHECK(dims == Dims{9, 2, 3});
  dims.erase(2);
  dims.push_back(7);
  CHECK(dims == Dims{9, 2, 7});
}

TEST_CASE("shape: the number of elements, and what is too many") {
  CHECK(numel({}) == 1);
  CHECK(numel({3, 4}) == 12);
  CHECK(numel({3, 0, 4}) == 0);
  CHECK(numel({std::int64_t{1} << 59}) == std::int64_t{1} << 59);
  expect_error([] { numel({(std::int64_t{1} << 59) + 1}); }, "more elements than can be addressed");
  expect_error([] { numel({huge, huge}); }, "(1099511627776, 1099511627776)", "more elements");
  expect_error([] { numel({huge, huge, huge, huge}); }, "more elements");  // the product wraps to 0
  expect_error([] { numel({huge, 0, huge}); }, "more elements");  // empty, but strides would wrap
  expect_error([] { numel({2, -3}); }, "(2, -3)", "negative");
  expect_error([] { numel({0, -3}); }, "(0, -3)", "negative");
}

TEST_CASE("shape: contiguity against brute force") {
  const std::vector<std::int64_t> sizes{0, 1, 2, 3}, steps{0, 1, 2, 3, 6};
  int contiguous = 0;
  for (const std::int64_t a : sizes) {
    for (const std::int64_t b : sizes) {
      for (const std::int64_t s : steps) {
        for (const std::int64_t t : steps) {
          CAPTURE(to_string(Dims{a, b}));
          CAPTURE(to_string(Dims{s, t}));
          CHECK(is_contiguous({a, b}, {s, t}) == lies_row_major({a, b}, {s, t}));
          contiguous += is_contiguous({a, b}, {s, t});
        }
      }
      CHECK(is_contiguous({a, b}, contiguous_strides({a, b})));
    }
  }
  CHECK(contiguous > 0);
  CHECK(is_contiguous({}, {}));
  CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(contiguous_strides({2, 0, 4}) == Strides{4, 4, 1});
}

TEST_CASE("shape: dimensions count from the end when negative") {
  CHECK(wrap_dim(0, 3) == 0);
  CHECK(wrap_dim(-1, 3) == 2);
  CHECK(wrap_dim(-3, 3) == 0);
  expect_error([] { wrap_dim(3, 3); }, "dimension 3", "3 dimensions");
  expect_error([] { wrap_dim(-4, 3); }, "dimension -4", "3 dimensions");
  expect_error([] { wrap_dim(1, 1); }, "1 dimension");
  expect_error([] { wrap_dim(0, 0); }, "0 dimensions");
}

TEST_CASE("shape: broadcasting aligns shapes at the end") {
  CHECK(broadcast_shapes({3, 1}, {4}) == Shape{3, 4});
  CHECK(broadcast_shapes({}, {2, 3}) == Shape{2, 3});
  CHECK(broadcast_shapes({5, 1, 3}, {4, 1}) == Shape{5, 4, 3});
  CHECK(broadcast_shapes({1}, {0}) == Shape{0});
  CHECK(broadcast_shapes({0, 1}, {1, 7}) == Shape{0, 7});
  expect_error(
      [] {
        broadcast_shapes({2, 3}, {2, 4});
      },
      "(2, 3)", "(2, 4)", "3 and 4", "dimension -1");
  expect_error([] { broadcast_shapes({2, 3, 4}, {3, 3, 4}); }, "2 and 3", "dimension -3");
  expect_error([] { broadcast_shapes({0}, {2}); }, "0 and 2");
}

TEST_CASE("shape: what broadcasts to what, and with which strides") {
  CHECK(can_broadcast({3, 1}, {2, 3, 4}));
  CHECK(can_broadcast({}, {}));
  CHECK(can_broadcast({1}, {0}));
  CHECK_FALSE(can_broadcast({3}, {1}));
  CHECK_FALSE(can_broadcast({1, 3}, {3}));
  CHECK_FALSE(can_broadcast({0}, {1}));
  CHECK(broadcast_strides({3, 1}, {1, 1}, {2, 3, 4}) == Strides{0, 1, 0});
  CHECK(broadcast_strides({3, 4}, {4, 1}, {3, 4}) == Strides{4, 1});
}

TEST_CASE("shape: axes to reduce over") {
  CHECK(Axes().resolve(2) == std::array<bool, max_dims>{true, true});
  CHECK(Axes(-1).resolve(3) == std::array<bool, max_dims>{false, false, true});
  CHECK(Axes({0, -1}).resolve(3) == std::array<bool, max_dims>{true, false, true});
  CHECK(Axes().resolve(0) == std::array<bool, max_dims>{});
  expect_error([] { Axes({1, -2}).resolve(3); }, "dimension -2", "twice");
  expect_error([] { Axes(3).resolve(3); }, "dimension 3");
}
