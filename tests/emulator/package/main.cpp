#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

void launch_reverse(const float* in, float* out, cudaStream_t stream);

int main() {
  std::vector<float> host(256, 1.0f);
  float *in, *out;
  cudaMalloc(&in, 1024);
  cudaMalloc(&out, 1024);
  cudaMemcpy(in, host.data(), 1024, cudaMemcpyHostToDevice);
  launch_reverse(in, out, nullptr);
  cudaMemcpy(host.data(), out, 1024, cudaMemcpyDeviceToHost);
  std::printf("done: %g\n", host[0]);
  cudaFree(in);
  cudaFree(out);
}
