// Batches in the right order, whoever fills them, and from any place on.
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "loaders.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/nn/data/loader.h"
#include "quipu/nn/data/token_file.h"
#include "quipu/nn/named_state.h"
#include "quipu/ops/join.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "support/child.h"
#include "support/safetensors_files.h"
#include "support/support.h"
#include "support/thread_limit.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::nn;
using namespace quipu::nn::detail;
using namespace quipu::testing;

TEST_CASE("loader: in order, epoch after epoch") {
  for (const int prefetch : {0, 1, 2, 5}) {
    Loader loader(numbered(7), {.batch_size = 3, .prefetch = prefetch});
    CHECK(loader.batches_per_epoch() == 3);
    CHECK(ids_of(loader, 4) ==
          std::vector<std::vector<double>>{{0, 1, 2}, {3, 4, 5}, {6}, {0, 1, 2}});
    CHECK(loader.epoch() == 1);
    CHECK(loader.batch_of_epoch() == 1);

    Loader whole(numbered(7), {.batch_size = 3, .drop_last = true, .prefetch = prefetch});
    CHECK(whole.batches_per_epoch() == 2);
    CHECK(ids_of(whole, 3) == std::vector<std::vector<double>>{{0, 1, 2}, {3, 4, 5}, {0, 1, 2}});

    Loader large(numbered(3), {.batch_size = 100, .prefetch = prefetch});
    CHECK(ids_of(large, 2) == std::vector<std::vector<double>>{{0, 1, 2}, {0, 1, 2}});
  }
}

