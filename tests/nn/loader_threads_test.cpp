// The loader where threads are refused, and in forked children.
#include "loaders.h"
#include "quipu/core/memory/memory.h"
#include "support/child.h"
#include "support/support.h"
#include "support/thread_limit.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::testing;

namespace {

/// Asks for memory all the time.
struct Allocating : Slow {
  void fill(const Batch&, std::span<const std::int64_t>) const override {
    for (std::int64_t i = 0; i < 5000; ++i) {
      const MemoryScope scope("fill");
      empty({1 + i % 100});
    }
  }
};

}  // namespace

TEST_CASE("loader: without a thread to prefetch, batches are filled when they are due") {
  const LoaderOptions options{.batch_size = 5, .shuffle = true, .seed = 3, .prefetch = 2};
  Loader whole(numbered(23), options), later(numbered(23), options);
  const auto wanted = ids_of(whole, 12);
  {
    const ThreadLimit limit(0);
    Loader loader(numbered(23), options);
    CHECK(ids_of(loader, 12) == wanted);
    CHECK(limit.refused() > 0);
    const Loader moved = std::move(loader);

    const Fragile data(3);
    Loader fragile(data, {.batch_size = 2, .prefetch = 2});
    fragile.next();
    expect_error([&] { fragile.next(); }, "sample 3 is broken");
    *data.broken = false;
    CHECK(ids(fragile.next()) == std::vector<double>{2, 3});
  }
  CHECK(ids_of(later, 12) == wanted);
}

TEST_CASE("loader: a forked child goes on where the parent was, and the parent does, too") {
  const LoaderOptions options{.batch_size = 5, .shuffle = true, .seed = 3, .prefetch = 2};
  Loader whole(numbered(23), options), loader(numbered(23), options);
  const auto wanted = ids_of(whole, 12);
  const std::vector<std::vector<double>> rest(wanted.begin() + 3, wanted.end());
  ids_of(loader, 3);
  CHECK(in_child([&] { return ids_of(loader, 9) == rest; }) == "");
  CHECK(in_child([&] {
          const Loader gone = std::move(loader);  // ends there with what was prefetched here
          return true;
        }) == "");
  CHECK(in_child([&] {
          loader.load_state(whole.state());
          return ids_of(loader, 2) == ids_of(whole, 2);
        }) == "");
  CHECK(ids_of(loader, 9) == rest);
}

TEST_CASE("loader: a child that is forked while a batch is filled finds no lock taken") {
  Loader loader(Allocating(), {.batch_size = 4, .prefetch = 4});
  loader.next();
  for (int i = 0; i < 12; ++i) {
    CHECK(in_child([&] {
            const MemoryScope scope("child");
            return zeros({1000}).numel() == 1000 && memory_report(cpu).text().size() > 0;
          }) == "");
    loader.next();
  }
}
