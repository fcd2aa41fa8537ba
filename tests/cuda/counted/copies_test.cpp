// What copies ask of the host and of streams: counted by the emulated devices.
#include <optional>
#include <vector>

#include "quipu/core/memory/allocator.h"
#include "quipu/core/streams.h"
#include "quipu/cuda/emulator/emulator.h"
#include "quipu/cuda/launch.h"
#include "quipu/quipu.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

const Device first("cuda:0"), second("cuda:1");

/// Under seed 0 everything would run where it is called, and nothing would ever have to be waited
/// for.
class Queued {
 public:
  Queued() : kept_(emulator::settings()) {
    if (kept_.seed == 0) emulator::settings().seed = 1;
  }
  ~Queued() { emulator::settings() = kept_; }
  Queued(const Queued&) = delete;
  Queued& operator=(const Queued&) = delete;

 private:
  emulator::Settings kept_;
};

/// Work that is queued and has not run yet.
Tensor queued_work(Device device) {
  return ones({1000}, f32, device) * 2.0;
}

Tensor counting(std::int64_t n) {
  return arange(0, static_cast<double>(n), 1, f32);
}

}  // namespace

TEST_CASE("copies: the tensors of a batch do not wait for each other behind earlier work") {
  if (!is_available(first)) return;
  const Queued queued;
  const std::vector<std::int64_t> sizes{1000, 7, 300000, 64};
  std::vector<Tensor> host, there;
  for (const std::int64_t n : sizes) host.push_back(counting(n));
  for (const Tensor& x : host) static_cast<void>(x.to(first));  // buffers and memory are made
  synchronize(first);
  const Tensor work = queued_work(first);
  emulator::clear_counters();  // which waits for everything
  const Tensor more = queued_work(first);
  for (const Tensor& x : host) there.push_back(x.to(first));
  CHECK(emulator::host_calls().waits == 0);
  CHECK(emulator::host_calls().uploads == 4);
  for (std::size_t i = 0; i < host.size(); ++i) CHECK(same_bits(there[i].to(cpu), host[i]));
}

TEST_CASE("copies: buffers are filled again only when they were read, on several streams too") {
  if (!is_available(first)) return;
  const Queued queued;
  const Stream side(first);
  std::vector<Tensor> there;
  for (int i = 0; i < 12; ++i) {  // 1 MiB each: four fill a buffer
    std::optional<StreamScope> scope;
    if (i % 3 == 1) scope.emplace(side);
    there.push_back((counting(1 << 18) + static_cast<double>(i)).to(first));
  }
  side.current_waits();
  for (int i = 0; i < 12; ++i) {
    CAPTURE(i);
    note_use(there[static_cast<std::size_t>(i)]);
    CHECK(same_bits(there[static_cast<std::size_t>(i)].to(cpu),
                    counting(1 << 18) + static_cast<double>(i)));
  }
}

TEST_CASE("copies: between devices they leave the host out") {
  if (!is_available(first)) return;
  const Queued queued;
  const Tensor x = counting(5000).to(first);
  static_cast<void>(x.to(second));
  synchronize(first);
  synchronize(second);
  emulator::clear_counters();
  Tensor y = x * 2.0, there = y.to(second);
  y = Tensor();
  const Tensor taken = full({5000}, 7, f32, first);  // lies where y lay, and waits for the copy
  const Tensor last = there * 3.0;
  const emulator::HostCalls calls = emulator::host_calls();
  CHECK(calls.peer_copies == 1);
  CHECK(calls.uploads == 0);
  CHECK(calls.downloads == 0);
  CHECK(calls.waits == 0);
  CHECK(same_bits(last.to(cpu), counting(5000) * 6.0));
  CHECK(sum(taken).item() == 35000);
}

TEST_CASE("copies: from pinned memory nothing waits, and the memory is not reused too early") {
  if (!is_available(first)) return;
  const Queued queued;
  const std::size_t before = memory_stats(cpu).current;
  Tensor x = pin_memory(counting(1000));
  CHECK(is_pinned(x));
  CHECK(is_pinned(x.slice(0, 500, 600)));
  CHECK_FALSE(is_pinned(counting(3)));
  CHECK(same_bits(pin_memory(x), x));
  CHECK(memory_stats(cpu).current == before + 4096);  // it is the CPU's
  CHECK(memory_stats(cpu).by_category[static_cast<std::size_t>(Category::output)] >= 4096);
  static_cast<void>(x.to(first));
  synchronize(first);
  emulator::clear_counters();
  const Tensor work = queued_work(first);
  const void* address = x.storage().data();
  const Tensor there = to_async(x, first);
  x = Tensor();
  Tensor other = pin_memory(counting(1000) * 5.0);  // not in the memory that is still read
  CHECK(other.storage().data() != address);
  CHECK(emulator::host_calls().waits == 0);
  CHECK(same_bits(there.to(cpu), counting(1000)));
  other = Tensor();
  const Tensor again = pin_memory(counting(1000));  // by now it is read
  CHECK((again.storage().data() == address || emulator::host_calls().allocations == 1));
  const Tensor rows =
      to_async(counting(12).reshape({3, 4}).t(), first);  // neither dense nor pinned
  CHECK(same_bits(rows.to(cpu), counting(12).reshape({3, 4}).t().contiguous()));
}

