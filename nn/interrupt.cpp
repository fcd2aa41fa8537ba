#include "quipu/nn/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <mutex>

namespace quipu::nn {
namespace {

volatile std::sig_atomic_t interrupts = 0;
std::mutex mutex;
int guards = 0;
struct sigaction outer;

/// Only calls that a signal handler may make.
void on_interrupt(int) {
  if (interrupts == 0) {
    interrupts = 1;
    return;
  }
  [[maybe_unused]] const auto written = write(STDERR_FILENO, "\n", 1);
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
}

}  // namespace

StopOnInterrupt::StopOnInterrupt() {
  const std::lock_guard lock(mutex);
  if (guards++ > 0) return;
  interrupts = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // a write to a file in the middle goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &outer);
}

StopOnInterrupt::~StopOnInterrupt() {
  const std::lock_guard lock(mutex);
  if (--guards == 0) sigaction(SIGINT, &outer, nullptr);
}

bool stop_requested() {
  return interrupts != 0;
}

}  // namespace quipu::nn
