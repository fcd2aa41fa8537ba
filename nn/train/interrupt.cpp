#include "quipu/nn/train/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <iterator>
#include <mutex>

namespace quipu::nn {
namespace {

constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
volatile std::sig_atomic_t came = 0;                // the first of them
volatile std::sig_atomic_t came_before[NSIG] = {};  // by number
std::mutex mutex;
int guards = 0;
struct sigaction outer[std::size(signals)];

/// Only calls that a signal handler may make.
void on_signal(int signal) {
  if (came == 0) came = signal;
  if (came_before[signal] == 0 || signal == SIGHUP) {
    came_before[signal] = 1;
    return;
  }
  [[maybe_unused]] const auto written = write(STDERR_FILENO, "\n", 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

StopOnInterrupt::StopOnInterrupt() {
  const std::lock_guard lock(mutex);
  if (guards++ > 0) return;
  came = 0;
  for (const int signal : signals) came_before[signal] = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a write to a file in the middle goes on
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < std::size(signals); ++i) {
    sigaction(signals[i], nullptr, &outer[i]);
    const bool unwanted = signals[i] == SIGHUP && outer[i].sa_handler == SIG_IGN;
    if (!unwanted) sigaction(signals[i], &action, nullptr);
  }
}

StopOnInterrupt::~StopOnInterrupt() {
  const std::lock_guard lock(mutex);
  if (--guards > 0) return;
  for (std::size_t i = 0; i < std::size(signals); ++i) sigaction(signals[i], &outer[i], nullptr);
}

int stop_signal() {
  return came;
}

}  // namespace quipu::nn
