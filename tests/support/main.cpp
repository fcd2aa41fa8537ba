// Runs the test cases. A case that leaves device memory behind fails the run, and so do a filter
// that no case matches, a device that is needed and not there, and a kernel without a reference.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/random/random.h"
#include "support.h"

namespace {

using quipu::Device;

/// What every device holds at one moment.
class Holdings {
 public:
  Holdings() {
    for (const Device& device : quipu::devices_in_use()) {
      held_.emplace_back(device, quipu::memory_stats(device).current);
    }
  }
  /// Says where a device holds another amount now; true if none does.
  bool same_now(const std::string& since) const {
    bool same = true;
    for (const Device& device : quipu::devices_in_use()) {
      const std::size_t current = quipu::memory_stats(device).current;
      if (current == on(device)) continue;
      same = false;
      std::cout << "memory leak: " << since << ": " << to_string(device) << " held " << on(device)
                << " bytes before and holds " << current << " after\n"
                << quipu::memory_report(device).text() << std::endl;
    }
    return same;
  }

 private:
  std::size_t on(const Device& device) const {
    for (const auto& [other, bytes] : held_) {
      if (other == device) return bytes;
    }
    return 0;
  }
  std::vector<std::pair<Device, std::size_t>> held_;
};

bool leaked = false;
unsigned cases_run = 0;

struct LeakListener : doctest::IReporter {
  explicit LeakListener(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& test_case) override {
    ++cases_run;
    quipu::manual_seed(2024);  // the same numbers whatever ran before
    name_ = test_case.m_name;
    before_ = Holdings();
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    // In a signal handler the heap may be broken, and its lock held.
    if (stats.failure_flags & doctest::TestCaseFailureReason::Crash) return;
    if (!before_.same_now("test case \"" + name_ + "\"")) leaked = true;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  std::string name_;
  Holdings before_;
};
DOCTEST_REGISTER_LISTENER("leaks", 1, LeakListener);

/// Says why where the devices to test on are not all there.
bool devices_are_there() {
  try {
    quipu::testing::test_devices();
    return true;
  } catch (const quipu::Error& error) {
    std::cout << error.what() << std::endl;
    return false;
  }
}

/// Says which kernels nothing could be held against.
bool references_are_there() {
  bool all = true;
  for (const quipu::detail::AnyKernel* kernel : quipu::detail::all_kernels()) {
    using quipu::detail::Variant;
    if (!kernel->provided(Variant::cpu) || kernel->provided(Variant::reference)) continue;
    std::cout << "the kernel " << kernel->name() << " has no reference: see cpu/reference/"
              << std::endl;
    all = false;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
#ifdef QUIPU_EMULATE
  setenv("QUIPU_EMULATOR_DEVICES", "2", 0);  // NOLINT: there are no other threads yet
#endif
  if (!devices_are_there() || !references_are_there()) return EXIT_FAILURE;
  const Holdings at_start;
  doctest::Context context(argc, argv);
  const int status = context.run();
  if (context.shouldExit()) return status;  // a question such as --list-test-cases
  if (!at_start.same_now("the whole run")) leaked = true;
  if (const std::string text = quipu::testing::cases_by_device(); !text.empty()) {
    std::cout << text << std::endl;
  }
  if (cases_run == 0) std::cout << "no test case matches" << std::endl;
  return leaked || cases_run == 0 ? EXIT_FAILURE : status;
}
