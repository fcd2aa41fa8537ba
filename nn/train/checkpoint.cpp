#include "quipu/nn/train/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdio>

#include "quipu/core/context.h"
#include "quipu/core/text.h"
#include "quipu/nn/named_state.h"
#include "quipu/nn/train/checkpoint_format.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;

namespace {

constexpr std::string_view own_texts = "quipu.";  // metadata that is not the user's
constexpr const char *version_key = "quipu.checkpoint", *parts_key = "quipu.parts",
                     *checksum_key = "quipu.crc32";
constexpr std::string_view known_version = "1";
constexpr const char *step_name = "step", *random_name = "random.default",
                     *random_prefix = "random.";

class Checksum {
 public:
  void add(const void* data, std::size_t bytes) {
    if (bytes > 0) crc_ = ::crc32_z(crc_, static_cast<const Bytef*>(data), bytes);
  }
  void add(const std::string& text) { add(text.data(), text.size()); }
  std::string text() const {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%08lx", crc_);
    return digits;
  }

 private:
  uLong crc_ = ::crc32_z(0, nullptr, 0);
};

/// Of names, types, shapes and values, in the order of the names, and of all other texts.
std::string checksum_of(const CheckpointContent& content) {
  std::vector<const NamedTensors::value_type*> order;
  for (const auto& entry : content.tensors) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const auto* entry) -> std::string_view { return entry->first; });
  Checksum sum;
  for (const auto& [key, text] : content.metadata) {
    if (key != checksum_key) sum.add(concat(key, "=", text, "\n"));
  }
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    sum.add(concat(name, " ", tensor.dtype(), " ", tensor.shape(), "\n"));
    const Tensor values = tensor.detach().to(cpu).contiguous();
    sum.add(values.raw_data(), values.nbytes());
  }
  return sum.text();
}

void check_part_name(const std::string& name) {
  check(!name.empty() && name.find_first_of(".,") == name.npos, "a part cannot have the name ",
        quoted_name(name), ": it must not be empty nor contain '.' or ','");
  check(name != "random" && name != step_name, "a part cannot have the name ", quoted_name(name),
        ": a checkpoint has that anyway");
}

void check_model_names(const Checkpoint& checkpoint) {
  for (const auto& entry : checkpoint.model) {
    const std::string& name = entry.first;
    const std::string first = name.substr(0, name.find('.'));
    const bool taken = name == step_name || name.starts_with(random_prefix) ||
                       (first != name && checkpoint.parts.contains(first));
    check(!taken, "a tensor of the model cannot have the name ", quoted_name(name),
          ": it would be taken for ", first == name ? "the number of steps" : "the part ",
          first == name ? "" : quoted_name(first));
  }
}

void check_values(const NamedTensors& tensors) {
  std::vector<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    check(tensor.defined(), "tensor ", quoted_name(name), " is undefined");
    check(!tensor.device().is_meta(), "tensor ", quoted_name(name), " is on ", tensor.device(),
          " and has no values to write");
    names.push_back(name);
  }
  std::ranges::sort(names);
  const auto twin = std::ranges::adjacent_find(names);
  if (twin != names.end()) fail("tensor ", quoted_name(*twin), " is given twice");
}

void append(NamedTensors& all, const NamedTensors& more) {
  all.insert(all.end(), more.begin(), more.end());
}

Tensor to_tensor(const PhiloxState& random) {
  return from(
      {std::bit_cast<std::int64_t>(random.seed), std::bit_cast<std::int64_t>(random.offset)});
}

PhiloxState random_state(const Tensor& state) {
  check(state.dtype() == i64 && state.shape() == Shape{2}, "the random state is ", state.dtype(),
        " ", state.shape(), ", not i64 (2)");
  const std::int64_t* words = state.data<std::int64_t>();
  return {std::bit_cast<std::uint64_t>(words[0]), std::bit_cast<std::uint64_t>(words[1])};
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

const NamedTensors& Checkpoint::part(std::string_view name) const {
  const auto found = parts.find(std::string(name));
  if (found != parts.end()) return found->second;
  std::string others;
  for (const auto& entry : parts) others += (others.empty() ? "" : ", ") + quoted_name(entry.first);
  fail("the checkpoint of step ", step, " has no part ", quoted_name(name), "; it has ",
       others.empty() ? "none" : others);
}

CheckpointContent detail::content_of(const Checkpoint& checkpoint) {
  check(checkpoint.step >= 0, "step is ", checkpoint.step, ", but must not be negative");
  check_model_names(checkpoint);
  CheckpointContent content{checkpoint.model, checkpoint.texts};
  std::string part_names;
  for (const auto& [name, tensors] : checkpoint.parts) {
    check_part_name(name);
    append(content.tensors, add_prefix(name + ".", tensors));
    part_names += (part_names.empty() ? "" : ",") + name;
  }
  content.tensors.emplace_back(step_name, to_state(checkpoint.step));
  content.tensors.emplace_back(random_name, to_tensor(checkpoint.random));
  for (const auto& text : checkpoint.texts) {
    check(!text.first.starts_with(own_texts), "a text cannot have the name ",
          quoted_name(text.first), ": those that begin with ", own_texts, " are quipu's own");
  }
  check_values(content.tensors);
  content.metadata[version_key] = known_version;
  content.metadata[parts_key] = part_names;
  content.metadata[checksum_key] = checksum_of(content);
  return content;
}

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  const OpScope op("save_checkpoint");
  const CheckpointContent content = content_of(checkpoint);
  save_safetensors(path, content.tensors, content.metadata);
}

Checkpoint load_checkpoint(const std::string& path) {
  const OpScope op("load_checkpoint");
  const SafetensorsFile file(path);
  CheckpointContent content{{}, file.metadata()};
  for (const TensorEntry& entry : file.entries()) {
    content.tensors.emplace_back(entry.name, file.get(entry.name));
  }
  Checkpoint checkpoint;
  for (const auto& [key, text] : content.metadata) {
    if (!key.starts_with(own_texts)) checkpoint.texts.emplace(key, text);
  }
  if (!content.metadata.contains(version_key) && !content.metadata.contains(checksum_key)) {
    checkpoint.model = std::move(content.tensors);
    return checkpoint;
  }
  const std::string version = content.metadata[version_key];
  check(version == known_version, path, ": the checkpoint has format ", quoted_name(version),
        ", but this program reads format ", known_version);
  check(checksum_of(content) == content.metadata[checksum_key], path,
        ": the file is damaged: its checksum differs from that of its values");

  for (const std::string& name : split(content.metadata[parts_key])) checkpoint.parts[name];
  for (const auto& [name, tensor] : content.tensors) {
    const std::size_t dot = name.find('.');
    const auto part = checkpoint.parts.find(name.substr(0, dot));
    if (dot != name.npos && part != checkpoint.parts.end()) {
      part->second.emplace_back(name.substr(dot + 1), tensor);
    } else if (name == random_name) {
      checkpoint.random = random_state(tensor);
    } else if (name != step_name) {
      checkpoint.model.emplace_back(name, tensor);
    }
  }
  checkpoint.step = whole_number(content.tensors, step_name);
  check(checkpoint.step >= 0, path, ": its step is ", checkpoint.step,
        ", but must not be negative");
  return checkpoint;
}

}  // namespace quipu::nn
