#pragma once
// What holds a recomputed function to its first run. Internal to autograd/.
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "quipu/autograd/tensor_state.h"

namespace quipu::detail {

/// What a function did in its first run.
struct FirstRun {
  std::vector<PhiloxState> draws;
  /// Versions of all storages that its operators read, by serial number.
  std::unordered_map<std::uint64_t, std::uint32_t> read;
  /// Tensors of the tape outside that it uses though they are not among its inputs.
  std::vector<Ref<AutogradMeta>> captured;

  bool has_captured(const AutogradMeta* meta) const;
};

/// A run of a recomputed function on this thread, the first one or another; runs nest.
class RecomputeRun {
 public:
  /// The first run on `tape`, while `outside` is the tape that records: notes everything in `log`.
  RecomputeRun(FirstRun& log, const TapeState& tape, const TapeState& outside);
  /// Another run, which must do the same, and the walk behind it.
  RecomputeRun(const FirstRun& log, const TapeState& tape, const TapeState& outside);
  ~RecomputeRun();
  RecomputeRun(const RecomputeRun&) = delete;
  RecomputeRun& operator=(const RecomputeRun&) = delete;

  /// The function has returned; what is left is the walk.
  void function_returned() { running_ = false; }

  void read(const Tensor& x);
  /// Whether the function may use x, which another tape recorded; the first run notes it.
  bool captures(const Tensor& x);
  const TapeState& tape() const { return tape_; }
  const TapeState& outside() const { return outside_; }
  RecomputeRun* outer() const { return outer_; }

 private:
  FirstRun* noting_ = nullptr;  // null: another run
  const FirstRun& log_;
  const TapeState& tape_;
  const TapeState& outside_;
  std::uint64_t start_;  // storages from this serial number on were made by this run
  bool running_ = true;
  RecomputeRun* outer_;
};

/// An operator reads x; throws where a function that is run again reads something else than before.
void note_read(const Tensor& x);
/// Whether the recomputed function that is taped on this thread may use x, which a tape outside it
/// recorded.
bool is_captured(const Tensor& x);

}  // namespace quipu::detail
