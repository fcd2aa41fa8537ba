#include "quipu/nn/data/dataset.h"

#include <cstring>

#include "quipu/core/context.h"

namespace quipu::nn {
using namespace quipu::detail;

TensorDataset::TensorDataset(const std::vector<Tensor>& tensors) {
  const OpScope op("TensorDataset");
  check(!tensors.empty(), "there is no tensor");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    check(tensor.defined(), "tensor ", i, " is undefined");
    check(tensor.dim() > 0, "tensor ", i, " has no dimensions, but its first must count samples");
    check(tensor.size(0) == tensors[0].size(0), "tensor ", i, " has shape ", tensor.shape(),
          ", but tensor 0 has ", tensors[0].size(0), " samples (first sizes must agree)");
    check(tensor.device().is_cpu() || tensor.device().is_meta(), "tensor ", i, " is on ",
          tensor.device(), ", but data is read on the CPU; move it with .to(cpu)");
    check(tensor.device() == tensors[0].device(), "tensor ", i, " is on ", tensor.device(),
          ", but tensor 0 is on ", tensors[0].device());
    tensors_.push_back(tensor.detach().contiguous());
  }
}

Batch TensorDataset::make(std::int64_t count, Device device) const {
  const OpScope op("TensorDataset");
  check(device.is_meta() || !tensors_[0].device().is_meta(), "the data is on ",
        tensors_[0].device(), " and has no values for batches on ", device);
  Batch batch;
  for (const Tensor& tensor : tensors_) {
    Shape shape = tensor.shape();
    shape[0] = count;
    batch.push_back(empty(shape, tensor.dtype(), device));
  }
  return batch;
}

void TensorDataset::fill(const Batch& batch, std::span<const std::int64_t> places) const {
  if (places.empty()) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto row = batch[i].nbytes() / places.size();
    if (row == 0) continue;
    const char* const from = static_cast<const char*>(tensors_[i].raw_data());
    char* to = static_cast<char*>(batch[i].raw_data());
    for (const std::int64_t place : places) {
      std::memcpy(to, from + static_cast<std::size_t>(place) * row, row);
      to += row;
    }
  }
}

}  // namespace quipu::nn
