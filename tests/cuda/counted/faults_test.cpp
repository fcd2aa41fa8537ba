// After a kernel with an illegal address every call of CUDA fails until the process ends. What is
// let go then must not end the program: destructors and exit handlers stay quiet, and the first
// error is what the user sees. Each case is a process of its own.
#include <cstdlib>
#include <string>

#include "quipu/core/streams.h"
#include "quipu/cuda/emulator/emulator.h"
#include "quipu/quipu.h"
#include "support/child.h"
#include "support/support.h"

namespace {

using namespace quipu;
using quipu::testing::in_child;

const Device cuda("cuda");

/// A kernel reads memory that was given back; the message of the first call that hears of it.
std::string message_of_fault() {
  emulator::settings().print = false;
  emulator::settings().sticky = true;
  const Tensor x = ones({1000}, f32, cuda);
  synchronize(cuda);
  emulator::retire_block(x.storage().data(), nullptr);
  static_cast<void>(emulator::reports());  // waits until it is retired: that is on another stream
  try {
    static_cast<void>(sum(x).item());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool is_first_error(const std::string& message) {
  return message.find("cudaErrorIllegalAddress") != std::string::npos &&
         message.find("compute-sanitizer") != std::string::npos;
}

/// What the child does at its end: as a program whose main() returns `status`.
[[noreturn]] void leave(int status) {
  std::exit(status);
}

}  // namespace

TEST_CASE("faults: after an illegal address tensors, streams and the process end quietly") {
  if (!is_available(cuda)) return;
  for (const bool caching : {true, false}) {
    for (const bool poison : {false, true}) {
      CAPTURE(caching);
      CAPTURE(poison);
      CHECK(in_child([&]() -> bool {
              set_caching(caching);
              set_poison(poison);
              bool as_expected = false;
              {
                const detail::Stream side(cuda);
                const OnStream on(cuda, nullptr);
                const Tensor small = ones({10}, f32, cuda), large = ones({1 << 20}, f32, cuda);
                const Tensor pinned = pin_memory(ones({100}));
                static_cast<void>(to_async(pinned, cuda));
                as_expected = is_first_error(message_of_fault());
              }
              release_cached();
              leave(as_expected ? 7 : 8);
            }) == "ended with status 7");
    }
  }
}

TEST_CASE("faults: what is called after an illegal address is an error that says so") {
  if (!is_available(cuda)) return;
  CHECK(in_child([] {
          static_cast<void>(message_of_fault());
          int errors = 0;
          const auto expect_fault = [&](auto f) {
            try {
              f();
            } catch (const Error& error) {
              errors += is_first_error(error.what()) ? 1 : 0;
            }
          };
          expect_fault([] { synchronize(cuda); });
          expect_fault([] { return ones({5}, f32, cuda); });
          expect_fault([] { return ones({5}).to(cuda); });
          expect_fault([] { return empty({1 << 24}, f32, cuda); });
          return errors == 4 && sum(ones({5})).item() == 5;
        }) == "");
}

TEST_CASE("faults: a static tensor may outlive the fault") {
  if (!is_available(cuda)) return;
  CHECK(in_child([]() -> bool {
          static Tensor kept;
          kept = ones({1000}, f32, cuda);
          leave(is_first_error(message_of_fault()) ? 7 : 8);
        }) == "ended with status 7");
}
