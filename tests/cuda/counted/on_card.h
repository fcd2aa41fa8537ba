#pragma once
// A case on a card of its choice, whatever card the tests run on.
#include <doctest/doctest.h>

#include <vector>

#include "quipu/core/devices.h"
#include "quipu/cuda/emulator/emulator.h"

namespace quipu::testing {

/// The emulated device is another card while this lives.
class OnCard {
 public:
  explicit OnCard(const char* key) : before_(emulator::settings().cards) {
    REQUIRE(emulator::find_card(key) != nullptr);
    emulator::settings().cards = {emulator::find_card(key)};
  }
  ~OnCard() {
    synchronize(Device("cuda"));
    emulator::settings().cards = before_;
  }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;

 private:
  std::vector<const emulator::Card*> before_;
};

}  // namespace quipu::testing
