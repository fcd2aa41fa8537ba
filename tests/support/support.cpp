#include "support.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <set>
#include <system_error>

#include "quipu/core/devices.h"

namespace quipu::testing {

namespace {

/// Throws unless the device that QUIPU_NEED_DEVICE names, if it does, is among those found.
void check_needed(const std::vector<Device>& found) {
  const char* name = std::getenv("QUIPU_NEED_DEVICE");
  if (name == nullptr || *name == '\0') return;
  const Device needed(name);
  if (std::find(found.begin(), found.end(), needed) != found.end()) return;
  std::string names;
  for (const Device& device : found) names += (names.empty() ? "" : ", ") + to_string(device);
  detail::fail("QUIPU_NEED_DEVICE wants tests on ", needed, ", but they run on ", names,
               " alone: use a build with CUDA where there is a GPU, or unset it");
}

}  // namespace

const std::vector<Device>& test_devices() {
  static const std::vector<Device> devices = [] {
    std::vector<Device> found{cpu};
    if (device_count(DeviceKind::cuda) > 0) found.emplace_back(DeviceKind::cuda);
    check_needed(found);
    return found;
  }();
  return devices;
}

namespace {

/// Names of cases, by device: a case with subcases is entered several times.
std::map<std::string, std::set<std::string>> cases_run;

/// doctest runs a case again for every subcase that it meets; a device is one that spans the whole
/// body.
bool enter(std::optional<doctest::detail::Subcase>& subcase, const Device& device) {
  subcase.emplace(to_string(device).c_str(), __FILE__, __LINE__);
  return *subcase;
}

}  // namespace

EachDevice::EachDevice() {
  for (const Device& candidate : test_devices()) {
    if (!enter(subcase_, candidate)) continue;
    device = candidate;
    cases_run[to_string(device)].insert(doctest::getContextOptions()->currentTest->m_name);
    return;
  }
}

EachDevice::~EachDevice() {
  // doctest plans the next round from the subcases that it meets after the one it was in.
  const std::vector<Device>& devices = test_devices();
  const auto current = std::find(devices.begin(), devices.end(), device);
  for (auto later = current; later != devices.end(); ++later) {
    if (later != current) enter(subcase_, *later);
  }
}

std::string cases_by_device() {
  if (test_devices().size() == 1) return "";
  std::string text;
  for (const auto& [device, names] : cases_run) {
    text +=
        (text.empty() ? "cases by device: " : ", ") + device + " " + std::to_string(names.size());
  }
  return text;
}

TempDirectory::TempDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "quipu-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw std::system_error(errno, std::generic_category(), "cannot make " + name);
  }
  path_ = name;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void check_message(const std::optional<std::string>& message, const Expected& first,
                   std::initializer_list<std::string_view> more) {
  const auto require = [&](std::string_view part) {
    if (message && message->find(part) != std::string::npos) {
      CHECK(true);  // counted
      return;
    }
    ADD_FAIL_CHECK_AT(first.file, first.line, "expected an error that says \"", std::string(part),
                      "\", but ", message ? "it says: " + *message : "none was thrown");
  };
  require(first.text);
  for (const std::string_view part : more) require(part);
}

}  // namespace quipu::testing
