#include "quipu/cuda/launch.h"

__global__ void reverse(const float* in, float* out) {
  __shared__ float tile[256];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[255 - threadIdx.x];
}

void launch_reverse(const float* in, float* out, cudaStream_t stream) {
  quipu::launch(reverse, dim3(1), dim3(256), 0, stream, in, out);
}
