#pragma once
// Queues of work on a device, and what a back end says of its devices. Internal to back ends and
// their tests.
#include <string>

#include "quipu/core/device.h"

namespace quipu {
class Tensor;
}

namespace quipu::detail {

struct View;

/// A queue of work of its own on a CUDA device, beside the main one that every thread uses unless a
/// StreamScope says otherwise. Work on two streams is ordered by waiting alone; a tensor that was
/// made on one and is read on another also needs note_use. On other devices it stands for the order
/// of the program.
class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();  // waits for its work
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const { return device_; }
  int number() const { return number_; }
  /// What is given to this stream from now on comes after what this thread's current stream was
  /// given before.
  void wait_for_current() const;
  /// The other way round: this thread's current stream waits for this one.
  void current_waits() const;
  void synchronize() const;

 private:
  Device device_;
  int number_ = 0;
};

/// This thread works on the stream while it lives.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Device device_;
  int outer_ = 0;
};

/// This thread's stream reads or writes a tensor that was made on another: its memory is given to
/// nobody before that is done.
void note_use(const Tensor& x);

/// What a back end says of the devices of its kind. Streams are numbers; 0 is the main one.
struct DeviceFunctions {
  int (*count)(std::string* why) = nullptr;  // the reason for none goes to `why`
  void (*synchronize)(int device) = nullptr;
  int (*open_stream)(int device) = nullptr;
  void (*close_stream)(int device, int number) = nullptr;
  int (*use_stream)(int device, int number) = nullptr;  // returns the one that was used before
  void (*order_streams)(int device, int first, int then) = nullptr;
  /// A stream of the program's own gets a number for a while. It comes after what the thread's
  /// stream was given before; after it was given back, the thread's stream comes after it.
  int (*adopt_stream)(int device, void* stream) = nullptr;
  void (*give_back_stream)(int device, int number) = nullptr;
  /// Contiguous views of one type on two devices of this kind. The host waits for nothing.
  void (*copy_between_devices)(const View& to, const View& from) = nullptr;
  /// As upload_kernel. If the host's memory is pinned, it is read later, in the order of the
  /// stream, and is not given to anybody else before.
  void (*upload_async)(const View& on_device, const View& on_host) = nullptr;
  bool (*is_pinned)(const View& on_host) = nullptr;
  bool emulated = false;
};
void provide_devices(DeviceKind kind, const DeviceFunctions& functions);
/// All null for a kind that no back end has provided.
const DeviceFunctions& device_functions(DeviceKind kind);

}  // namespace quipu::detail
