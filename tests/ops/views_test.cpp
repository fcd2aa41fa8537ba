// Values of views against index arithmetic. Gradients are in views_gradient_test.cpp.
#include <limits>
#include <optional>

#include "quipu/core/tensor.h"
#include "support/support.h"
#include "support/view_model.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

using Values = std::vector<double>;

Tensor numbered(const Shape& shape, Device device = cpu) {
  return arange(numel(shape), f64, device).reshape(shape);
}

/// Brute force: the strides under which all elements of x in order are `target`, if there are any.
std::optional<Strides> strides_by_trial(const Tensor& x, const Shape& target) {
  std::vector<std::int64_t> addresses;
  for_each_index(x.shape(), [&](const Dims& index) {
    std::int64_t at = 0;
    for (int d = 0; d < x.dim(); ++d) at += index[d] * x.strides()[d];
    addresses.push_back(at);
  });
  Strides strides = Dims::filled(target.size(), 0);
  for (int d = 0; d < target.size(); ++d) {
    Dims one = Dims::filled(target.size(), 0);
    one[d] = 1;
    if (target[d] > 1) strides[d] = addresses[static_cast<std::size_t>(linear_index(one, target))];
  }
  bool fits = true;
  for_each_index(target, [&](const Dims& index) {
    std::int64_t at = 0;
    for (int d = 0; d < target.size(); ++d) at += index[d] * strides[d];
    fits = fits && at == addresses[static_cast<std::size_t>(linear_index(index, target))];
  });
  return fits ? std::optional(strides) : std::nullopt;
}

bool shares_storage(const Tensor& a, const Tensor& b) {
  return &a.storage() == &b.storage();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "views: random chains agree with index arithmetic") {
  const std::vector<Shape> starts{{2, 3, 4}, {5}, {1, 6, 1}, {3, 0, 2}, {4, 1, 3, 2}, {1}};
  for (unsigned seed = 0; seed < 400; ++seed) {
    RandomSteps steps(seed);
    const Shape start = starts[seed % starts.size()];
    Tensor x = numbered(start, device);
    ViewModel model(start);
    std::string text = to_string(start);
    for (int i = 0; i < 6; ++i) {
      const ViewStep step = steps.next(x.shape());
      text += "." + step.text;
      CAPTURE(text);
      x = step.on_tensor(x);
      model = step.on_model(model);
      REQUIRE(x.shape() == model.shape);
      REQUIRE(x.to_vector() == model.values());
    }
  }
}

TEST_CASE("views: chains on meta have the same shapes and strides") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    RandomSteps steps(seed);
    Tensor x = numbered({2, 3, 4}), y = numbered({2, 3, 4}, "meta:cpu");
    for (int i = 0; i < 6; ++i) {
      const ViewStep step = steps.next(x.shape());
      x = step.on_tensor(x);
      y = step.on_tensor(y);
      CHECK(x.shape() == y.shape());
      CHECK(x.strides() == y.strides());
      CHECK(x.offset() == y.offset());
    }
  }
}

TEST_CASE("views: view() works exactly where strides allow it") {
  const Tensor x = numbered({4, 6, 2});
  const std::vector<Tensor> sources{x,
                                    x.transpose(0, 1),
                                    x.t(),
                                    x.slice(1, 0, 6, 2),
                                    x.slice(0, 1, 3),
                                    x.slice(2, 0, 1),
                                    x.select(1, 3),
                                    x[0].unsqueeze(1),
                                    x.slice(0, 0, 1).expand({3, 6, 2}),
                                    x(0, 0, 0).expand({2, 12}),
                                    x.permute({2, 1, 0}),
                                    x.slice(1, 1, 5).transpose(1, 2)};
  const std::vector<Shape> targets{{-1},    {2, -1},    {-1, 2},       {4, -1},
                                   {-1, 3}, {2, 2, -1}, {1, -1, 1, 2}, {6, 2, -1}};
  int views = 0, copies = 0;
  for (const Tensor& source : sources) {
    for (const Shape& target : targets) {
      CAPTURE(to_string(source.shape()) + to_string(source.strides()) + to_string(target));
      std::int64_t known = 1;
      for (const std::int64_t size : target) known *= size > 0 ? size : 1;
      if (source.numel() % known != 0) continue;
      const Tensor reshaped = source.reshape(target);
      CHECK(reshaped.to_vector() == source.to_vector());
      const bool possible = strides_by_trial(source, reshaped.shape()).has_value();
      CHECK(shares_storage(reshaped, source) == possible);
      (possible ? views : copies) += 1;
      if (possible) {
        CHECK(source.view(target).to_vector() == source.to_vector());
      } else {
        expect_error([&] { return source.view(target); },
                     "view: ", to_string(source.strides()).c_str(), "reshape()");
      }
    }
  }
  CHECK(views > 20);
  CHECK(copies > 20);
}

