#pragma once
// Device memory for tests of kernels.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "quipu/cuda/emulator/emulator.h"
#include "quipu/cuda/launch.h"

namespace quipu::testing {

/// An array on the device.
template <class T>
class Buffer {
 public:
  /// Not initialised.
  explicit Buffer(std::size_t size) : size_(size) {
    REQUIRE(cudaMalloc(&data_, size * sizeof(T)) == cudaSuccess);
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> result(size_);
    cudaMemcpy(result.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost);
    return result;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// Clears what was found before, keeps reports off the screen, and puts settings back.
class Watched {
 public:
  Watched() : kept_(emulator::settings()) {
    emulator::clear_reports();
    emulator::clear_counters();
    emulator::settings().print = false;
  }
  ~Watched() {
    emulator::clear_reports();
    cudaGetLastError();
    emulator::settings() = kept_;
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  emulator::Settings kept_;
};

inline std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace quipu::testing
