#include "quipu/core/devices.h"

#include <array>
#include <iostream>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/error.h"
#include "quipu/core/memory/allocator.h"
#include "quipu/core/streams.h"
#include "quipu/core/tensor.h"

namespace quipu {
using namespace detail;
namespace {

DeviceFunctions& functions_of(DeviceKind kind) {
  static std::array<DeviceFunctions, 2> functions;
  return functions[static_cast<std::size_t>(kind)];
}

int count_cuda(std::string* why) {
  ensure_kernels_registered();
  const DeviceFunctions& functions = functions_of(DeviceKind::cuda);
  if (functions.count) return functions.count(why);
  *why = "this build of quipu has no CUDA back end";
  return 0;
}

}  // namespace

const DeviceFunctions& detail::device_functions(DeviceKind kind) {
  ensure_kernels_registered();
  return functions_of(kind);
}

void detail::provide_devices(DeviceKind kind, const DeviceFunctions& functions) {
  functions_of(kind) = functions;
}

int device_count(DeviceKind kind) {
  check_enum("kind", kind, DeviceKind::cuda);
  std::string why;
  return kind == DeviceKind::cpu ? 1 : count_cuda(&why);
}

bool is_available(const Device& device) {
  return device.is_meta() || device.index() < device_count(device.kind());
}

bool is_emulated(const Device& device) {
  return is_available(device) && functions_of(device.kind()).emulated && !device.is_meta();
}

Device cuda_or_cpu() {
  std::string why;
  if (count_cuda(&why) > 0) return Device(DeviceKind::cuda);
  static const bool said = [&] {
    std::cerr << "quipu: no CUDA device (" << why << "); running on the CPU" << std::endl;
    return true;
  }();
  static_cast<void>(said);
  return cpu;
}

void synchronize(const Device& device) {
  if (!device.is_cuda()) return;
  check(is_available(device), "device ", device, " is not there");
  functions_of(device.kind()).synchronize(device.index());
}

OnStream::OnStream(const Device& device, void* stream) : device_(device) {
  if (!device.is_cuda()) return;
  check(is_available(device), "device ", device, " is not there");
  const DeviceFunctions& functions = functions_of(device.kind());
  number_ = functions.adopt_stream(device.index(), stream);
  outer_ = functions.use_stream(device.index(), number_);
}

OnStream::~OnStream() {
  if (!device_.is_cuda()) return;
  const DeviceFunctions& functions = functions_of(device_.kind());
  functions.use_stream(device_.index(), outer_);
  functions.give_back_stream(device_.index(), number_);
}

Stream::Stream(const Device& device) : device_(device) {
  if (!device.is_cuda()) return;
  check(is_available(device), "device ", device, " is not there");
  number_ = functions_of(device.kind()).open_stream(device.index());
}

Stream::~Stream() {
  if (number_ > 0) functions_of(device_.kind()).close_stream(device_.index(), number_);
}

namespace {

void order(const Device& device, int first, int then) {
  if (device.is_cuda()) functions_of(device.kind()).order_streams(device.index(), first, then);
}

int current_number(const Device& device) {
  if (!device.is_cuda()) return 0;
  const DeviceFunctions& functions = functions_of(device.kind());
  const int number = functions.use_stream(device.index(), 0);
  functions.use_stream(device.index(), number);
  return number;
}

}  // namespace

void Stream::wait_for_current() const {
  order(device_, current_number(device_), number_);
}

void Stream::current_waits() const {
  order(device_, number_, current_number(device_));
}

void Stream::synchronize() const {
  const StreamScope scope(*this);
  quipu::synchronize(device_);
}

StreamScope::StreamScope(const Stream& stream) : device_(stream.device()) {
  if (device_.is_cuda()) {
    outer_ = functions_of(device_.kind()).use_stream(device_.index(), stream.number());
  }
}

StreamScope::~StreamScope() {
  if (device_.is_cuda()) functions_of(device_.kind()).use_stream(device_.index(), outer_);
}

void detail::note_use(const Tensor& x) {
  allocator_of(x.device()).note_use(x.storage().data());
}

}  // namespace quipu
