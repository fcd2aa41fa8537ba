#pragma once
// Safetensors files made by hand, byte by byte.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace quipu::testing {

/// A file of this header and data: 8 bytes of length (little-endian) come first.
inline std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace quipu::testing
