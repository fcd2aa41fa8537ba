#pragma once
// Where a tensor lives: cpu, cuda:i, or meta imitating one of them (it computes nothing and counts
// every byte).
#include <cstdint>
#include <string>
#include <string_view>

namespace quipu {

/// The back ends: the host's cores, and NVIDIA GPUs.
enum class DeviceKind : std::uint8_t { cpu, cuda };

/// A device by kind and index; without arguments, the CPU. The machine need not have it
/// until memory is asked of it.
class Device {
 public:
  constexpr Device() = default;
  /// Throws Error unless `index` is in [0, max_index).
  constexpr Device(DeviceKind kind, int index = 0, bool meta = false)
      : kind_(kind), index_(static_cast<std::int8_t>(index)), meta_(meta) {
    if (kind > DeviceKind::cuda) throw_bad_kind(kind);
    if (index < 0 || index >= max_index) throw_bad_index(index);
  }
  /// "cpu", "cuda", "cuda:1", "meta:cpu", "meta:cuda"; anything else throws.
  Device(std::string_view name);
  Device(const char* name) : Device(std::string_view(name)) {}
  Device(const std::string& name) : Device(std::string_view(name)) {}

  /// The kind of back end; for meta, the kind it imitates.
  constexpr DeviceKind kind() const { return kind_; }
  /// Which of several devices of its kind, from 0.
  constexpr int index() const { return index_; }
  /// True where tensors have shapes and a place in the ledger, but no values.
  constexpr bool is_meta() const { return meta_; }
  // Of the real device: both are false on meta.
  constexpr bool is_cpu() const { return kind_ == DeviceKind::cpu && !meta_; }
  constexpr bool is_cuda() const { return kind_ == DeviceKind::cuda && !meta_; }
  constexpr bool operator==(const Device&) const = default;

  /// The first index that is too large.
  static constexpr int max_index = 128;

 private:
  [[noreturn]] static void throw_bad_kind(DeviceKind kind);
  [[noreturn]] static void throw_bad_index(int index);
  DeviceKind kind_ = DeviceKind::cpu;
  std::int8_t index_ = 0;
  bool meta_ = false;
};

/// The host, which is also the default device of every factory.
inline constexpr Device cpu{DeviceKind::cpu};

/// "cpu", "cuda:0", "meta:cuda": a name that Device's constructor reads.
std::string to_string(const Device& device);
/// "cpu" or "cuda".
const char* name_of(DeviceKind kind);

}  // namespace quipu
