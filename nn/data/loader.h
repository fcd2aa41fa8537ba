#pragma once
// Batches of a data set, in an order that can be taken up again at any place.
#include <array>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>

#include "quipu/core/io/safetensors.h"
#include "quipu/nn/data/dataset.h"

namespace quipu::nn {

/// Order and size of batches, and who takes which. Options that leave no batch are an error.
struct LoaderOptions {
  std::int64_t batch_size = 32;  // samples in a batch of this process; the last may have fewer
  bool shuffle = false;          // each epoch in another order, which the seed and its number give
  std::uint64_t seed = 0;        // of the order; the default generator has no part in it
  bool drop_last = false;  // leave out the samples at the end of an epoch that fill no whole batch
  int prefetch = 2;        // batches that a thread fills ahead of next(); 0: no thread
  Device device = {};      // where batches go
  /// Of `world` processes that train together this is the one with number `rank`: a step takes
  /// world * batch_size samples, and each process a part of its own. All take equally many steps;
  /// the last, smaller one of an epoch is cut evenly, and may leave a process an empty batch.
  int rank = 0,
      world = 1;  // how many processes there are; all need the same data, seed and options
};

/// Gives batches, epoch after epoch. Its position is that of the last batch it gave, however far it
/// has read ahead.
///
///   Loader loader(TensorDataset({x, y}), {.batch_size = 64, .shuffle = true});
///   for (int step = 0; step < steps; ++step) {
///     const auto [x, y] = loader.next<2>();
///
/// Batches are made in the memory scope of the caller. The loader itself holds `prefetch` of them
/// from the first call of next() on. Where no thread can be started, batches are filled in next().
/// In a forked child it goes on from its position with a thread of its own; locks that the data set
/// has must allow for that.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> data, const LoaderOptions& options = {});
  template <std::derived_from<Dataset> D>
  Loader(D data, const LoaderOptions& options = {})
      : Loader(std::make_shared<const D>(std::move(data)), options) {}
  ~Loader();  // waits for the batch that is being filled, not for the others
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;  // the other one is empty then: assign to it or drop it

  /// The next batch. What the data set throws comes out here, when the batch is due, and leaves the
  /// position as it was.
  Batch next();
  /// The same for data that gives `count` tensors a batch.
  template <std::size_t count>
  std::array<Tensor, count> next();

  // Where the next batch stands: its epoch, and its number in it; both count from 0.
  std::int64_t epoch() const;
  std::int64_t batch_of_epoch() const;
  /// The same for all processes that train together.
  std::int64_t batches_per_epoch() const;

  // The position and what it depends on. With it, a loader with the same data and options gives the
  // same batches from there on. The seed comes with it; all else that differs is an error.
  NamedTensors state() const;
  void load_state(const NamedTensors& state);

  /// From the position to the end of its epoch: `for (const Batch& batch : loader)`.
  class Iterator;
  // begin() asks for the first batch at once, so it throws what next() would.
  Iterator begin();
  std::default_sentinel_t end() { return {}; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Walks through the rest of an epoch, once. It holds one batch, and lets go of it before it asks
/// for the next.
class Loader::Iterator {
 public:
  /// The loader must live longer.
  explicit Iterator(Loader& loader);
  // What a range-based for needs. The loader's position moves along.
  const Batch& operator*() const { return batch_; }
  Iterator& operator++();
  bool operator==(std::default_sentinel_t) const { return done_; }

 private:
  Loader* loader_;
  std::int64_t epoch_;
  bool done_ = false;
  Batch batch_;
};

template <std::size_t count>
std::array<Tensor, count> Loader::next() {
  const Batch batch = next();
  quipu::detail::check(batch.size() == count, "loader: a batch of this data has ", batch.size(),
                       " tensors, but next<", count, ">() was called");
  std::array<Tensor, count> tensors;
  for (std::size_t i = 0; i < count; ++i) tensors[i] = batch[i];
  return tensors;
}

}  // namespace quipu::nn
