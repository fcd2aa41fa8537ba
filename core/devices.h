#pragma once
// Which devices this machine has, their queues of work, and waiting for them.
#include <string>

#include "quipu/core/device.h"

namespace quipu {

class Tensor;

/// How many devices of a kind this machine has; 0 for cuda in a build without CUDA, or without a
/// driver. Starts nothing.
int device_count(DeviceKind kind);
/// True for cpu, meta, and the CUDA devices of this machine.
bool is_available(const Device& device);
/// True for CUDA in a build with -DQUIPU_CUDA=EMULATE: every access is checked, and takes its time.
bool is_emulated(const Device& device);
/// The first CUDA device; where there is none, the CPU, which one line on stderr says once.
Device cuda_or_cpu();
/// Waits until everything that this thread gave a device is done. Errors that could not be known
/// earlier, such as an index out of range, are thrown here.
void synchronize(const Device& device);

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
  bool emulated = false;
};
void provide_devices(DeviceKind kind, const DeviceFunctions& functions);

}  // namespace quipu
