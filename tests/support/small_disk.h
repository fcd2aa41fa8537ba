#pragma once
// Disks that are full.
#include <sys/resource.h>

#include <csignal>
#include <cstddef>
#include <string>

namespace quipu::testing {

/// While it lives, no file can grow beyond `bytes`: as if the disk were full.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &outer_);
    const rlimit small{bytes, outer_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &outer_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit outer_{};
};

/// While it lives, the files of a folder take at most `bytes` in all: write gives ENOSPC then.
class FullDisk {
 public:
  FullDisk(const std::string& folder, std::size_t bytes);
  ~FullDisk();
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
};

}  // namespace quipu::testing
