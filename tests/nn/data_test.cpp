// Data sets and the order in which loaders read them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "quipu/core/memory/memory.h"
#include "quipu/nn/data/dataset.h"
#include "quipu/nn/data/permutation.h"
#include "quipu/nn/data/token_file.h"
#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::nn::detail;
using namespace quipu::testing;

namespace {

using Places = std::vector<std::int64_t>;

Places order_of(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  const Permutation order(n, seed, epoch);
  Places places;
  for (std::int64_t i = 0; i < n; ++i) places.push_back(order(i));
  return places;
}

bool is_permutation_of_all(Places places) {
  std::ranges::sort(places);
  Places all(places.size());
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return places == all;
}

/// The batch that a data set gives for these places.
Batch read(const Dataset& data, const Places& places) {
  Batch batch = data.make(static_cast<std::int64_t>(places.size()), cpu);
  data.fill(batch, places);
  return batch;
}

template <class Id>
std::string bytes_of(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

}  // namespace

TEST_CASE("data: a permutation has every number once") {
  for (std::int64_t n = 1; n <= 200; ++n) {
    CAPTURE(n);
    CHECK(is_permutation_of_all(order_of(n, 7, static_cast<std::uint64_t>(n))));
  }
  for (const std::int64_t n : {255, 256, 257, 1797, 4095, 4097, 20000}) {
    CAPTURE(n);
    CHECK(is_permutation_of_all(order_of(n, ~std::uint64_t{0}, 3)));
  }
}

TEST_CASE("data: a permutation depends on seed and epoch, and is the same everywhere") {
  CHECK(order_of(10, 1, 0) == Places{2, 6, 4, 8, 0, 7, 9, 1, 3, 5});
  CHECK(order_of(10, 1, 1) == Places{5, 2, 9, 7, 1, 4, 8, 6, 3, 0});
  CHECK(Permutation(1'000'000'000'000, 42, 7)(123456789) == 388308161155);
  CHECK(order_of(1000, 1, 2) == order_of(1000, 1, 2));
  CHECK(order_of(1000, 1, 2) != order_of(1000, 1, 3));
  CHECK(order_of(1000, 1, 2) != order_of(1000, 2, 2));
  CHECK(order_of(1000, 1, 1) != order_of(1000, 1, (std::uint64_t{1} << 32) + 1));
  CHECK(order_of(1000, 1, 1) != order_of(1000, (std::uint64_t{1} << 32) + 1, 1));
}

TEST_CASE("data: a permutation of 2^62 numbers needs no table") {
  const std::int64_t n = std::int64_t{1} << 62;
  const Permutation order(n, 5, 0), smaller(n - 12345, 5, 0);
  std::vector<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    for (const std::int64_t place : {order(i), order(n - 1 - i)}) {
      CHECK((place >= 0 && place < n));
      seen.push_back(place);
    }
    CHECK(smaller(n - 12346 - i) < n - 12345);
  }
  std::ranges::sort(seen);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
}

TEST_CASE("data: all orders of a few numbers come equally often") {
  for (const std::int64_t n : {2, 3, 4, 5}) {
    constexpr int draws_an_order = 300;
    std::int64_t orders = 1;
    for (std::int64_t i = 2; i <= n; ++i) orders *= i;
    std::map<Places, int> count;
    for (std::int64_t e = 0; e < orders * draws_an_order; ++e) {
      ++count[order_of(n, 11, static_cast<std::uint64_t>(e))];
    }
    CAPTURE(n);
    CHECK(static_cast<std::int64_t>(count.size()) == orders);
    double chi_square = 0;  // has mean orders - 1 and variance 2 (orders - 1)
    for (const auto& [order, times] : count) {
      chi_square += (times - draws_an_order) * (times - draws_an_order) / double(draws_an_order);
    }
    const double freedom = static_cast<double>(orders - 1);
    CHECK(chi_square < freedom + 5 * std::sqrt(2 * freedom));
  }
}

TEST_CASE("data: places of a shuffled epoch are not near each other") {
  constexpr std::int64_t n = 10000;
  const Places order = order_of(n, 1, 0);
  double sum = 0;
  for (std::size_t i = 1; i < order.size(); ++i) {
    sum += static_cast<double>(std::abs(order[i] - order[i - 1]));
  }
  // The mean distance of two random numbers in [0, n) is n / 3, with deviation n / sqrt(18).
  const double mean = sum / (n - 1);
  CHECK(std::abs(mean - n / 3.0) < 5 * n / std::sqrt(18.0 * n));
}

