#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "quipu/core/context.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/io/atomic_file.h"
#include "quipu/core/text.h"
#include "quipu/nn/train/checkpoint.h"
#include "quipu/nn/train/checkpoint_format.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;

namespace fs = std::filesystem;

namespace {

constexpr std::string_view name_begin = "step-", name_end = ".safetensors", temporary_end = ".tmp";

/// The step that the name of a file stands for.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(name_begin) || !name.ends_with(name_end)) return {};
  if (name.size() <= name_begin.size() + name_end.size()) return {};
  name.remove_prefix(name_begin.size());
  name.remove_suffix(name_end.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size() && name[0] != '-';
  return whole ? std::optional(step) : std::nullopt;
}

/// Whether a run that was killed while it saved left this behind: step-000120.safetensors.*.tmp.
bool is_leftover(std::string_view name) {
  const std::size_t end = name.find(name_end);
  return end != name.npos && name.ends_with(temporary_end) &&
         step_of(name.substr(0, end + name_end.size()));
}

/// Names of what is in a folder; nothing when it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string folder, CheckpointFolderOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  const OpScope op("CheckpointFolder");
  check(!folder_.empty(), "the folder has no name");
  check(options_.keep > 0, "keep is ", options_.keep, ", but at least one is kept");
}

std::string CheckpointFolder::path_of(std::int64_t step) const {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%06lld", static_cast<long long>(step));
  const std::string name = std::string(name_begin) + digits + std::string(name_end);
  return (fs::path(folder_) / name).string();
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(folder_)) {
    const std::optional<std::int64_t> step = step_of(name);
    if (step && fs::path(path_of(*step)).filename() == name) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

void CheckpointFolder::say(const std::string& message) const {
  if (options_.say) return options_.say(message);
  std::fprintf(stderr, "%s\n", message.c_str());
}

void CheckpointFolder::make_folder() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  check(!error, "cannot make the folder ", folder_, ": ", error.message());
}

void CheckpointFolder::check_writable() const {
  const OpScope op("CheckpointFolder");
  make_folder();
  const AtomicFile file(path_of(0));  // its temporary file goes away again
}

void CheckpointFolder::write(const CheckpointContent& content, std::int64_t step) const {
  make_folder();
  for (bool full = true; full;) {
    try {
      save_safetensors(path_of(step), content.tensors, content.metadata);
      full = false;
    } catch (const DiskFull&) {
      if (!make_room(step)) throw;
    }
  }
  std::error_code ignored;  // what cannot be removed now will be tried again
  for (const std::int64_t old : not_kept(step)) fs::remove(path_of(old), ignored);
  remove_leftovers();
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code ignored;
  for (const std::string& name : names_in(folder_)) {
    if (is_leftover(name)) fs::remove(fs::path(folder_) / name, ignored);
  }
}

/// Too old once that of `saved_step` is there. A file with a higher step is left alone: the run
/// went back behind it.
std::vector<std::int64_t> CheckpointFolder::not_kept(std::int64_t saved_step) const {
  std::vector<std::int64_t> older = steps();
  std::erase_if(older, [&](std::int64_t step) { return step >= saved_step; });
  const auto kept = std::min(older.size(), static_cast<std::size_t>(options_.keep) - 1);
  older.resize(older.size() - kept);
  return older;
}

/// Removes what a full disk can do without: what killed runs left behind, then the oldest file but
/// the newest valid one. False if there is nothing left to remove.
bool CheckpointFolder::make_room(std::int64_t step) const {
  const std::size_t files = names_in(folder_).size();
  remove_leftovers();
  if (names_in(folder_).size() < files) return true;
  std::vector<std::int64_t> there = steps();
  const auto is_valid = [&](std::int64_t candidate) {
    try {
      load_valid(candidate);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  const auto newest = std::find_if(there.rbegin(), there.rend(), is_valid);
  for (const std::int64_t old : there) {
    std::error_code error;
    if (old >= step || (newest != there.rend() && old == *newest)) continue;
    if (!fs::remove(path_of(old), error)) continue;
    say("the disk is full: removed " + path_of(old) + " to make room");
    return true;
  }
  return false;
}

void CheckpointFolder::check_model(const NamedTensors& model, const std::string& what) const {
  if (!options_.finite) return;
  for (const auto& [name, tensor] : model) {
    const std::int64_t bad = first_nonfinite(tensor);
    check(bad < 0, what, ": element ", bad, " of ", quoted_name(name), ' ', tensor.shape(),
          " is NaN or infinite, and nothing can go on from that; set the option finite to false "
          "if it is meant to be");
  }
}

/// Throws Error where it is damaged or of no use.
Checkpoint CheckpointFolder::load_valid(std::int64_t step) const {
  Checkpoint checkpoint = load_checkpoint(path_of(step));
  check(checkpoint.step == step, path_of(step), ": the file is of step ", checkpoint.step);
  check_model(checkpoint.model, path_of(step));
  return checkpoint;
}

void CheckpointFolder::save(const Checkpoint& checkpoint) {
  const OpScope op("CheckpointFolder");
  const CheckpointContent content = content_of(checkpoint);
  check_model(checkpoint.model, concat("the model of step ", checkpoint.step));
  write(content, checkpoint.step);
  problem_.clear();
}

bool CheckpointFolder::try_save(const Checkpoint& checkpoint) {
  const OpScope op("CheckpointFolder");
  const CheckpointContent content = content_of(checkpoint);
  const bool said = !problem_.empty();  // NOLINT(clang-analyzer-deadcode.DeadStores): read below
  try {
    check_model(checkpoint.model, "the model");
    write(content, checkpoint.step);
    problem_.clear();
    return true;
  } catch (const Error& error) {
    problem_ = concat("no checkpoint of step ", checkpoint.step, ": ", error.what());
  }
  if (said) return false;
  const std::vector<std::int64_t> there = steps();
  say(problem_ + "; the run goes on, " +
      (there.empty() ? "but there is no older one"
                     : "and the newest one stays " + path_of(there.back())));
  return false;
}

std::optional<Checkpoint> CheckpointFolder::newest() const {
  const OpScope op("CheckpointFolder");
  for (const std::string& name : names_in(folder_)) {
    if (is_leftover(name)) {
      say(folder_ + ": skipped " + name + ", which a run left behind when it was stopped");
    }
  }
  std::vector<std::int64_t> candidates = steps();
  for (auto step = candidates.rbegin(); step != candidates.rend(); ++step) {
    try {
      return load_valid(*step);
    } catch (const Error& error) {
      say(concat("skipped a checkpoint: ", error.what()));
    }
  }
  return {};
}

}  // namespace quipu::nn
