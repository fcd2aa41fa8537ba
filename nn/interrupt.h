#pragma once
// Ctrl-C as a wish to stop: the loop ends after its step and saves, instead of dying inside it.

namespace quipu::nn {

/// While one lives, the first Ctrl-C only sets a flag; the second ends the program at once.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;
};

/// True after a Ctrl-C under a StopOnInterrupt (Progress has one), until the first one made after
/// that.
bool stop_requested();

}  // namespace quipu::nn
