#pragma once
// A checkpoint to save, and a folder to save it to.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/nn/named_state.h"
#include "quipu/nn/train/checkpoint.h"

namespace quipu::testing {

inline nn::Checkpoint example(std::int64_t step, Device device = {}) {
  const auto values = [&](const Shape& shape, DType dtype) {
    return randn(shape, f32, device).to(dtype);
  };
  return {
      .step = step,
      .model = {{"layers.0.weight", values({3, 4}, f32)},
                {"layers.0.bias", values({3}, bf16)},
                {"head", values({4, 3}, f64).t()}},
      .parts = {{"optimizer", {{"layers.0.weight.momentum", values({3, 4}, f32)}}},
                {"data", {{"epoch", nn::detail::to_state(3)}, {"batch", nn::detail::to_state(17)}}},
                {"schedule", {}}},
      .texts = {{"config", "{\"layers\": 1}"}}};
}

/// A folder that keeps what it says instead of printing it.
struct Quiet {
  explicit Quiet(const std::string& path, int keep = 3)
      : folder(path,
               {.keep = keep, .say = [this](const std::string& text) { said.push_back(text); }}) {}
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  bool said_that(std::string_view part) const {
    return std::ranges::any_of(
        said, [&](const std::string& text) { return text.find(part) != text.npos; });
  }
  std::vector<std::string> said;
  nn::CheckpointFolder folder;
};

using Steps = std::vector<std::int64_t>;

inline std::size_t files_in(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace quipu::testing
