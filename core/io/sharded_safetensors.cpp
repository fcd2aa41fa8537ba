#include "quipu/core/io/sharded_safetensors.h"

#include <nlohmann/json.hpp>
#include <set>

#include "quipu/core/context.h"
#include "quipu/core/io/atomic_file.h"
#include "quipu/core/io/mapped_file.h"
#include "quipu/core/text.h"

namespace quipu {
using namespace detail;
namespace {

using Json = nlohmann::json;
constexpr std::size_t longest_index = 100'000'000;  // bytes, as a safetensors header

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash + 1);
}

/// The names of tensors with the names of their files.
std::map<std::string, std::string> read_index(const std::string& path) {
  const MappedFile file(path);
  check(file.size() <= longest_index, path, ": an index of ", file.size(), " bytes is too long");
  const Json index = Json::parse(file.data(), file.data() + file.size(), nullptr, false);
  check(index.is_object(), path, ": the index is no JSON object");
  const auto found = index.find("weight_map");
  check(found != index.end() && found->is_object(), path,
        ": the index has no \"weight_map\" from names to files");
  std::map<std::string, std::string> places;
  for (const auto& [name, shard] : found->items()) {
    check(shard.is_string(), path, ": the file of ", quoted_name(name), " is not a name");
    const std::string text = shard.get<std::string>();
    // Nothing but files beside the index is opened, whatever it says.
    const bool plain = !text.empty() && text.find_first_of(std::string("/\\\0", 3)) == text.npos &&
                       text != "." && text != "..";
    check(plain, path, ": the file of ", quoted_name(name), " is ", quoted_name(text),
          ", but only files beside the index are opened");
    places.emplace(name, text);
  }
  return places;
}

std::string shard_name(const std::string& stem, std::size_t i, std::size_t count) {
  const auto five = [](std::size_t n) {
    const std::string digits = std::to_string(n);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return stem + "-" + five(i + 1) + "-of-" + five(count) + ".safetensors";
}

}  // namespace

ShardedSafetensors::ShardedSafetensors(const std::string& path) : path_(path) {
  const OpScope scope("safetensors");
  const std::map<std::string, std::string> index = read_index(path);
  for (const auto& [name, shard] : index) {
    auto file = files_.find(shard);
    if (file == files_.end()) {
      file = files_.emplace(shard, SafetensorsFile(folder_of(path) + shard)).first;
    }
    check(file->second.contains(name), path, ": tensor ", quoted_name(name), " is not in ", shard);
    places_.emplace(name, &file->second);
  }
  for (const auto& [shard, file] : files_) {
    for (const TensorEntry& entry : file.entries()) {
      const auto place = places_.find(entry.name);
      check(place != places_.end() && place->second == &file, path, ": tensor ",
            quoted_name(entry.name), " of ", shard, " is not in the index");
    }
  }
}

std::vector<std::string> ShardedSafetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : places_) names.push_back(name);
  return names;
}

Tensor ShardedSafetensors::get(std::string_view name) const {
  const OpScope scope("safetensors");
  const auto place = places_.find(name);
  check(place != places_.end(), path_, ": there is no tensor ", quoted_name(name), " among the ",
        places_.size(), " of the index");
  return place->second->get(name);
}

std::string save_sharded_safetensors(const std::string& folder, const std::string& stem,
                                     const NamedTensors& tensors, std::size_t most_bytes) {
  const OpScope scope("save_sharded_safetensors");
  check(!stem.empty() && stem.find('/') == stem.npos, "stem is ", quoted_name(stem),
        ", but must be a part of a file's name");
  std::vector<NamedTensors> shards(1);
  std::set<std::string> names;
  std::size_t filled = 0, total = 0;
  for (const auto& [name, x] : tensors) {
    check(x.defined(), "tensor ", quoted_name(name), " is undefined");
    check(names.insert(name).second, "tensor ", quoted_name(name), " is given twice");
    if (!shards.back().empty() && (x.nbytes() > most_bytes || filled > most_bytes - x.nbytes())) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().emplace_back(name, x);
    filled += x.nbytes();
    total += x.nbytes();
  }
  Json weight_map = Json::object();
  const std::string lead = folder.empty() || folder.ends_with('/') ? folder : folder + "/";
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shard_name(stem, i, shards.size());
    for (const auto& [name, x] : shards[i]) weight_map[name] = file;
    save_safetensors(lead + file, shards[i], {{"format", "pt"}});
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  const std::string text = index.dump(2) + "\n";
  const std::string path = lead + stem + ".safetensors.index.json";
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  return path;
}

}  // namespace quipu
