#pragma once
// A disk that is full.
#include <sys/resource.h>

#include <csignal>

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

}  // namespace quipu::testing