TEST_CASE("data: rows of tensors in memory, of any type and stride") {
  const Tensor grid = arange(60, f32).reshape({5, 3, 4});
  for (const DType dtype : {f64, f32, bf16, f16, i64, i32, u8, boolean}) {
    const Tensor x = grid.to(dtype).permute({1, 2, 0}), y = arange(3), z = zeros({3, 0}, dtype);
    const TensorDataset data({x, y, z});
    CHECK(data.size() == 3);
    const Batch batch = read(data, {2, 0, 2, 1});
    REQUIRE(batch.size() == 3);
    CHECK(batch[0].dtype() == dtype);
    CHECK(batch[0].shape() == Shape{4, 4, 5});
    CHECK(same_bits(batch[0][0], x[2].contiguous()));
    CHECK(same_bits(batch[0][1], x[0].contiguous()));
    CHECK(same_bits(batch[0][2], x[2].contiguous()));
    CHECK(batch[1].to_vector() == std::vector<double>{2, 0, 2, 1});
    CHECK(batch[2].shape() == Shape{4, 0});
    CHECK(read(data, {})[0].shape() == Shape{0, 4, 5});
  }
}

TEST_CASE("data: tensors in memory are shared, not copied") {
  const Tensor x = zeros({100, 10}).set_requires_grad();
  const std::size_t before = memory_stats().current;
  const TensorDataset data({x});
  const TensorDataset copy = data;  // NOLINT(performance-unnecessary-copy-initialization)
  CHECK(memory_stats().current == before);
  CHECK(!read(copy, {1})[0].requires_grad());
}

TEST_CASE("data: tensors that are no data set") {
  const auto refused = [](const std::vector<Tensor>& tensors, const Expected& part) {
    expect_error([&] { TensorDataset data(tensors); }, part, "TensorDataset: ");
  };
  refused({}, "no tensor");
  refused({zeros({2}), Tensor()}, "tensor 1 is undefined");
  refused({zeros({})}, "tensor 0 has no dimensions");
  refused({zeros({4, 2}), zeros({3})}, "tensor 1 has shape (3,), but tensor 0 has 4 samples");
  refused({zeros({4}), empty({4}, f32, "meta:cpu")}, "tensor 1 is on meta:cpu, but tensor 0");
  const TensorDataset meta({empty({4, 2}, f32, "meta:cpu")});
  CHECK(meta.make(3, "meta:cpu")[0].shape() == Shape{3, 2});
  expect_error([&] { meta.make(3, cpu); }, "has no values for batches on cpu");
}

TEST_CASE("data: a text is its bytes") {
  const TempDirectory directory;
  write_bytes(directory.file("a.txt"),
              "Gr\xc3\xb6\xc3\x9f"
              "e!");
  const TokenFiles data({directory.file("a.txt")}, {.sequence = 3});
  CHECK(data.tokens() == 8);
  CHECK(data.size() == 2);
  const Batch batch = read(data, {1, 0});
  REQUIRE(batch.size() == 2);
  CHECK(batch[0].dtype() == i64);
  CHECK(batch[0].shape() == Shape{2, 3});
  CHECK(batch[0].to_vector() == std::vector<double>{0xb6, 0xc3, 0x9f, 'G', 'r', 0xc3});
  CHECK(batch[1].to_vector() == std::vector<double>{0xc3, 0x9f, 'e', 'r', 0xc3, 0xb6});
}

TEST_CASE("data: windows over several files of every type") {
  const TempDirectory directory;
  constexpr std::int64_t total = 40;
  const auto check_type = [&]<class Id>(TokenType type, Id scale) {
    std::vector<std::string> paths;
    std::int64_t next = 0;
    for (const std::int64_t length : {7, 0, 1, 20, 12}) {  // one of them is empty
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < length; ++i) {
        ids.push_back(static_cast<Id>(static_cast<Id>(next++) * scale));
      }
      paths.push_back(directory.file(std::to_string(paths.size())));
      write_bytes(paths.back(), bytes_of(ids));
    }
    for (const std::int64_t sequence : {1, 5, 39}) {
      for (const std::int64_t stride : {0, 1, 3}) {
        const TokenFiles data(paths, {.sequence = sequence, .stride = stride, .type = type});
        const std::int64_t step = stride ? stride : sequence;
        CHECK(data.tokens() == total);
        CHECK(data.size() == (total - sequence - 1) / step + 1);
        Places places(static_cast<std::size_t>(data.size()));
        std::iota(places.begin(), places.end(), std::int64_t{0});
        const Batch batch = read(data, places);
        const std::int64_t* const inputs = batch[0].data<std::int64_t>();
        const std::int64_t* const targets = batch[1].data<std::int64_t>();
        bool right = true;
        for (std::int64_t i = 0; i < data.size(); ++i) {
          for (std::int64_t j = 0; j < sequence; ++j) {
            const std::int64_t token = i * step + j, at = i * sequence + j;
            right = right && inputs[at] == token * scale && targets[at] == (token + 1) * scale;
          }
        }
        CHECK(right);
      }
    }
  };
  check_type(TokenType::u8, std::uint8_t{6});
  check_type(TokenType::u16, std::uint16_t{1600});
  check_type(TokenType::i32, std::int32_t{50'000'000});
  check_type(TokenType::i64, std::int64_t{1} << 40);
}

