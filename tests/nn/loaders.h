#pragma once
// Data sets for tests of the loader: numbered samples, broken ones, slow ones.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "quipu/core/error.h"
#include "quipu/nn/data/loader.h"
#include "quipu/ops/join.h"
#include "quipu/ops/pointwise/arithmetic.h"

namespace quipu::testing {

using namespace nn;
using quipu::detail::check;

/// A row of three for each id.
inline Tensor rows_of(const Tensor& id) {
  return stack({id.to(f32), id.to(f32) * 10, id.to(f32) + 0.5}, 1);
}

/// Sample i is the number i and the row that belongs to it.
inline TensorDataset numbered(std::int64_t n) {
  const Tensor id = arange(n);
  return TensorDataset({id, rows_of(id)});
}

inline std::vector<double> ids(const Batch& batch) {
  return batch[0].to_vector();
}

/// The ids of the next batches, one list each.
inline std::vector<std::vector<double>> ids_of(Loader& loader, int batches) {
  std::vector<std::vector<double>> all;
  for (int i = 0; i < batches; ++i) all.push_back(ids(loader.next()));
  return all;
}

inline bool same(const Batch& a, const Batch& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = same_bits(a[i], b[i]);
  return equal;
}

/// Numbers one by one; the one at `bad` cannot be read as long as it is broken.
struct Fragile : Dataset {
  explicit Fragile(std::int64_t bad_place) : bad(bad_place) {}
  std::int64_t size() const override { return 12; }
  Batch make(std::int64_t count, Device device) const override {
    return {empty({count}, i64, device)};
  }
  void fill(const Batch& batch, std::span<const std::int64_t> places) const override {
    for (const std::int64_t place : places) {
      if (*broken) check(place != bad, "sample ", place, " is broken");
    }
    std::copy(places.begin(), places.end(), batch[0].data<std::int64_t>());
  }
  std::int64_t bad;
  std::shared_ptr<std::atomic<bool>> broken = std::make_shared<std::atomic<bool>>(true);
};

/// Takes its time, and counts the batches that it has filled.
struct Slow : Dataset {
  std::int64_t size() const override { return 100; }
  Batch make(std::int64_t count, Device device) const override {
    return {empty({count}, i64, device)};
  }
  void fill(const Batch& batch, std::span<const std::int64_t> places) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::copy(places.begin(), places.end(), batch[0].data<std::int64_t>());
    ++*filled;
  }
  std::shared_ptr<std::atomic<int>> filled = std::make_shared<std::atomic<int>>(0);
};

}  // namespace quipu::testing
