#pragma once
// What the file of a checkpoint holds. Internal to nn/.
#include <map>
#include <string>

#include "quipu/nn/train/checkpoint.h"

namespace quipu::nn::detail {

struct CheckpointContent {
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};

/// Throws Error when it cannot be written to any file.
CheckpointContent content_of(const Checkpoint& checkpoint);

}  // namespace quipu::nn::detail