TEST_CASE("copies: pinned memory is kept for the next request and given back when asked") {
  if (!is_available(first)) return;
  const Queued queued;
  static_cast<void>(pin_memory(counting(1000)));
  emulator::clear_counters();
  for (int i = 0; i < 5; ++i)
    static_cast<void>(to_async(pin_memory(counting(1000)), first).to(cpu));
  CHECK(emulator::host_calls().allocations <= 1);
  const std::size_t reserved = memory_stats(cpu).reserved;
  emulator::clear_counters();
  release_cached(cpu);
  CHECK(emulator::host_calls().frees >= 1);
  CHECK(memory_stats(cpu).reserved + 4096 <= reserved);
  expect_error([] { return pin_memory(ones({2}, f32, first)); }, "pin_memory: x is on cuda:0");
  CHECK(same_bits(pin_memory(counting(0)), counting(0)));
  const bool caching = set_caching(false);
  CHECK_FALSE(is_pinned(pin_memory(counting(5))));
  set_caching(caching);
}

TEST_CASE("copies: batches of a loader go to the device without waiting") {
  if (!is_available(first)) return;
  const Queued queued;
  const Tensor x = counting(640).reshape({64, 10}), y = arange(0, 64, 1, i64);
  for (const int prefetch : {0, 2}) {
    CAPTURE(prefetch);
    nn::Loader loader(nn::TensorDataset({x, y}),
                      {.batch_size = 8, .prefetch = prefetch, .device = first});
    nn::Loader plain(nn::TensorDataset({x, y}), {.batch_size = 8});
    for (int i = 0; i < 8; ++i) static_cast<void>(loader.next());
    synchronize(first);
    emulator::clear_counters();
    std::vector<nn::Batch> batches;
    for (int i = 0; i < 4; ++i) {
      batches.push_back(loader.next());
      static_cast<void>(queued_work(first));
    }
    CHECK(emulator::host_calls().waits == 0);
    for (const nn::Batch& batch : batches) {
      const nn::Batch expected = plain.next();
      for (std::size_t k = 0; k < 2; ++k) CHECK(same_bits(batch[k].to(cpu), expected[k]));
    }
  }
}

TEST_CASE("copies: a free block of the own stream is preferred to one that must be waited for") {
  if (!is_available(first)) return;
  const Queued queued;
  const Stream side(first);
  for (const std::int64_t n : {std::int64_t{1000}, std::int64_t{1} << 20}) {
    CAPTURE(n);
    release_cached(first);
    std::vector<Tensor> all;
    for (int i = 0; i < 12; ++i) all.push_back(empty({n}, f32, first));
    synchronize(first);
    all[2] = Tensor();  // free, last used by the main stream
    {
      const StreamScope scope(side);
      all[6] = Tensor();  // free, last used by both
    }
    emulator::clear_counters();
    const Tensor taken = empty({n}, f32, first);
    CHECK(emulator::host_calls().stream_waits == 0);
    const Tensor other = empty({n}, f32, first);  // now there is nothing else
    CHECK(emulator::host_calls().stream_waits == 1);
  }
  side.synchronize();
}

TEST_CASE("streams: a stream of the program's own is used in order, and can be destroyed then") {
  if (!is_available(first)) return;
  const Queued queued;
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    cudaStream_t stream = nullptr;
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    Tensor x = counting(5000).to(first), y;
    {
      const OnStream on(first, stream);
      const Tensor inner = full({5000}, 3, f32, first);
      CHECK(sum(inner).item() == 15000);
      y = matmul(x.reshape({50, 100}), x.reshape({100, 50})) + sum(x);
      x = Tensor();
      CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);  // it was queued there
    }
    y.add_(1.0);                                   // on the main stream, without fresh memory
    const Tensor z = full({5000}, 9, f32, first);  // may lie where x lay
    cudaStreamDestroy(stream);
    const Tensor host = counting(5000);
    CHECK(allclose(y.to(cpu),
                   matmul(host.reshape({50, 100}), host.reshape({100, 50})) + sum(host) + 1.0));
    CHECK(sum(z).item() == 45000);
  }
  const OnStream on_default(first, nullptr), nothing(cpu, nullptr);
  CHECK(sum(counting(10).to(first)).item() == 45);
  CHECK(emulator::report_text() == "");
}

TEST_CASE("devices: the program may change the current device between two calls") {
  if (!is_available(second)) return;
  const Tensor x = counting(20000).to(first);
  for (const int device : {1, 0, 1}) {
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    CHECK(sum(x).item() == sum(counting(20000)).item());
    REQUIRE(cudaSetDevice(device) == cudaSuccess);
    CHECK(matmul(x.reshape({100, 200}), x.reshape({200, 100})).to(second).device() == second);
  }
  CHECK(emulator::report_text() == "");
  cudaSetDevice(0);
}
