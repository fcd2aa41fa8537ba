// The CUDA runtime API on the emulated device: what the device is, streams, events.
#include <chrono>
#include <cstdio>
#include <mutex>

#include "../checks/report.h"
#include "../count.h"
#include "../emulator.h"
#include "runtime.h"
#include "stream.h"

using namespace quipu::emulator;

namespace {

bool is_device(int device) {
  return device >= 0 && device < settings().devices;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().devices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  set_current_device(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const Card& card = card_of(device);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = card.multiprocessors; break;
    case cudaDevAttrL2CacheSize: *value = static_cast<int>(card.l2_bytes); break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card.threads_per_multiprocessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = card.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(card.shared_per_multiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(card.shared_per_block);
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = static_cast<int>(card.shared_reserved_per_block);
      break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  const Card& card = card_of(device);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "%s (emulated)", card.name);
  p->totalGlobalMem = settings().device_bytes;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = card.shared_per_block;
  p->sharedMemPerMultiprocessor = card.shared_per_multiprocessor;
  p->reservedSharedMemPerBlock = card.shared_reserved_per_block;
  p->major = card.major;
  p->minor = card.minor;
  p->multiProcessorCount = card.multiprocessors;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = card.threads_per_multiprocessor;
  p->regsPerBlock = 65536;
  p->l2CacheSize = static_cast<int>(card.l2_bytes);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    default: return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "a kernel was given up, see the emulator's report";
    case cudaErrorStreamCaptureUnsupported: return "not allowed while a stream is captured";
    case cudaErrorStreamCaptureInvalidated: return "the capture failed because of an earlier error";
    default: return "unknown error";
  }
}

cudaError_t cudaDeviceSynchronize() {
  count_call(HostCall::wait);
  if (spoils_captures(current_device(), "cudaDeviceSynchronize")) {
    return cudaErrorStreamCaptureUnsupported;
  }
  finish_device(current_device());
  return cudaPeekAtLastError();
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (const cudaError_t error = device_fault()) return error;
  *stream = create_stream((flags & cudaStreamNonBlocking) == 0);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = device_fault()) return error;
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  destroy_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  count_call(HostCall::wait);
  finish_stream(stream);
  return cudaPeekAtLastError();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return is_finished(stream) ? cudaPeekAtLastError() : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = device_fault()) return error;
  count_call(HostCall::stream_wait);
  wait_for(stream, *event);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  submit_note(stream, [=] { function(argument); });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  if (const cudaError_t error = device_fault()) return error;
  *event = new Event;
  (*event)->device = current_device();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return device_fault();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = device_fault()) return error;
  if (event->device != or_default(stream).device) {
    report_host("invalid event", "cudaEventRecord: event and stream belong to different devices");
    set_error(cudaErrorInvalidResourceHandle);
    return cudaErrorInvalidResourceHandle;
  }
  record(*event, stream);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  count_call(HostCall::wait);
  finish_event(*event);
  return cudaPeekAtLastError();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard guard(device_lock());
  if (!event->state->ready()) make_progress();
  return event->state->ready() ? cudaPeekAtLastError() : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto time = end->state->time - start->state->time;
  *milliseconds = std::chrono::duration<float, std::milli>(time).count();
  return cudaSuccess;
}
