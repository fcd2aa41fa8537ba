// A program that asks for a CUDA device where there is none: it says so in one line, trains on the
// CPU and ends as if nothing were missing.
#include <quipu/quipu.h>

#include <iostream>

using namespace quipu;

int main() {
  const Device device = cuda_or_cpu();
  if (device != cuda_or_cpu() || is_available("cuda") || device_count(DeviceKind::cuda) != 0) {
    std::cout << "there is a CUDA device after all\n";
    return 1;
  }
  const Tensor w = ones({3}, f32, device).set_requires_grad();
  for (int step = 0; step < 50; ++step) {
    w.zero_grad();
    Tape tape;
    tape.backward(sum(w * w));
    w.detach().add_(w.grad() * -0.1);
  }
  std::cout << "on " << to_string(device) << ": "
            << (sum(w * w).item() < 1e-6 ? "learnt" : "failed");
  try {
    zeros({2}, f32, "cuda");
  } catch (const Error& error) {
    std::cout << "; " << error.what() << "\n";
    return 0;
  }
  return 1;
}
