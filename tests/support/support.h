#pragma once
// What test files share: the devices to run on, a directory that goes away, and checks of error
// messages.
#include <doctest/doctest.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/device.h"
#include "quipu/core/devices.h"
#include "quipu/core/error.h"

namespace quipu::testing {

/// The devices that compute on this machine; meta is not one of them. An error where the one that
/// QUIPU_NEED_DEVICE names is not among them.
const std::vector<Device>& test_devices();

/// The device that counts what another one would hold.
inline Device meta_of(Device device) {
  return Device(device.kind(), device.index(), true);
}

/// Runs its test case once on each device: `TEST_CASE_FIXTURE(EachDevice, "area: what") {
/// zeros({2}, f32, device); }`.
class EachDevice {
 public:
  EachDevice();
  ~EachDevice();
  EachDevice(const EachDevice&) = delete;
  EachDevice& operator=(const EachDevice&) = delete;

  Device device;
  /// The usual size or shape, or a smaller one on an emulated device, where every access takes its
  /// time.
  template <class T>
  T sized(const T& usual, const T& emulated) const {
    return is_emulated(device) ? emulated : usual;
  }

 private:
  std::optional<doctest::detail::Subcase> subcase_;
};

/// How many cases ran on each of several devices: "cases by device: cpu 12, cuda:0 12". Empty where
/// there is one device, or no case that asks for it.
std::string cases_by_device();

/// A fresh directory that is removed with everything in it.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string file(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// A piece of an expected message, and the line of the test that expects it.
struct Expected {
  Expected(const char* expected, const char* in_file = __builtin_FILE(),
           int at_line = __builtin_LINE())
      : text(expected), file(in_file), line(at_line) {}
  std::string_view text;
  const char* file;
  int line;
};

/// The message of the E that f throws, or that devices have after it; none when there is none.
/// Anything else passes through.
template <class E, class F>
std::optional<std::string> thrown_message(F&& f) {
  try {
    std::invoke(f);
    for (const Device& device : test_devices()) synchronize(device);
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

/// Fails the test case at the place of `first` unless there is a message that contains all parts.
void check_message(const std::optional<std::string>& message, const Expected& first,
                   std::initializer_list<std::string_view> more);

/// f must throw an E (a user's mistake unless another type is named) whose message contains all
/// parts: `expect_error([&] { cat({a, b}, 0); }, "cat", "(2, 3)");`
template <class E = Error, class F, std::convertible_to<std::string_view>... More>
void expect_error(F&& f, const Expected& first, const More&... more) {
  check_message(thrown_message<E>(f), first, {std::string_view(more)...});
}

}  // namespace quipu::testing

using quipu::testing::EachDevice;
using quipu::testing::expect_error;
using quipu::testing::meta_of;
using quipu::testing::TempDirectory;
using quipu::testing::test_devices;
