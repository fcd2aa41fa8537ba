// Several host threads on one CUDA device: each gets the bits that it would get alone, and its own
// errors. They share the main stream, its scratch memory and cuBLAS handle, and the allocator.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/streams.h"
#include "quipu/quipu.h"
#include "support/support.h"
#ifdef QUIPU_EMULATE
#include "quipu/cuda/emulator/emulator.h"
#endif

namespace {

using namespace quipu;
using namespace quipu::detail;

const Device cuda("cuda");

/// On the emulator, host threads change places between the launches of a call.
class [[maybe_unused]] Interleaved {
 public:
#ifdef QUIPU_EMULATE
  Interleaved() : kept_(emulator::settings()) {
    emulator::settings().yield = 2;
  }
  ~Interleaved() {
    emulator::settings() = kept_;
  }

 private:
  emulator::Settings kept_;
#else
  Interleaved() = default;
  ~Interleaved() = default;

 public:
#endif
  Interleaved(const Interleaved&) = delete;
  Interleaved& operator=(const Interleaved&) = delete;
};

/// f(0), f(1), ... at the same time, each in a thread of its own. What one throws is its message.
template <class F>
std::vector<std::string> in_threads(int count, F f) {
  std::vector<std::string> messages(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  std::atomic<int> ready = 0;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      try {
        f(i);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(i)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return messages;
}

/// What each of several threads gets of f(i) beside the others has the bits that it has alone.
template <class F>
void check_same_as_alone(int threads, F f) {
  using Results = std::vector<Tensor>;
  std::vector<Results> alone, together(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) alone.push_back(f(i));
  const Interleaved interleaved;
  const auto messages =
      in_threads(threads, [&](int i) { together[static_cast<std::size_t>(i)] = f(i); });
  for (std::size_t i = 0; i < together.size(); ++i) {
    CAPTURE(i);
    CHECK(messages[i] == "");
    REQUIRE(together[i].size() == alone[i].size());
    for (std::size_t k = 0; k < alone[i].size(); ++k) {
      CAPTURE(k);
      CHECK(same_bits(together[i][k], alone[i][k]));
    }
  }
}

/// A small token model: embedding, norm, linear layers, cross entropy, AdamW with clipping.
struct Model : nn::Module {
  explicit Model(const nn::Place& place)
      : table(31, 16, place), norm(16, place), in(16, 40, {}, place), out(40, 31, {}, place) {}
  void members(nn::Members& m) override { m("table", table)("norm", norm)("in", in)("out", out); }
  Tensor operator()(const Tensor& x) const { return out(tanh(in(norm(table(x))))); }
  nn::Embedding table;
  nn::RMSNorm norm;
  nn::Linear in, out;
};

/// Losses of some steps, and the parameters after them.
std::vector<Tensor> train(int number, Device device) {
  Generator g(100 + static_cast<std::uint64_t>(number));
  const Model model({device, f32});
  for (const auto& [name, p] : model.parameters()) {
    const NoGrad no_grad;
    p.mul_(0).add_((randn(p.shape(), f32, cpu, g) * 0.3).to(device));
  }
  const Tensor x = randint(0, 31, {37}, i64, cpu, g).to(device),
               y = randint(0, 31, {37}, i64, cpu, g).to(device);
  nn::AdamW optimizer(model.parameters(), {.lr = 0.02});
  std::vector<Tensor> results;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    Tape tape;
    const Tensor loss = cross_entropy(model(x), y);
    tape.backward(loss);
    optimizer.step({.max_norm = 1.0});
    results.push_back(loss.to(cpu));
  }
  for (const auto& [name, p] : model.parameters()) results.push_back(p.to(cpu).detach());
  return results;
}

Tensor numbers(std::int64_t n, int seed) {
  Generator g(static_cast<std::uint64_t>(seed));
  return randn({n}, f32, cpu, g);
}

}  // namespace

TEST_CASE("threads: each trains its own model on the device as it does alone") {
  if (!is_available(cuda)) return;
  for (const int threads : {2, 4}) {
    CAPTURE(threads);
    check_same_as_alone(threads, [](int i) { return train(i, cuda); });
  }
}

TEST_CASE("threads: sums, extremes and searches of several launches keep their scratch memory") {
  if (!is_available(cuda)) return;
  check_same_as_alone(4, [](int i) {
    const Tensor x = numbers(20000, i).to(cuda);  // cut into slices, whose sums are then added
    std::vector<Tensor> results;
    for (int round = 0; round < 4; ++round) {
      results.push_back(sum(x).to(cpu));
      results.push_back(max(x).to(cpu));
      results.push_back(argmax(x).to(cpu));
      results.push_back(
          from({static_cast<double>(first_nonfinite(x / (x - x[round * 100 + i])))}, {1}, f64));
    }
    return results;
  });
}

TEST_CASE("threads: losses count their own targets, optimizers their own steps") {
  if (!is_available(cuda)) return;
  check_same_as_alone(4, [](int i) {
    Generator g(static_cast<std::uint64_t>(i));
    const Tensor logits = numbers(40 * 7, i).reshape({40, 7}).to(cuda);
    const Tensor targets =
        where(arange(0, 40, 1, i64) < 10 * i, -1, randint(0, 7, {40}, i64, cpu, g)).to(cuda);
    const Tensor p = numbers(100, i).to(cuda).set_requires_grad();
    nn::AdamW optimizer({{"p", p}}, {.lr = 0.1 * (i + 1)});
    std::vector<Tensor> results;
    for (int step = 0; step < 2 + i; ++step) {
      results.push_back(cross_entropy(logits, targets, {.ignore_index = -1}).to(cpu));
      p.set_grad(numbers(100, 10 + i).to(cuda));
      optimizer.step();
    }
    results.push_back(p.detach().to(cpu));
    return results;
  });
}

TEST_CASE("threads: products in one cuBLAS handle") {
  if (!is_available(cuda)) return;
  check_same_as_alone(4, [](int i) {
    const Tensor a = numbers(65 * 33, i).reshape({65, 33}).to(cuda),
                 b = numbers(33 * 17, i + 9).reshape({33, 17}).to(cuda);
    std::vector<Tensor> results;
    for (int round = 0; round < 4; ++round) {
      results.push_back((matmul(a, b) + sum(a)).to(cpu));
      results.push_back(matmul(a.to(bf16), b.to(bf16)).to(cpu));
    }
    return results;
  });
}

TEST_CASE("threads: each gets the errors of its own indices, with the name of its operator") {
  if (!is_available(cuda)) return;
  const Interleaved interleaved;
  const Tensor x = arange(0, 12, 1, f32).reshape({6, 2}).to(cuda);
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    const auto messages = in_threads(4, [&](int i) {
      const Tensor good = from({0, 5}, {2}, i64).to(cuda),
                   bad = from({1, 6 + i}, {2}, i64).to(cuda);
      for (int k = 0; k < 3; ++k) {  // others synchronise between a check and its launch
        CHECK(sum(index_select(x, 0, good)).item() == 0 + 1 + 10 + 11);
      }
      if (i == 0) return;  // one that makes no mistake hears of none
      const Tensor o = i == 1   ? index_select(x, 0, bad)
                       : i == 2 ? cross_entropy(x.slice(0, 0, 2), bad)
                                : embedding(x, bad);
      static_cast<void>(sum(o).item());
    });
    CHECK(messages[0] == "");
    CHECK(messages[1].find("index_select: index at (1,) is 7, but x has size 6") == 0);
    CHECK(messages[2].find("cross_entropy: targets at (1,) is 8, but there are 2 classes") !=
          std::string::npos);
    CHECK(messages[3].find("embedding: indices at (1,) is 9") == 0);
  }
}

TEST_CASE("threads: an index error of a thread that has ended is thrown by the next one") {
  if (!is_available(cuda)) return;
  const Tensor x = ones({4}, f32, cuda), bad = from({9}, {1}, i64).to(cuda);
  Tensor o;
  std::thread([&] { o = index_select(x, 0, bad); }).join();
  expect_error([&] { static_cast<void>(o.to(cpu)); }, "index_select: index at (0,) is 9");
  CHECK(sum(x).item() == 4);
}
