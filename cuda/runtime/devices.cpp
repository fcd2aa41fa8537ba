#include "devices.h"

#include "error.h"
#include "quipu/core/error.h"

namespace quipu::detail::on_cuda {

int device_count(std::string* why) {
  struct Answer {
    int count = 0;
    std::string why;
  };
  static const Answer& answer = *new Answer([] {
    Answer found;
    const cudaError_t error = cudaGetDeviceCount(&found.count);
    if (error == cudaSuccess && found.count > 0) return found;
    static_cast<void>(cudaGetLastError());
    found.count = 0;
    found.why = error == cudaSuccess ? "no GPU can be seen" : cudaGetErrorString(error);
    return found;
  }());
  if (why) *why = answer.why;
  return answer.count;
}

void check_device(int index) {
  std::string why;
  const int count = device_count(&why);
  check(count > 0, "device cuda:", index, " is not there: ", why, "; use device cpu");
  check(index < count, "device cuda:", index, " is not there: this machine has ", count,
        count == 1 ? " CUDA device" : " CUDA devices");
}

void use_device(int index) {
  // A thread begins on device 0, but nothing has told the driver that it will be used. Later it is
  // asked each time: the program and other libraries change the current device, too.
  static thread_local bool begun = false;
  int current = -1;
  if (begun) check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == index) return;
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  begun = true;
}

}  // namespace quipu::detail::on_cuda
