// The CUDA runtime API on the emulated device: memory, copies, errors.
#include "runtime.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "../checks/memory.h"
#include "../checks/order.h"
#include "../checks/report.h"
#include "../count.h"
#include "../emulator.h"
#include "stream.h"

using namespace quipu::emulator;

namespace {

cudaError_t last_error = cudaSuccess;
cudaError_t fault = cudaSuccess;  // stays until the process ends

/// Memory of cudaMallocHost: the only host memory that an asynchronous copy may find changed.
std::map<const char*, std::size_t>& pinned() {
  static auto* ranges = new std::map<const char*, std::size_t>;
  return *ranges;
}

bool is_pinned(const void* pointer) {
  const std::lock_guard guard(device_lock());
  const char* at = static_cast<const char*>(pointer);
  auto after = pinned().upper_bound(at);
  return after != pinned().begin() && (--after, at < after->first + after->second);
}

bool on_device(const void* pointer) {
  return device_memory().contains(reinterpret_cast<std::uintptr_t>(pointer));
}

int device_of(const void* pointer) {
  DeviceMemory& memory = device_memory();
  return memory.device_of(memory.offset_of(reinterpret_cast<std::uintptr_t>(pointer)));
}

cudaError_t refuse(const std::string& text) {
  report_host("invalid copy", text);
  set_error(cudaErrorInvalidValue);
  return cudaErrorInvalidValue;
}

}  // namespace

namespace quipu::emulator {

void set_error(cudaError_t error) {
  const std::lock_guard guard(device_lock());
  if (last_error == cudaSuccess) last_error = error;
}

void set_fault() {
  const std::lock_guard guard(device_lock());
  if (settings().sticky) fault = cudaErrorIllegalAddress;
  set_error(settings().sticky ? fault : cudaErrorLaunchFailure);
}

cudaError_t device_fault() {
  const std::lock_guard guard(device_lock());
  return fault;
}

bool HostAccess::touch(const void* address, std::size_t bytes, HostUse use) const {
  const bool write = use == HostUse::write;
  if (bytes == 0) return true;
  DeviceMemory& memory = device_memory();
  const std::size_t offset = memory.offset_of(reinterpret_cast<std::uintptr_t>(address));
  if (offset >= DeviceMemory::span || !memory.inside(offset, bytes)) {
    const std::string what = offset >= DeviceMemory::span
                                 ? "host memory where device memory is wanted"
                                 : memory.describe(offset, bytes, write ? "write" : "read");
    report_host("out of bounds", std::string(call) + ": " + what);
    set_error(cudaErrorInvalidValue);
    return false;
  }
  if (!settings().check) return true;
  Asker asker;
  asker.now = make_stamp(start, 0, 0, 0);
  asker.launch_start = asker.block_start = start;
  asker.oldest_unordered = oldest_unordered;
  const Finding finding = memory.shadow().touch_whole(offset, bytes, write, asker);
  if (use == HostUse::read && !memory.shadow().all_written(offset, bytes)) {
    report_host("uninitialised read", std::string(call) + ": " +
                                          memory.describe(offset, bytes, "read") +
                                          ", part of which nobody has written");
  }
  if (finding.kind != Finding::none) {
    report_host("stream order",
                std::string(call) + (write ? " writes " : " reads ") + std::to_string(bytes) +
                    " bytes of device memory that work on stream " +
                    std::to_string(stream_order().stream_at(epoch_of(finding.other))) +
                    (finding.kind == Finding::write_after_read ? " reads" : " writes") +
                    "; no event orders the two");
  }
  return true;
}

void HostAccess::wrote(void* address, std::size_t bytes) const {
  if (!settings().check || bytes == 0) return;
  DeviceMemory& memory = device_memory();
  memory.shadow().set(memory.offset_of(reinterpret_cast<std::uintptr_t>(address)), bytes,
                      make_stamp(start, 0, 0, 0));
}

void HostAccess::copied(void* to, const void* from, std::size_t bytes) const {
  if (!settings().check || bytes == 0) return;
  DeviceMemory& memory = device_memory();
  memory.shadow().copy(memory.offset_of(reinterpret_cast<std::uintptr_t>(to)),
                       memory.offset_of(reinterpret_cast<std::uintptr_t>(from)), bytes,
                       make_stamp(start, 0, 0, 0));
}

}  // namespace quipu::emulator

