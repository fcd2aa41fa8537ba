#pragma once
// What the operands of a kernel reach, once more on the host. Internal to the library.
#include <cstddef>
#include <vector>

#include "quipu/core/dispatch/call.h"

namespace quipu::detail {

/// Copies of the memory of some operands. Operands that overlap do so in their copies, too.
class HostMemory {
 public:
  /// Copies what the operands hold now.
  explicit HostMemory(const std::vector<KernelOperand>& operands);

  /// All floating types become f64, unless operands of several types share memory.
  void widen();
  /// Multiplies all floating numbers by random ones in [1 - amplitude, 1 + amplitude], the same for
  /// a seed; with -amplitude, by those on the other side of 1.
  void shift(double amplitude, unsigned seed);

  /// Points operands, which lie where those of the constructor do, to the copies.
  void lend_to(std::vector<KernelOperand>& operands);
  /// Copies back what differs from `before`.
  void write_back(const HostMemory& before) const;

 private:
  struct Region {
    std::byte* begin;  // the memory that was copied
    std::byte* end;
    Device device;
    DType dtype;
    bool one_type;  // of all operands that reach it
    bool widened;   // the copy is f64
    std::vector<std::byte> copy;
  };
  Region& region_of(const View& view);
  std::vector<Region> regions_;  // in the order of their devices and addresses
};

}  // namespace quipu::detail
