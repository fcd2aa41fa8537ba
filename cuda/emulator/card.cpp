// The cards that the emulated device can be: what each reports of itself through
// cudaGetDeviceProperties and cudaDeviceGetAttribute.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "emulator.h"

namespace quipu::emulator {
namespace {

constexpr std::size_t kib = 1024, mib = 1024 * kib;
// Of a block, of a multiprocessor, and what the system takes of each block.
constexpr Card cards[] = {
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 2048, 163 * kib, 164 * kib, kib, 40 * mib},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 8, 6, 82, 1536, 99 * kib, 100 * kib, kib, 6 * mib},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 1536, 99 * kib, 100 * kib, kib, 72 * mib},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 2048, 227 * kib, 228 * kib, kib, 50 * mib},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 1536, 99 * kib, 100 * kib, kib, 96 * mib},
    {"t4", "Tesla T4", 7, 5, 40, 1024, 64 * kib, 64 * kib, 0, 4 * mib},
};

}  // namespace

const Card* find_card(std::string_view key) {
  for (const Card& card : cards) {
    if (key == card.key) return &card;
  }
  return nullptr;
}

const Card& card_of(int device) {
  const std::vector<const Card*>& all = settings().cards;
  return *all[std::min(static_cast<std::size_t>(device), all.size() - 1)];
}

std::vector<const Card*> cards_from_environment() {
  const char* keys = std::getenv("QUIPU_EMULATOR_CARD");
  if (keys == nullptr || *keys == '\0') return {&cards[0]};
  std::vector<const Card*> result;
  std::istringstream list(keys);
  for (std::string key; std::getline(list, key, ',');) {
    result.push_back(find_card(key));
    if (result.back() != nullptr) continue;
    std::string known;
    for (const Card& card : cards) known += (known.empty() ? "" : ", ") + std::string(card.key);
    std::fprintf(stderr, "emulator: QUIPU_EMULATOR_CARD is '%s', but it must be one of %s\n",
                 key.c_str(), known.c_str());
    std::fflush(nullptr);
    std::_Exit(2);  // nothing has been made that would have to be undone
  }
  return result;
}

}  // namespace quipu::emulator
