#pragma once
// Samples that a loader reads in any order.
#include <cstdint>
#include <span>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::nn {

/// Tensors whose first dimension counts the samples; inputs first, targets second.
using Batch = std::vector<Tensor>;

/// What a loader needs to know of data. Making a batch is two calls: memory is always made by the
/// thread that asks for the batch, so that the ledger does not depend on how far a prefetching
/// thread has come, and values may be filled in by another one.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// How many samples there are.
  virtual std::int64_t size() const = 0;
  /// Memory for `count` samples. It depends on nothing but its arguments.
  virtual Batch make(std::int64_t count, Device device) const = 0;
  /// Writes the samples at these places, 0 <= place < size(), into a batch that `make` gave on the
  /// CPU. Maybe on another thread, one call at a time; it must not draw from the default generator,
  /// because the order of draws would depend on time.
  virtual void fill(const Batch& batch, std::span<const std::int64_t> places) const = 0;

 protected:
  Dataset() = default;
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;
};

/// Tensors in memory with a common first size: sample i is row i of each.
class TensorDataset : public Dataset {
 public:
  /// On the CPU, or on meta for loaders of meta batches. What is not contiguous is copied.
  explicit TensorDataset(const std::vector<Tensor>& tensors);

  // As Dataset says; a batch has one tensor for each that was given.
  std::int64_t size() const override { return tensors_[0].size(0); }
  Batch make(std::int64_t count, Device device) const override;
  void fill(const Batch& batch, std::span<const std::int64_t> places) const override;

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace quipu::nn