TEST_CASE("views: reshape works out one size") {
  const Tensor x = numbered({2, 6});
  CHECK(x.reshape({-1}).shape() == Shape{12});
  CHECK(x.reshape({3, -1, 2}).shape() == Shape{3, 2, 2});
  CHECK(x.reshape({12, -1}).shape() == Shape{12, 1});
  CHECK(x.flatten().shape() == Shape{12});
  CHECK(numbered({0, 3}).reshape({-1, 3}).shape() == Shape{0, 3});
  CHECK(numbered({0, 3}).reshape({0}).shape() == Shape{0});
  CHECK(numbered({0, 3}).reshape({5, 0, 7}).shape() == Shape{5, 0, 7});
  CHECK(numbered({1}).reshape({}).shape() == Shape{});
  CHECK(numbered({1}).reshape({}).reshape({1, 1}).shape() == Shape{1, 1});
  expect_error([&] { x.reshape({5, -1}); }, "reshape: ", "(5, -1)", "12 elements", "(2, 6)");
  expect_error([&] { x.reshape({5}); }, "reshape: ", "(5,)", "12 elements");
  expect_error([&] { x.reshape({-1, -1}); }, "reshape: ", "(-1, -1)", "more than one -1");
  expect_error([&] { x.reshape({-2, 6}); }, "reshape: ", "(-2, 6)", "negative");
  expect_error([&] { x.reshape({0, -1}); }, "reshape: ", "(0, -1)", "size of 0");
  expect_error(
      [&] {
        x.reshape({std::int64_t{1} << 40, std::int64_t{1} << 40, -1});
      },
      "reshape: ", "more elements");
}

TEST_CASE_FIXTURE(EachDevice, "views: indexing reads well") {
  const Tensor x = numbered({3, 4, 5}, device);
  CHECK(x[1][2][3].item() == 33);
  CHECK(x(1, 2, 3).item() == 33);
  CHECK(x(-1, -1, -1).item() == 59);
  CHECK(x(0).shape() == Shape{4, 5});
  CHECK(x(all, 1).to_vector() == x.select(1, 1).to_vector());
  CHECK(x(rest, 0).shape() == Shape{3, 4});
  CHECK(x(0, rest, 2).to_vector() == Values{2, 7, 12, 17});
  CHECK(x(slice(1, 3), all, slice(0, {}, 2)).shape() == Shape{2, 4, 3});
  CHECK(x(0, slice(-2), 0).to_vector() == Values{10, 15});
  CHECK(x(0, slice(1, -1), 0).to_vector() == Values{5, 10});
  CHECK(x(new_axis, 0, new_axis, rest, new_axis).shape() == Shape{1, 1, 4, 5, 1});
  CHECK(x(rest).shape() == x.shape());
  CHECK(x(0, 0, 0, rest).shape() == Shape{});
  CHECK(x(slice(2, 2)).shape() == Shape{0, 4, 5});
}

TEST_CASE("views: mistakes in an index are about the tensor that was indexed") {
  const Tensor x = numbered({3, 4, 5});
  expect_error([&] { x(0, 4); }, "index 4", "dimension 1 of shape (3, 4, 5)");
  expect_error([&] { x(new_axis, 0, -5); }, "index -5", "dimension 1 of shape (3, 4, 5)");
  expect_error([&] { x(0, rest, 5); }, "index 5", "dimension 2 of shape (3, 4, 5)");
  expect_error([&] { x(0, slice(5), 5); }, "index 5", "dimension 2 of shape (3, 4, 5)");
  expect_error([&] { x(0, 0, 0, 0); }, "index: ", "4 dimensions are indexed", "(3, 4, 5)");
  expect_error([&] { x(rest, 0, rest); }, "index: ", "rest");
  expect_error([&] { x[3]; }, "select: ", "index 3", "dimension 0", "(3, 4, 5)");
  expect_error([&] { numbered({})[0]; }, "select: ", "without dimensions");
}

