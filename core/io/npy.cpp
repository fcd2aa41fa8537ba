#include "quipu/core/io/npy.h"

#include <zlib.h>

#include <set>

#include "quipu/core/context.h"
#include "quipu/core/io/atomic_file.h"
#include "quipu/core/io/mapped_file.h"
#include "quipu/core/io/npy_format.h"
#include "quipu/core/io/zip.h"
#include "quipu/core/text.h"

namespace quipu {
using namespace detail;
namespace {

/// x as it is written: on the CPU, row-major.
Tensor values_of(const std::string& where, const Tensor& x) {
  check(x.defined(), where, ": the tensor is undefined");
  check(!x.device().is_meta(), where, ": the tensor is on ", x.device(),
        " and has no values to write");
  return x.detach().to(Device()).contiguous();
}

std::uint32_t checksum(std::uint32_t crc, const void* data, std::size_t bytes) {
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(data), bytes));
}

}  // namespace

Tensor load_npy(const std::string& path) {
  const OpScope op("load_npy");
  const MappedFile file(path);
  return parse_npy(path, {file.data(), file.size()});
}

void save_npy(const std::string& path, const Tensor& x) {
  const OpScope op("save_npy");
  const Tensor values = values_of(path, x);
  const std::string header = npy_header(path, values);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  if (values.nbytes() > 0) file.write(values.raw_data(), values.nbytes());
  file.commit();
}

NamedTensors load_npz(const std::string& path) {
  const OpScope op("load_npz");
  const MappedFile file(path);
  const std::string_view bytes(file.data(), file.size());
  NamedTensors tensors;
  std::set<std::string> names;
  for (const ZipEntry& entry : list_zip(path, bytes)) {
    std::string name = entry.name, buffer;
    check(name.ends_with(".npy"), path, ": ", quoted_name(name), " is no .npy file");
    name.resize(name.size() - 4);
    check(names.insert(name).second, path, ": ", quoted_name(name), " stands there twice");
    const std::string where = path + ": " + quoted_name(name);
    tensors.emplace_back(name, parse_npy(where, read_zip_entry(path, bytes, entry, buffer)));
  }
  return tensors;
}

void save_npz(const std::string& path, const NamedTensors& tensors) {
  const OpScope op("save_npz");
  constexpr std::size_t longest_name = 60000;
  std::set<std::string> names;
  std::vector<std::string> headers;
  for (const auto& [name, x] : tensors) {
    const std::string where = path + ": " + quoted_name(name);
    check(names.insert(name).second, where, " stands there twice");
    check(name.size() <= longest_name, where, " is longer than ", longest_name, " bytes");
    check(x.defined(), where, " is undefined");
    headers.push_back(npy_header(where, x));
  }
  AtomicFile file(path);
  ZipWriter zip(file);
  for (std::size_t i = 0; i < tensors.size();
       ++i) {  // one at a time: at most one copy lives at once
    const auto& [name, x] = tensors[i];
    const Tensor values = values_of(path + ": " + quoted_name(name), x);
    const std::string& header = headers[i];
    const void* const elements = values.nbytes() > 0 ? values.raw_data() : nullptr;
    std::uint32_t crc = checksum(0, header.data(), header.size());
    if (elements) crc = checksum(crc, elements, values.nbytes());
    zip.begin(name + ".npy", header.size() + values.nbytes(), crc);
    zip.write(header.data(), header.size());
    if (elements) zip.write(elements, values.nbytes());
  }
  zip.finish();
  file.commit();
}

}  // namespace quipu
