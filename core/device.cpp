#include "quipu/core/device.h"

#include <charconv>

#include "quipu/core/error.h"

namespace quipu {
using namespace detail;

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

void Device::throw_bad_kind(DeviceKind kind) {
  fail("device kind ", static_cast<int>(kind), " is neither cpu nor cuda");
}

void Device::throw_bad_index(int index) {
  fail("device index ", index, " is not in [0, ", max_index, ")");
}

Device::Device(std::string_view name) {
  std::string_view left = name;
  const bool meta = left.starts_with("meta:");
  if (meta) left.remove_prefix(5);
  int index = 0;
  bool valid = left == "cpu" || left == "cuda";
  const DeviceKind kind = left == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  if (!valid && left.starts_with("cuda:")) {
    const char* end = left.data() + left.size();
    const auto parsed = std::from_chars(left.data() + 5, end, index);
    valid = parsed.ec == std::errc() && parsed.ptr == end && index >= 0 && index < max_index;
  }
  check(valid, "unknown device '", name, "': wanted cpu, cuda, cuda:N, meta:cpu or meta:cuda");
  *this = Device(kind, index, meta);
}

std::string to_string(const Device& device) {
  std::string text = device.is_meta() ? "meta:" : "";
  text += name_of(device.kind());
  if (device.kind() == DeviceKind::cuda && (!device.is_meta() || device.index() != 0)) {
    text += ":" + std::to_string(device.index());
  }
  return text;
}

}  // namespace quipu
