#pragma once
// Checkpoint files: all that a run needs to go on as if it had never stopped, in one safetensors
// file.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/io/safetensors.h"
#include "quipu/core/random/random.h"

namespace quipu::nn {

/// What is in a checkpoint. In the file, tensors of the model have their plain names, those of a
/// part stand behind its name ("optimizer.weight.momentum"); "step" and "random.default" are the
/// rest.
struct Checkpoint {
  std::int64_t step = 0;                           // how many were done
  NamedTensors model = {};                         // Module::state()
  std::map<std::string, NamedTensors> parts = {};  // "optimizer", "schedule", "data", ...
  std::map<std::string, std::string> texts = {};   // free; become metadata of the file
  /// Of the default generator; by default as it is when the Checkpoint is made.
  quipu::detail::PhiloxState random = default_generator().state();

  /// An error that names those that are there when it is not.
  const NamedTensors& part(std::string_view name) const;
  /// From here on, the default generator gives the numbers that it gave after the checkpoint.
  void restore_random() const { default_generator().set_state(random); }
};

/// Writes one that is complete and on disk when it appears under its name, or leaves what was there
/// and throws Error. Tensors on a device come over the host one by one.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);

/// Reads one and verifies its checksum. Its tensors are mapped: copy them where they belong, as
/// load_into() and load_state() do. Any safetensors file will do; one that is not ours is a model
/// at step 0.
Checkpoint load_checkpoint(const std::string& path);

/// Which checkpoints are kept, and which are refused.
struct CheckpointFolderOptions {
  int keep = 3;  // how many are kept: older ones are removed when a newer one is on disk
  /// A model with a NaN or an infinity is not saved, nor is it the newest one: nothing can go on
  /// from it. False for models that hold some on purpose, masks for one.
  bool finite = true;
  /// Where messages go; the standard error output unless set.
  std::function<void(const std::string& message)> say = {};
};

namespace detail {
struct CheckpointContent;
}

/// The checkpoints of one run: step-000120.safetensors and so on. One program at a time writes to
/// it; others may read.
///
///   CheckpointFolder folder("runs/first");
///   if (const auto last = folder.newest()) {
///     model.load_state(last->model);
///     optimizer.load_state(last->part("optimizer"));
///     loader.load_state(last->part("data"));
///     last->restore_random();
///     step = last->step;
///   }
///   ...
///   folder.try_save({.step = step,
///                    .model = model.state(),
///                    .parts = {{"optimizer", optimizer.state()}, {"data", loader.state()}}});
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string folder, CheckpointFolderOptions options = {});

  /// Saves under the name of its step, then removes what is not kept and what killed runs left
  /// behind. Makes the folder. Where the disk is full, older ones are removed before, the oldest
  /// first, but never the newest valid one. Throws Error.
  void save(const Checkpoint& checkpoint);
  /// The same for a run that shall go on when the disk is full or gone: returns false, and says so
  /// once until it succeeds again. A checkpoint that could be written nowhere still throws.
  bool try_save(const Checkpoint& checkpoint);
  /// Why the last try_save failed; empty if it did not. A run that ends with a problem has lost its
  /// end: `if (!folder.problem().empty()) throw Error(folder.problem());`
  const std::string& problem() const { return problem_; }
  /// Throws Error, before a long run does, if nothing can be saved. Makes the folder.
  void check_writable() const;

  /// The valid one with the highest step. Says which files it had to skip, and why.
  std::optional<Checkpoint> newest() const;

  /// Whether there is such a file or not; with six digits or more.
  std::string path_of(std::int64_t step) const;
  /// Of the files that are there, valid or not; rising.
  std::vector<std::int64_t> steps() const;

 private:
  void say(const std::string& message) const;
  void make_folder() const;
  void remove_leftovers() const;
  std::vector<std::int64_t> not_kept(std::int64_t saved_step) const;
  bool make_room(std::int64_t step) const;
  void check_model(const NamedTensors& model, const std::string& what) const;
  Checkpoint load_valid(std::int64_t step) const;
  void write(const detail::CheckpointContent& content, std::int64_t step) const;

  std::string folder_;
  CheckpointFolderOptions options_;
  std::string problem_;  // that was said
};

}  // namespace quipu::nn
