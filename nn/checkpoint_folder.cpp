#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "quipu/core/context.h"
#include "quipu/nn/checkpoint.h"
#include "quipu/nn/checkpoint_format.h"

namespace quipu::nn {

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

void CheckpointFolder::write(const CheckpointContent& content, std::int64_t step) {
  std::error_code error;
  fs::create_directories(folder_, error);
  check(!error, "cannot make the folder ", folder_, ": ", error.message());
  save_safetensors(path_of(step), content.tensors, content.metadata);
  tidy(step);
}

/// A file with a higher step is left alone: the run went back behind it.
void CheckpointFolder::tidy(std::int64_t saved_step) const {
  std::error_code ignored;  // what cannot be removed now will be tried again
  std::vector<std::int64_t> older = steps();
  std::erase_if(older, [&](std::int64_t step) { return step >= saved_step; });
  const auto kept = std::min(older.size(), static_cast<std::size_t>(options_.keep) - 1);
  older.resize(older.size() - kept);
  for (const std::int64_t step : older) fs::remove(path_of(step), ignored);
  for (const std::string& name : names_in(folder_)) {
    if (is_leftover(name)) fs::remove(fs::path(folder_) / name, ignored);
  }
}

void CheckpointFolder::save(const Checkpoint& checkpoint) {
  const OpScope op("CheckpointFolder");
  write(content_of(checkpoint), checkpoint.step);
  failing_ = false;
}

bool CheckpointFolder::try_save(const Checkpoint& checkpoint) {
  const OpScope op("CheckpointFolder");
  const CheckpointContent content = content_of(checkpoint);
  try {
    write(content, checkpoint.step);
    failing_ = false;
    return true;
  } catch (const Error& error) {
    if (!std::exchange(failing_, true)) {
      const std::vector<std::int64_t> there = steps();
      say(detail::concat("no checkpoint of step ", checkpoint.step, ": ", error.what(),
                         "; the run goes on, ",
                         there.empty() ? "but there is no older one"
                                       : "and the newest one stays " + path_of(there.back())));
    }
    return false;
  }
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
      Checkpoint checkpoint = load_checkpoint(path_of(*step));
      check(checkpoint.step == *step, path_of(*step), ": the file is of step ", checkpoint.step);
      return checkpoint;
    } catch (const Error& error) {
      say(detail::concat("skipped a checkpoint: ", error.what()));
    }
  }
  return {};
}

}  // namespace quipu::nn
