#pragma once
// What the program's own file tells: names and places of shared arrays, names of kernels, source
// lines of addresses.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace quipu::emulator {

/// A half-open range of addresses.
struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool contains(std::uintptr_t address) const { return address - begin < end - begin; }
};

/// A __shared__ array of some kernel: a function-local thread_local variable, offset in the
/// thread-local image.
struct SharedArray {
  std::string name;
  std::size_t offset = 0, bytes = 0;
};
/// Which shared array lies at each byte of the thread-local image.
class SharedArrays {
 public:
  explicit SharedArrays(std::size_t image_bytes);
  /// Null where there is none.
  const SharedArray* at(std::size_t offset) const {
    const std::uint16_t number = by_byte_[offset];
    return number == 0 ? nullptr : &arrays_[number];
  }
  /// Whether a kernel may touch what is no shared array there: the compiler's guards of
  /// initialisation, or anything if the program has no symbols.
  bool exempt(std::size_t offset) const { return exempt_[offset]; }

 private:
  void read_program();
  void add(const char* mangled, std::size_t offset, std::size_t bytes);

  std::vector<SharedArray> arrays_{1};
  std::vector<std::uint16_t> by_byte_;
  std::vector<bool> exempt_;
};

/// The calling OS thread's thread-local image of the program.
Range thread_local_image();
/// Whether constants of the program lie there.
bool is_program_constant(std::uintptr_t address);
/// Addresses of code as 32-bit offsets, which shadow cells have room for.
std::uint32_t short_code(std::uintptr_t address);
std::uintptr_t long_code(std::uint32_t code);

struct SourceLine {
  std::string file;
  unsigned line = 0;
  std::string text() const;  // "file:line", or "?"
};
/// Where the author wrote the call that returns to an address: the innermost inlined frame that is
/// neither the emulator's nor the standard library's.
SourceLine source_line(std::uintptr_t return_address);
/// The same for many; one run of addr2line.
void find_source_lines(const std::vector<std::uintptr_t>& return_addresses);
/// "void scale<float>(float*, int)" without the parameters.
std::string kernel_name(const void* function);
/// Bytes of the __shared__ arrays that are declared in a kernel, in whole lines of 128, as ptxas
/// lays them out before the dynamic ones.
std::size_t static_shared_bytes(const void* function);

}  // namespace quipu::emulator