TEST_CASE("data: parts of token files do not meet") {
  const TempDirectory directory;
  std::string text(103, ' ');
  std::iota(text.begin(), text.end(), '\0');
  write_bytes(directory.file("t"), text);
  const TokenFiles data({directory.file("t")}, {.sequence = 4, .stride = 1});
  const TokenFiles train = data.part(0, 0.9), test = data.part(0.9, 1);
  CHECK(train.tokens() == 92);
  CHECK(test.tokens() == 11);
  CHECK(read(train, {train.size() - 1})[1].to_vector() == std::vector<double>{88, 89, 90, 91});
  CHECK(read(test, {0})[0].to_vector() == std::vector<double>{92, 93, 94, 95});
  CHECK(read(test, {test.size() - 1})[1].to_vector() == std::vector<double>{99, 100, 101, 102});
  CHECK(test.part(0.5, 1).tokens() == 6);
  expect_error([&] { data.part(0.5, 0.5); }, "TokenFiles: the part from 0.5 to 0.5 is none");
  expect_error([&] { data.part(-0.1, 1); }, "is none");
  expect_error([&] { data.part(0, std::nan("")); }, "is none");
  expect_error([&] { data.part(0.99, 1); }, "holds 2 tokens");
}

TEST_CASE("data: token files that are none") {
  const TempDirectory directory;
  const std::string path = directory.file("tokens"), empty_file = directory.file("empty");
  write_bytes(path, "0123456789");
  write_bytes(empty_file, "");
  const auto refused = [](const std::vector<std::string>& paths, const TokenOptions& options,
                          const Expected& part) {
    expect_error([&] { TokenFiles data(paths, options); }, part, "TokenFiles: ");
  };
  refused({}, {}, "there is no file");
  refused({path, directory.file("missing")}, {}, "missing: No such file or directory");
  refused({directory.path().string()}, {}, "not a regular file");
  refused({empty_file}, {.sequence = 1},
          "holds 0 tokens, but a window of 1 and its targets need 2");
  refused({path}, {.sequence = 10}, "holds 10 tokens, but a window of 10 and its targets need 11");
  refused({path, empty_file}, {.sequence = 10}, "and the other files hold 10 tokens");
  refused({path}, {.sequence = 1, .type = TokenType::i32},
          "tokens: the file has 10 bytes, which are no whole ids of 4 bytes each");
  refused({path}, {.sequence = 0}, "sequence is 0");
  refused({path}, {.sequence = std::numeric_limits<std::int64_t>::max()}, "less than 2^40");
  refused({path}, {.sequence = 2, .stride = -1}, "stride is -1");
  refused({path}, {.sequence = 2, .vocabulary = -5}, "vocabulary is -5");
}

TEST_CASE("data: an id outside the vocabulary is named with its file and place") {
  const TempDirectory directory;
  write_bytes(directory.file("a"), bytes_of(std::vector<std::int32_t>{1, 2, 3}));
  write_bytes(directory.file("b"), bytes_of(std::vector<std::int32_t>{4, 5, -1, 7, 8, 9, 1}));
  const TokenFiles data({directory.file("a"), directory.file("b")},
                        {.sequence = 3, .type = TokenType::i32, .vocabulary = 9});
  CHECK(data.size() == 3);
  CHECK(read(data, {0})[1].to_vector() == std::vector<double>{2, 3, 4});
  expect_error([&] { read(data, {1}); }, "TokenFiles: ", "b: token 2 is -1", "ids lie in [0, 9)");
  expect_error([&] { read(data, {2}); }, "b: token 5 is 9");
}
