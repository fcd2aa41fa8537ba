#pragma once
// Where programs find their data, in the tree and when installed.
#include <filesystem>
#include <string>
#include <system_error>

/// PREFIX/share/quipu/NAME, where PREFIX is the nearest folder above the program that has this; so
/// no path is compiled in. In a build directory share/quipu has links to the tree. If there is
/// none, the path without its prefix, which tells a reader of the error what was looked for.
inline std::string shared_file(const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path file = fs::path("share/quipu") / name;
  std::error_code error;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error); folder.has_relative_path();) {
    folder = folder.parent_path();
    if (fs::exists(folder / file, error)) return folder / file;
  }
  return file;
}
