#pragma once
// Signals as a wish to stop: the loop ends after its step and saves, instead of dying inside it.

namespace quipu::nn {

/// While one lives, SIGINT (Ctrl-C), SIGTERM and SIGHUP only set a flag. A second SIGINT or SIGTERM
/// ends the program at once; not so a second SIGHUP, for a terminal that closes sends several. A
/// SIGHUP that was ignored before, as nohup does, stays ignored.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;
};

/// The first signal that came under a StopOnInterrupt (Progress has one), until the first one made
/// after that; 0: none. A program that stops for it ends with status 128 + the signal.
int stop_signal();
/// For the condition of a training loop.
inline bool stop_requested() {
  return stop_signal() != 0;
}

}  // namespace quipu::nn
