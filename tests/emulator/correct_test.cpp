// Correct kernels give correct results and no report, whatever the schedule.
#include <cmath>
#include <cstdlib>

#include "buffer.h"
#include "kernels.h"

namespace quipu::testing {
namespace {

/// Runs `run` under some seeds, one of them with much preemption; nothing may be reported.
template <class Run>
void quietly(Run run) {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    emulator::settings().seed = seed;
    emulator::settings().preempt = seed == 5 ? 7 : 0;
    CAPTURE(seed);
    run();
    CHECK(emulator::report_text() == "");
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
}

/// The reference of multiply_tiles.
std::vector<double> products(const std::vector<float>& k, const std::vector<float>& v, int n,
                             int batch) {
  std::vector<double> out(std::size_t(batch) * 64 * 64);
  for (int b = 0; b < batch; ++b) {
    for (int row = 0; row < n; ++row) {
      const std::size_t from = (std::size_t(b) * std::size_t(n) + std::size_t(row)) * 64;
      for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t j = 0; j < 64; ++j) {
          out[(std::size_t(b) * 64 + i) * 64 + j] += double(k[from + i]) * v[from + j];
        }
      }
    }
  }
  return out;
}

template <class T>
double worst_difference(const std::vector<T>& got, const std::vector<double>& wanted) {
  REQUIRE(got.size() == wanted.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(double(got[i]) - wanted[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

TEST_CASE("emulator: tiles, with and without asynchronous copies") {
  for (const int n : {64, 100}) {
    const int batch = 3;
    const auto k = random_floats(std::size_t(batch) * std::size_t(n) * 64, 1);
    const auto v = random_floats(k.size(), 2);
    const auto wanted = products(k, v, n, batch);
    quietly([&] {
      const Buffer<float> dk(k), dv(v), out(wanted.size()), staged(wanted.size());
      multiply_tiles(dk.data(), dv.data(), out.data(), n, batch, Tiles::correct, nullptr);
      multiply_stages(dk.data(), dv.data(), staged.data(), n, batch, Stages::correct, nullptr);
      CHECK(worst_difference(out.values(), wanted) < 1e-4);
      CHECK(worst_difference(staged.values(), wanted) < 1e-4);
    });
  }
}

TEST_CASE("emulator: softmax by warps, last rows included") {
  for (const int rows : {1, 61}) {
    const auto x = random_floats(std::size_t(rows) * 128, 3);
    const std::vector<__nv_bfloat16> in(x.begin(), x.end());
    std::vector<double> wanted(x.size());
    for (std::size_t row = 0; row < x.size(); row += 128) {
      double sum = 0;
      for (std::size_t i = row; i < row + 128; ++i) sum += std::exp(double(float(in[i])));
      for (std::size_t i = row; i < row + 128; ++i)
        wanted[i] = std::exp(double(float(in[i]))) / sum;
    }
    quietly([&] {
      const Buffer<__nv_bfloat16> from(in), to(in.size());
      softmax_rows(from.data(), to.data(), rows, nullptr);
      std::vector<float> got;
      for (const __nv_bfloat16 y : to.values()) got.push_back(y);
      CHECK(worst_difference(got, wanted) < 4e-3);
    });
  }
}

TEST_CASE("emulator: atomics, bytes of neighbours, vectors with a tail") {
  std::vector<int> values(5000);
  std::vector<int> bins(64);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = int(i * i % 1000);
    ++bins[std::size_t(values[i]) % 64];
  }
  const std::vector<unsigned char> bytes(1001, 41);
  const auto x = random_floats(1003, 4), y = random_floats(1003, 5);
  std::vector<double> sums(1003);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = 2.0 * x[i] + y[i];
  quietly([&] {
    const Buffer<int> in(values), out(std::vector<int>(64));
    histogram(in.data(), out.data(), 5000, nullptr);
    CHECK(out.values() == bins);

    const Buffer<unsigned char> from(bytes), to(bytes.size());
    add_one_bytes(from.data(), to.data(), 1001, nullptr);
    CHECK(to.values() == std::vector<unsigned char>(1001, 42));

    const Buffer<float> dx(x), dy(y);
    axpy(2, dx.data(), dy.data(), 1003, nullptr);
    CHECK(worst_difference(dy.values(), sums) < 1e-6);
  });
}

TEST_CASE("emulator: without checks blocks share OS threads") {
  const Watched watched;
  emulator::settings().check = emulator::settings().count = false;
  emulator::settings().threads = 2;
  const int n = 96, batch = 16;
  const auto k = random_floats(std::size_t(batch) * n * 64, 1), v = random_floats(k.size(), 2);
  const Buffer<float> dk(k), dv(v), out(std::size_t(batch) * 64 * 64);
  for (int repeat = 0; repeat < 3; ++repeat) {
    multiply_stages(dk.data(), dv.data(), out.data(), n, batch, Stages::correct, nullptr);
    CHECK(worst_difference(out.values(), products(k, v, n, batch)) < 1e-4);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
}

TEST_CASE("emulator: device memory runs out where the settings say") {
  const Watched watched;
  std::size_t available = 0, total = 0;
  cudaMemGetInfo(&available, &total);
  emulator::settings().device_bytes = total - available + 10000;
  void* first = nullptr;
  void* second = nullptr;
  CHECK(cudaMalloc(&first, 8000) == cudaSuccess);
  CHECK(cudaMalloc(&second, 8000) == cudaErrorMemoryAllocation);
  cudaMemGetInfo(&available, &total);
  CHECK(available == 2000);
  CHECK(cudaFree(first) == cudaSuccess);
  CHECK(cudaMalloc(&second, 8000) == cudaSuccess);
  CHECK(cudaFree(second) == cudaSuccess);
}

}  // namespace
}  // namespace quipu::testing