TEST_CASE("views: slices are those of Python") {
  const Tensor x = numbered({10});
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(x.slice(0, 2, 9, 3).to_vector() == Values{2, 5, 8});
  CHECK(x.slice(0, -3).to_vector() == Values{7, 8, 9});
  CHECK(x.slice(0, 1, 9, most).to_vector() == Values{1});
  CHECK(x.slice(0, 10).numel() == 0);
  CHECK(x.slice(-1, 0, 10).numel() == 10);
  CHECK(x.slice(0, 11).numel() == 0);
  CHECK(x.slice(0, 8, 11).to_vector() == Values{8, 9});
  CHECK(x.slice(0, -11, 2).to_vector() == Values{0, 1});
  CHECK(x.slice(0, 5, 3).numel() == 0);
  CHECK(x.slice(0, 3, 0, -2).to_vector() == Values{3, 1});
  expect_error([&] { x.slice(0, 0, 10, 0); }, "slice: ", "step", "0");
  expect_error([&] { x.slice(1, 0); }, "slice: ", "dimension 1");
}

TEST_CASE("views: other mistakes are named") {
  const Tensor x = numbered({2, 3, 4});
  expect_error([&] { x.transpose(0, 3); }, "transpose: ", "dimension 3");
  expect_error([&] { x.permute({0, 1}); }, "permute: ", "(0, 1)", "3 dimensions", "(2, 3, 4)");
  expect_error([&] { x.permute({0, 1, 1}); }, "permute: ", "dimension 1", "twice");
  expect_error([&] { x.permute({0, 1, 5}); }, "permute: ", "dimension 5");
  expect_error([&] { numbered({3}).t(); }, "t: ", "(3,)", "two dimensions");
  CHECK(x.squeeze(1).shape() == Shape{2, 3, 4});
  expect_error([&] { x.squeeze(3); }, "squeeze: ", "dimension 3");
  expect_error([&] { x.unsqueeze(4); }, "unsqueeze: ", "dimension 4");
  expect_error([&] { zeros({1, 1, 1, 1, 1, 1, 1, 1}).unsqueeze(0); }, "unsqueeze: ", "at most 8");
  expect_error([&] { x.expand({2, 3, 5}); }, "expand: ", "(2, 3, 4)", "(2, 3, 5)", "sizes of 1");
  expect_error([&] { x.expand({3, 4}); }, "expand: ", "(3, 4)", "fewer dimensions");
  expect_error([&] { x.expand({-1, 2, 3, 4}); }, "expand: ", "-1", "new dimension");
  expect_error([&] { numbered({1}).expand({-2}); }, "expand: ", "negative");
  expect_error(
      [&] {
        numbered({1, 1}).expand({std::int64_t{1} << 40, std::int64_t{1} << 40});
      },
      "expand: ", "more elements");
}

TEST_CASE("views: writing through a view changes its source and nothing else") {
  const Tensor x = zeros({3, 4});
  x.t()[1].fill_(1);
  x(1, slice(2)).copy_from(from({5.0, 6.0}));
  CHECK(x.to_vector() == Values{0, 1, 0, 0, 0, 1, 5, 6, 0, 1, 0, 0});
  x.copy_from(from({1, 2, 3}).unsqueeze(1));  // cast and broadcast
  CHECK(x.to_vector() == Values{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
  x.slice(0, 1).copy_from(x.slice(0, 0, 2));  // the two overlap
  CHECK(x(all, 0).to_vector() == Values{1, 1, 2});
  expect_error([&] { x.copy_from(zeros({5})); }, "copy_from: ", "(5,)", "(3, 4)");
}

TEST_CASE_FIXTURE(EachDevice, "views: copies are dense and their own") {
  const Tensor x = numbered({3, 4}, device);
  CHECK(x.contiguous().same_as(x));
  CHECK(x.to(f64).same_as(x));
  CHECK(x.to(device).same_as(x));
  const Tensor turned = x.t().contiguous();
  CHECK(turned.is_contiguous());
  CHECK_FALSE(shares_storage(turned, x));
  CHECK(turned.to_vector() == Values{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11});
  const Tensor copy = x.clone();
  CHECK_FALSE(shares_storage(copy, x));
  copy.fill_(7);
  CHECK(x[0][1].item() == 1);
  CHECK(x[0].expand({2, 4}).clone().is_contiguous());
  CHECK(shares_storage(x.detach(), x));
  CHECK(same_bits(x.to(f32).to(f64), x));
  CHECK(x.t().to(i32).to_vector() == turned.to_vector());
}

TEST_CASE("views: to another device") {
  const Tensor x = numbered({2, 3});
  const Tensor y = x.to(Device("meta:cpu"));
  CHECK(y.device() == Device("meta:cpu"));
  CHECK(y.shape() == x.shape());
  expect_error([&] { y.to(cpu); }, "to: ", "meta:cpu", "no values", "empty(");
}