TEST_CASE("loader: shuffled, every sample once an epoch, rows stay together") {
  Loader loader(numbered(50), {.batch_size = 8, .shuffle = true, .seed = 3});
  std::vector<double> orders[3];
  for (auto& order : orders) {
    std::set<double> seen;
    for (const Batch& batch : loader) {
      CHECK(same_bits(batch[1], rows_of(batch[0])));
      for (const double id : ids(batch)) {
        seen.insert(id);
        order.push_back(id);
      }
    }
    CHECK(order.size() == 50);
    CHECK(seen.size() == 50);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  CHECK(loader.epoch() == 3);
  Loader other(numbered(50), {.batch_size = 50, .shuffle = true, .seed = 4});
  CHECK(ids(other.next()) != orders[0]);
  Loader again(numbered(50), {.batch_size = 50, .shuffle = true, .seed = 3, .prefetch = 0});
  CHECK(ids(again.next()) == orders[0]);
}

TEST_CASE("loader: same bits with and without a thread") {
  const TensorDataset data({randn({40, 5}), randn({40}, bf16), randint(0, 9, {40, 2, 2})});
  LoaderOptions options{.batch_size = 6, .shuffle = true, .seed = 1, .prefetch = 0};
  Loader plain(data, options);
  options.prefetch = 3;
  Loader ahead(data, options);
  for (int i = 0; i < 30; ++i) CHECK(same(plain.next(), ahead.next()));
}

TEST_CASE("loader: resumed at any place, whatever was read ahead") {
  const auto options = [](int prefetch, std::uint64_t seed) {
    return LoaderOptions{.batch_size = 4, .shuffle = true, .seed = seed, .prefetch = prefetch};
  };
  constexpr int batches = 14;  // more than two epochs
  Loader uninterrupted(numbered(22), options(2, 9));
  const auto expected = ids_of(uninterrupted, batches);
  for (int stop = 0; stop < batches; ++stop) {
    for (const int prefetch : {0, 1, 4}) {
      Loader first(numbered(22), options(prefetch, 9));
      ids_of(first, stop);
      const NamedTensors state = first.state();
      Loader second(numbered(22), options(4 - prefetch, 0));  // the seed comes with the state
      ids_of(second, 3);                                      // has moved and read ahead before
      second.load_state(state);
      CHECK(second.epoch() == stop / 6);
      CHECK(second.batch_of_epoch() == stop % 6);
      const std::vector<std::vector<double>> rest(expected.begin() + stop, expected.end());
      CHECK(ids_of(second, batches - stop) == rest);
      first.load_state(state);  // back to where it was
      CHECK(ids_of(first, batches - stop) == rest);
    }
  }
}

TEST_CASE("loader: a state of other data or options is refused and changes nothing") {
  const LoaderOptions usual{.batch_size = 4, .shuffle = true, .seed = 1};
  Loader loader(numbered(20), usual);
  ids_of(loader, 2);
  const NamedTensors state = loader.state();
  const auto refused = [&](std::int64_t n, const LoaderOptions& options, const Expected& part) {
    Loader other(numbered(n), options);
    ids_of(other, 1);
    expect_error([&] { other.load_state(state); }, part, "loader: ");
    CHECK(other.batch_of_epoch() == 1);
  };
  refused(21, usual, "samples was 20 and is 21");
  refused(20, {.batch_size = 5, .shuffle = false, .drop_last = true},
          "batch_size was 4 and is 5, shuffle was 1 and is 0, drop_last was 0 and is 1");
  refused(20, {.batch_size = 4, .shuffle = true, .world = 2}, "world was 1 and is 2");

  const auto with = [&](const char* name, const Tensor& value) {
    NamedTensors changed = state;
    for (auto& [key, tensor] : changed) {
      if (key == name) tensor = value;
    }
    return changed;
  };
  expect_error([&] { loader.load_state(with("batch", to_state(5))); }, "batch 5 of epoch 0");
  expect_error([&] { loader.load_state(with("epoch", to_state(-1))); }, "is no position");
  expect_error([&] { loader.load_state(with("epoch", zeros({}))); }, "'epoch' of the state is f32");
  expect_error([&] { loader.load_state({}); }, "the state has no number 'samples'");
  CHECK(loader.batch_of_epoch() == 2);
}

TEST_CASE("loader: processes share each step") {
  for (const std::int64_t n : {24, 25, 29, 31}) {
    for (const int world : {1, 2, 3}) {
      for (const bool drop_last : {false, true}) {
        CAPTURE(n);
        CAPTURE(world);
        const LoaderOptions one{
            .batch_size = 4 * world, .shuffle = true, .seed = 2, .drop_last = drop_last};
        Loader together(numbered(n), one);
        std::vector<Loader> ranks;
        for (int rank = 0; rank < world; ++rank) {
          LoaderOptions own = one;
          own.batch_size = 4;
          own.rank = rank;
          own.world = world;
          ranks.emplace_back(numbered(n), own);
          CHECK(ranks.back().batches_per_epoch() == together.batches_per_epoch());
        }
        for (std::int64_t i = 0; i < 2 * together.batches_per_epoch(); ++i) {
          std::vector<double> joined;
          for (Loader& loader : ranks) {
            for (const double id : ids(loader.next())) joined.push_back(id);
          }
          CHECK(joined == ids(together.next()));
        }
        CHECK(same_bits(*find_tensor(ranks.back().state(), "batch"),
                        *find_tensor(ranks.front().state(), "batch")));
      }
    }
  }
}

TEST_CASE("loader: an error of the data set comes when its batch is due") {
  for (const int prefetch : {0, 1, 3}) {
    const Fragile data(7);
    Loader loader(data, {.batch_size = 3, .prefetch = prefetch});
    CHECK(ids_of(loader, 2) == std::vector<std::vector<double>>{{0, 1, 2}, {3, 4, 5}});
    for (int tries = 0; tries < 2; ++tries) {
      expect_error([&] { loader.next(); }, "loader: sample 7 is broken");
      CHECK(loader.batch_of_epoch() == 2);
    }
    *data.broken = false;
    CHECK(ids_of(loader, 3) == std::vector<std::vector<double>>{{6, 7, 8}, {9, 10, 11}, {0, 1, 2}});
  }
}

TEST_CASE("loader: an error that nobody asks for goes away with it") {
  const Fragile data(0);
  Loader loader(data, {.batch_size = 3, .prefetch = 2});
  expect_error([&] { loader.next(); }, "sample 0 is broken");
  Loader second(Fragile(3), {.batch_size = 3, .prefetch = 2});
  CHECK(ids(second.next()) == std::vector<double>{0, 1, 2});
}

TEST_CASE("loader: ends without waiting for what is queued") {
  const Slow data;
  {
    Loader loader(data, {.batch_size = 1, .prefetch = 90});
    loader.next();
  }
  CHECK(*data.filled < 30);  // 90 were asked for
  Loader never_started(data, {.batch_size = 1});
  Loader moved = std::move(never_started);
  CHECK(ids(moved.next()) == std::vector<double>{0});
  Loader running(data, {.batch_size = 1});
  running.next();
  running = std::move(moved);
  CHECK(ids(running.next()) == std::vector<double>{1});
}

TEST_CASE("loader: many short lives") {
  for (int i = 0; i < 200; ++i) {
    Loader loader(numbered(10), {.batch_size = 2, .shuffle = true, .prefetch = i % 4});
    for (int j = 0; j < i % 7; ++j) loader.next();
    if (i % 3 == 0) loader.load_state(loader.state());
    if (i % 5 == 0) loader.next();
  }
}

TEST_CASE("loader: memory does not depend on how far the thread has come") {
  const TensorDataset data({zeros({64, 1000})});
  constexpr std::size_t batch_bytes = 8 * 1000 * sizeof(float);  // rounded up to 512 in the ledger
  constexpr std::size_t counted = (batch_bytes + 511) / 512 * 512;
  for (const int prefetch : {0, 2}) {
    const std::size_t before = memory_stats().current;
    {
      Loader loader(data, {.batch_size = 8, .shuffle = true, .prefetch = prefetch});
      CHECK(memory_stats().current == before);
      const PeakMemory peak;
      for (int i = 0; i < 40; ++i) {
        const MemoryScope scope("step");
        const Batch batch = loader.next();
        CHECK(memory_stats().current == before + counted * static_cast<std::size_t>(1 + prefetch));
        if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      CHECK(peak.bytes_above() == counted * static_cast<std::size_t>(1 + prefetch));
      for (const MemoryHolder& holder : memory_report().holders) {
        if (holder.op != "TensorDataset") continue;
        CHECK(holder.scope == "step");
        CHECK(holder.bytes == counted * static_cast<std::size_t>(prefetch));
      }
    }
    CHECK(memory_stats().current == before);
  }
}

TEST_CASE("loader: on meta it counts the same bytes and reads nothing") {
  const TensorDataset data({zeros({70, 300}), zeros({70})});
  const auto peak_on = [&](const Device& device) {
    const PeakMemory peak(device);
    Loader loader(data, {.batch_size = 16, .device = device});
    for (int i = 0; i < 7; ++i) loader.next();
    return peak.bytes_above();
  };
  CHECK(peak_on(cpu) == peak_on("meta:cpu"));

  const Device meta("meta:cpu");
  Loader loader(Fragile(0), {.batch_size = 5, .device = meta});
  const std::size_t host_before = memory_stats().current;
  const Batch batch = loader.next();
  CHECK(batch[0].device() == meta);
  CHECK(batch[0].shape() == Shape{5});
  CHECK(memory_stats().current == host_before);
}

TEST_CASE_FIXTURE(EachDevice, "loader: batches arrive on the device, unrecorded") {
  Loader loader(numbered(6), {.batch_size = 4, .device = device});
  const Tape tape;
  const auto [id, row] = loader.next<2>();
  CHECK(id.device() == device);
  CHECK(row.device() == device);
  CHECK(same_bits(row.to(cpu), rows_of(arange(4))));
  CHECK(tape.size() == 0);
  expect_error([&] { loader.next<3>(); }, "a batch of this data has 2 tensors, but next<3>()");
}

TEST_CASE("loader: a loop over an epoch goes to its end from where it is") {
  Loader loader(numbered(10), {.batch_size = 3});
  int count = 0;
  for (const Batch& batch : loader) {
    static_cast<void>(batch);
    if (++count == 2) break;
  }
  CHECK(loader.batch_of_epoch() == 2);
  std::vector<std::vector<double>> rest;
  for (const Batch& batch : loader) rest.push_back(ids(batch));
  CHECK(rest == std::vector<std::vector<double>>{{6, 7, 8}, {9}});
  CHECK(loader.epoch() == 1);
  CHECK(loader.batch_of_epoch() == 0);
}

TEST_CASE("loader: windows of a text at random places") {
  const TempDirectory directory;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i % 251);
  write_bytes(directory.file("t"), text);
  const TokenFiles data({directory.file("t")}, {.sequence = 16, .stride = 1});
  Loader loader(data, {.batch_size = 32, .shuffle = true, .seed = 5, .drop_last = true});
  std::set<double> begins;
  for (int i = 0; i < 5; ++i) {
    const auto [inputs, targets] = loader.next<2>();
    CHECK(inputs.shape() == Shape{32, 16});
    CHECK(same_bits(inputs.slice(1, 1).contiguous(), targets.slice(1, 0, 15).contiguous()));
    for (const double first : inputs.select(1, 0).to_vector()) begins.insert(first);
  }
  CHECK(begins.size() > 80);
}

TEST_CASE("loader: options that make no sense") {
  const auto refused = [](const LoaderOptions& options, const Expected& part) {
    expect_error([&] { Loader loader(numbered(10), options); }, part, "loader: ");
  };
  refused({.batch_size = 0}, "batch_size is 0");
  refused({.prefetch = -1}, "prefetch is -1");
  refused({.world = 0}, "world is 0");
  refused({.rank = 2, .world = 2}, "rank is 2, but must lie in [0, 2)");
  refused({.rank = -1}, "rank is -1");
  refused({.batch_size = 11, .drop_last = true}, "10 samples, which fill no batch of 11");
  refused({.batch_size = 6, .drop_last = true, .world = 2}, "no batch of 6 on each process");
  refused({.batch_size = std::numeric_limits<std::int64_t>::max(), .world = 2}, "too large");
  expect_error([] { Loader loader(numbered(0)); }, "loader: the data set is empty");
  expect_error([] { Loader loader(std::shared_ptr<const Dataset>(), {}); }, "no data set");
}