cudaError_t cudaGetLastError() {
  const std::lock_guard guard(device_lock());
  return fault != cudaSuccess ? fault : std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard guard(device_lock());
  return fault != cudaSuccess ? fault : last_error;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (const cudaError_t error = device_fault()) return error;
  count_call(HostCall::allocation);
  const std::lock_guard guard(device_lock());
  *pointer = bytes == 0 ? nullptr : device_memory().allocate(bytes, current_device());
  return bytes == 0 || *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = device_fault()) return error;
  if (pointer == nullptr) return cudaSuccess;
  count_call(HostCall::free);
  const std::lock_guard guard(device_lock());
  finish_all_streams();
  if (device_memory().release(pointer)) return cudaPeekAtLastError();
  report_host("invalid free", "cudaFree of a pointer that cudaMalloc has not given, or twice");
  return cudaErrorInvalidValue;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  if (const cudaError_t error = device_fault()) return error;
  count_call(HostCall::allocation);
  const std::lock_guard guard(device_lock());
  constexpr std::size_t page = 4096;
  *pointer = std::aligned_alloc(page, (bytes + page) / page * page);
  if (*pointer == nullptr) return cudaErrorMemoryAllocation;
  pinned()[static_cast<const char*>(*pointer)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return cudaMallocHost(pointer, bytes);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (const cudaError_t error = device_fault()) return error;
  if (pointer == nullptr) return cudaSuccess;
  count_call(HostCall::free);
  const std::lock_guard guard(device_lock());
  finish_all_streams();
  if (pinned().erase(static_cast<const char*>(pointer)) == 0) return cudaErrorInvalidValue;
  std::free(pointer);
  return cudaPeekAtLastError();
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  if (const cudaError_t error = device_fault()) return error;
  const std::lock_guard guard(device_lock());
  *total = settings().device_bytes;
  *available = *total - std::min(*total, device_memory().used(current_device()));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  auto* p = const_cast<void*>(pointer);
  *attributes = {cudaMemoryTypeUnregistered, 0, nullptr, p};
  if (on_device(pointer)) *attributes = {cudaMemoryTypeDevice, device_of(pointer), p, nullptr};
  if (is_pinned(pointer)) *attributes = {cudaMemoryTypeHost, 0, p, p};
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const cudaError_t error = device_fault()) return error;
  const bool to_device = on_device(to), from_device = on_device(from);
  const bool want_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool want_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (bytes == 0) return cudaSuccess;
  if (kind != cudaMemcpyDefault && (to_device != want_to || from_device != want_from)) {
    return refuse("cudaMemcpyAsync: the direction does not fit where the pointers lead");
  }
  if (to_device != from_device) count_call(to_device ? HostCall::upload : HostCall::download);
  // Ordinary host memory is read before the call returns; only pinned memory is read later.
  std::shared_ptr<std::vector<char>> staged;
  if (!from_device && !is_pinned(from)) {
    const char* bytes_of = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(bytes_of, bytes_of + bytes);
  }
  submit(stream, [=](std::uint64_t start, std::uint64_t oldest) {
    if (to_device && from_device) add_transfer("cudaMemcpyAsync", bytes, bytes);
    if (!settings().run) return;
    const HostAccess access{"cudaMemcpyAsync", start, oldest};
    if (from_device && !access.touch(from, bytes, HostUse::copy)) return;
    if (to_device && !access.touch(to, bytes, HostUse::write)) return;
    std::memmove(to, staged != nullptr ? staged->data() : from, bytes);
    if (to_device && from_device) access.copied(to, from, bytes);
    if (to_device && !from_device) access.wrote(to, bytes);
  });
  // Likewise it is written before the call returns.
  if (!to_device && !is_pinned(to)) return cudaStreamSynchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = device_fault()) return error;
  if (bytes == 0) return cudaSuccess;
  if (!on_device(to) || !on_device(from) || device_of(to) != to_device ||
      device_of(from) != from_device) {
    return refuse("cudaMemcpyPeerAsync: the pointers do not lead to the devices that are named");
  }
  count_call(HostCall::peer_copy);
  submit(stream, [=](std::uint64_t start, std::uint64_t oldest) {
    add_transfer("cudaMemcpyPeerAsync", bytes, bytes);
    if (!settings().run) return;
    const HostAccess access{"cudaMemcpyPeerAsync", start, oldest};
    if (!access.touch(from, bytes, HostUse::copy)) return;
    if (!access.touch(to, bytes, HostUse::write)) return;
    std::memmove(to, from, bytes);
    access.copied(to, from, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = device_fault()) return error;
  if (bytes == 0) return cudaSuccess;
  if (!on_device(to)) return refuse("cudaMemsetAsync: the pointer does not lead to the device");
  submit(stream, [=](std::uint64_t start, std::uint64_t oldest) {
    add_transfer("cudaMemsetAsync", 0, bytes);
    if (!settings().run) return;
    const HostAccess access{"cudaMemsetAsync", start, oldest};
    if (!access.touch(to, bytes, HostUse::write)) return;
    std::memset(to, value, bytes);
    access.wrote(to, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}
