// The emulated device as one of several cards: what it reports, and how much shared memory a block
// may have, static arrays included.
#include "buffer.h"

namespace quipu::testing {
namespace {

/// Has `bytes` of static shared memory.
template <int bytes>
__global__ void has_static(int* out) {
  __shared__ unsigned char some[bytes];
  some[threadIdx.x] = 1;
  if (threadIdx.x == 0) out[0] = some[0] + dynamic_shared<unsigned char>()[0];
}

const void* address_of(void (*kernel)(int*)) {
  return reinterpret_cast<const void*>(kernel);
}

/// What a launch of one block gives, and that it is reported if it fails.
cudaError_t launch_with(void (*kernel)(int*), std::size_t dynamic_bytes) {
  const Buffer<int> out(1);
  emulator::clear_reports();
  launch(kernel, dim3(1), dim3(32), dynamic_bytes, nullptr, out.data());
  const cudaError_t error = cudaGetLastError();
  CHECK((error == cudaSuccess) == emulator::reports().empty());
  return error;
}

cudaError_t allow(void (*kernel)(int*), int dynamic_bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes);
  CHECK(cudaGetLastError() == error);
  return error;
}

void use_card(const char* key) {
  REQUIRE(emulator::find_card(key) != nullptr);
  emulator::settings().cards = {emulator::find_card(key)};
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, which, 0) == cudaSuccess);
  return value;
}

TEST_CASE("emulator: a card reports what the real one does") {
  const Watched watched;
  struct Row {
    const char *key, *name;
    int capability, multiprocessors, optin_kib, multiprocessor_kib, l2_mib;
  };
  const Row rows[] = {
      {"a100", "A100", 80, 108, 163, 164, 40},        {"rtx3090", "RTX 3090", 86, 82, 99, 100, 6},
      {"rtx4090", "RTX 4090", 89, 128, 99, 100, 72},  {"h100", "H100", 90, 132, 227, 228, 50},
      {"rtx5090", "RTX 5090", 120, 170, 99, 100, 96}, {"t4", "T4", 75, 40, 64, 64, 4}};
  for (const Row& row : rows) {
    CAPTURE(row.key);
    use_card(row.key);
    CHECK(10 * attribute(cudaDevAttrComputeCapabilityMajor) +
              attribute(cudaDevAttrComputeCapabilityMinor) ==
          row.capability);
    CHECK(attribute(cudaDevAttrMultiProcessorCount) == row.multiprocessors);
    CHECK(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) == row.optin_kib * 1024);
    CHECK(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) == row.multiprocessor_kib * 1024);
    CHECK(attribute(cudaDevAttrReservedSharedMemoryPerBlock) ==
          (row.multiprocessor_kib - row.optin_kib) * 1024);
    CHECK(attribute(cudaDevAttrL2CacheSize) == row.l2_mib << 20);
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0) == cudaSuccess);
    CHECK(std::string(p.name).find(row.name) != std::string::npos);
    CHECK(std::string(p.name).find("(emulated)") != std::string::npos);
    CHECK(10 * p.major + p.minor == row.capability);
    CHECK(p.multiProcessorCount == row.multiprocessors);
    CHECK(p.sharedMemPerBlock == 48 * 1024);
    CHECK(p.sharedMemPerBlockOptin == static_cast<std::size_t>(row.optin_kib) * 1024);
    CHECK(p.l2CacheSize == row.l2_mib << 20);
  }
  CHECK(emulator::find_card("gtx") == nullptr);
}

TEST_CASE("emulator: static shared memory counts, in lines of 128 bytes") {
  cudaFuncAttributes found;
  CHECK(cudaFuncGetAttributes(&found, address_of(has_static<100>)) == cudaSuccess);
  CHECK(found.sharedSizeBytes == 128);
  CHECK(found.maxDynamicSharedSizeBytes == 48 * 1024 - 128);
  CHECK(cudaFuncGetAttributes(&found, address_of(has_static<4097>)) == cudaSuccess);
  CHECK(found.sharedSizeBytes == 4096 + 128);
}

TEST_CASE("emulator: more than 48 KiB of shared memory must be asked for, and the card have it") {
  const Watched watched;
  constexpr auto kernel = has_static<1024>;
  use_card("rtx3090");
  constexpr int most = 99 * 1024;
  CHECK(launch_with(kernel, most - 1024) == cudaSuccess);
  CHECK(launch_with(kernel, most - 1023) == cudaErrorInvalidValue);
  CHECK(allow(kernel, most - 1023) == cudaErrorInvalidValue);
  CHECK(allow(kernel, -1) == cudaErrorInvalidValue);
  CHECK(allow(kernel, 50 * 1024) == cudaSuccess);  // lower than before: then a launch asks again
  CHECK(launch_with(kernel, 60 * 1024) == cudaSuccess);
  use_card("h100");
  CHECK(launch_with(kernel, 226 * 1024) == cudaSuccess);
  use_card("a100");  // what another card allowed does not help
  CHECK(launch_with(kernel, 226 * 1024) == cudaErrorInvalidValue);
  CHECK(launch_with(kernel, 162 * 1024) == cudaSuccess);
}

TEST_CASE("emulator: static arrays take of what is there without asking") {
  const Watched watched;
  CHECK(launch_with(has_static<40 * 1024>, 8 * 1024) == cudaSuccess);
  CHECK(launch_with(has_static<40 * 1024>, 8 * 1024 + 1) == cudaErrorInvalidValue);
  CHECK(emulator::reports().size() == 1);
  CHECK(emulator::reports()[0].text.find("without cudaFuncAttributeMaxDynamic") !=
        std::string::npos);
  CHECK(launch_with(has_static<48 * 1024 + 1>, 0) == cudaErrorInvalidValue);  // ptxas refuses it
}

}  // namespace
}  // namespace quipu::testing
