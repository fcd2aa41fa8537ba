// mma and ldmatrix with the lane mapping that PTX documents. Products of 16-bit operands are exact
// in f32; the order of summation is ours, as the hardware's is its own.
#include <array>
#include <bit>
#include <cstring>

#include "multiprocessor.h"
#include "reduced.h"

namespace quipu::emulator {
namespace {

struct MmaLane {
  Operand type;
  float* d;
  const unsigned* a;
  const unsigned* b;
};

float operand(Operand type, unsigned bits, int part) {
  if (type == Operand::tf32) return std::bit_cast<float>(bits & 0xffffe000u);  // what is looked at
  const auto half = static_cast<std::uint16_t>(part == 0 ? bits : bits >> 16);
  return type == Operand::bf16 ? from_bf16_bits(half) : from_half_bits(half);
}

/// Lane l is (group, member) = (l / 4, l % 4). Registers 0..3 of a: rows group and group + 8, then
/// the same in the upper half of k. A register holds `per` neighbours along k.
void multiply(std::uint64_t* inputs) {
  const auto lane_at = [&](std::size_t l) -> const MmaLane& {
    return *reinterpret_cast<const MmaLane*>(inputs[l]);
  };
  const Operand type = lane_at(0).type;
  const std::size_t per = type == Operand::tf32 ? 1 : 2, k_size = 8 * per;
  std::array<std::array<float, 16>, 16> a;  // rows of a
  std::array<std::array<float, 16>, 8> b;   // columns of b
  for (std::size_t l = 0; l < 32; ++l) {
    const std::size_t group = l / 4, member = l % 4;
    for (std::size_t part = 0; part < per; ++part) {
      const std::size_t k = member * per + part;
      const auto value = [&](unsigned bits) { return operand(type, bits, static_cast<int>(part)); };
      for (std::size_t r = 0; r < 4; ++r) {
        a[group + 8 * (r % 2)][k + 4 * per * (r / 2)] = value(lane_at(l).a[r]);
      }
      for (std::size_t r = 0; r < 2; ++r) b[group][k + 4 * per * r] = value(lane_at(l).b[r]);
    }
  }
  for (std::size_t l = 0; l < 32; ++l) {
    for (std::size_t r = 0; r < 4; ++r) {
      const auto& row = a[l / 4 + 8 * (r / 2)];
      const auto& column = b[2 * (l % 4) + r % 2];
      float sum = 0;
      for (std::size_t k = 0; k < k_size; ++k) sum += row[k] * column[k];
      lane_at(l).d[r] += sum;
    }
  }
  running->counting.launch.mma_flops += 2 * 16 * 8 * k_size;
}

struct MatrixLane {
  unsigned* registers;
  const unsigned* row;  // 16 bytes
  std::size_t count;
  bool transposed;
};

void distribute(std::uint64_t* inputs) {
  const auto lane_at = [&](std::size_t l) -> const MatrixLane& {
    return *reinterpret_cast<const MatrixLane*>(inputs[l]);
  };
  const std::size_t count = lane_at(0).count;
  std::array<std::array<std::array<std::uint16_t, 8>, 8>, 4> matrix;
  for (std::size_t l = 0; l < 8 * count; ++l)
    std::memcpy(&matrix[l / 8][l % 8], lane_at(l).row, 16);
  for (std::size_t l = 0; l < 32; ++l) {
    const std::size_t group = l / 4, first = 2 * (l % 4);
    for (std::size_t m = 0; m < count; ++m) {
      const auto& x = matrix[m];
      const unsigned low = lane_at(l).transposed ? x[first][group] : x[group][first];
      const unsigned high = lane_at(l).transposed ? x[first + 1][group] : x[group][first + 1];
      lane_at(l).registers[m] = low | high << 16;
    }
  }
}

}  // namespace

void mma(Operand type, float* d, const unsigned* a, const unsigned* b, Site at) {
  const MmaLane lane{type, d, a, b};
  collective(Collective::call, ~0u, reinterpret_cast<std::uint64_t>(&lane), 0, 32, at, multiply);
}

void ldmatrix(unsigned* registers, int count, bool transposed, const unsigned* row_bits, Site at) {
  const MatrixLane lane{registers, row_bits, static_cast<std::size_t>(count), transposed};
  collective(Collective::call, ~0u, reinterpret_cast<std::uint64_t>(&lane), 0, 32, at, distribute);
}

}  // namespace quipu::emulator
