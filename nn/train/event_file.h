#pragma once
// Scalars and histograms for TensorBoard, as its event files have them.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "quipu/core/tensor.h"

namespace quipu::nn {

/// A file of events in a folder that `tensorboard --logdir` is given; a new one for each run,
/// beside those of earlier runs. What was written is in the system's hands when a call returns.
class EventFile {
 public:
  /// Makes the folder if it is missing; its parent must be there.
  explicit EventFile(const std::string& folder);

  // A point of the curve `tag`, or the distribution of all entries of `values` at a step. False,
  // from the first failure on: the disk may be full, and curves are no reason to stop.
  bool scalar(std::string_view tag, std::int64_t step, double value);
  bool histogram(std::string_view tag, std::int64_t step, const Tensor& values);

  /// Of the file.
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  bool write(const std::string& event);
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace quipu::nn
