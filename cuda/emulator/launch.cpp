// From a launch on the host to blocks that run, and the functions of device.h that kernels call.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "checks/memory.h"
#include "checks/report.h"
#include "checks/symbols.h"
#include "emulator.h"
#include "multiprocessor.h"
#include "runtime/runtime.h"
#include "runtime/stream.h"

namespace quipu::emulator {
namespace {

/// OS threads that stay, for launches that nobody watches. The one who calls works too.
class Pool {
 public:
  /// With fewer helpers where the system has no more threads.
  explicit Pool(unsigned helpers) {
    try {
      for (unsigned i = 0; i < helpers; ++i) {
        threads_.emplace_back([this, i] { serve(i + 1); });
      }
    } catch (const std::system_error&) {
    }
  }
  ~Pool() {
    {
      const std::lock_guard guard(lock_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Runs part(0), part(1), ... at the same time.
  void run(std::function<void(unsigned)> part) {
    {
      const std::lock_guard guard(lock_);
      part_ = std::move(part);
      busy_ = static_cast<unsigned>(threads_.size());
      ++round_;
    }
    wake_.notify_all();
    part_(0);
    std::unique_lock guard(lock_);
    idle_.wait(guard, [&] { return busy_ == 0; });
  }
  unsigned size() const { return static_cast<unsigned>(threads_.size()) + 1; }

 private:
  void serve(unsigned number) {
    unsigned seen = 0;
    for (;;) {
      std::unique_lock guard(lock_);
      wake_.wait(guard, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      guard.unlock();
      part_(number);
      guard.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  std::mutex lock_;
  std::condition_variable wake_, idle_;
  std::function<void(unsigned)> part_;
  unsigned round_ = 0, busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

bool run_in_parallel(const Launch& launch, unsigned threads) {
  static Pool pool(threads - 1);
  std::atomic<bool> well = true;
  const std::uint64_t blocks = launch.blocks(), parts = pool.size();
  pool.run([&](unsigned i) {
    if (!this_multiprocessor().run_unwatched(launch, blocks * i / parts,
                                             blocks * (i + 1) / parts)) {
      well = false;
    }
  });
  return well;
}

/// Appends the name of a kernel to the file that QUIPU_EMULATOR_LAUNCHED names, once in a process.
void note_launch(const void* kernel) {
  static const char* const file = std::getenv("QUIPU_EMULATOR_LAUNCHED");
  static auto* noted = new std::set<const void*>;
  if (file == nullptr || *file == '\0' || !noted->insert(kernel).second) return;
  // One write, so that the lines of processes that run at the same time stay whole.
  const std::string line = kernel_name(kernel) + "\n";
  const int to = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written = to >= 0 && write(to, line.data(), line.size()) == ssize_t(line.size());
  if (to >= 0) close(to);
  if (!written) report_host("launch record", std::string("cannot append to ") + file);
}

void run_launch(const Launch& launch, std::uint64_t oldest_unordered) {
  const Settings& s = settings();
  if (s.run) note_launch(launch.call->kernel);
  const bool alone = s.check || s.count || s.threads <= 1 || launch.blocks() < s.threads;
  Multiprocessor& mine = this_multiprocessor();
  if (!s.run) {
    mine.counting.launch = {};
    mine.counting.launch.launches = 1;
  } else if (!(alone ? mine.run(launch, oldest_unordered) : run_in_parallel(launch, s.threads))) {
    set_fault();
  }
  if (!s.count) return;
  LaunchRecord record;
  record.kernel = kernel_name(launch.call->kernel);
  const dim3 sizes[] = {launch.grid, launch.block};
  for (unsigned i = 0; i < 2; ++i) {
    unsigned* to = i == 0 ? record.grid : record.block;
    to[0] = sizes[i].x, to[1] = sizes[i].y, to[2] = sizes[i].z;
  }
  record.shared_bytes = launch.shared_bytes + static_shared_bytes(launch.call->kernel);
  record.counters = mine.counting.launch;
  add_launch(std::move(record));
}

WorkFunction work_of(Launch launch) {
  return [launch = std::move(launch)](std::uint64_t, std::uint64_t oldest) {
    run_launch(launch, oldest);
  };
}

std::string invalid_launch(const Launch& launch) {
  const dim3 g = launch.grid, b = launch.block;
  if (g.x == 0 || g.y == 0 || g.z == 0) return "the grid has no blocks";
  if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    return "the grid is larger than 2^31-1 x 65535 x 65535";
  const std::uint64_t threads = std::uint64_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > 1024 || b.z > 64) {
    return "a block of " + std::to_string(threads) + " threads: 1 to 1024 are possible";
  }
  return "";
}

/// Whether a block may have its shared memory; if not, it is reported. Real launches fail with
/// cudaErrorInvalidValue then, and so does cudaFuncSetAttribute.
bool allows_shared(const void* kernel, std::size_t dynamic_bytes, std::size_t most_bytes) {
  const Card& card = card_of(current_device());
  constexpr std::size_t most_static = 48 * 1024;
  const std::size_t static_bytes = static_shared_bytes(kernel);
  if (static_bytes + dynamic_bytes <= most_bytes && static_bytes <= most_static) return true;
  std::string text = kernel_name(kernel) + ": " + std::to_string(dynamic_bytes) +
                     " bytes of dynamic and " + std::to_string(static_bytes) +
                     " of static shared memory: ";
  if (static_bytes > most_static) {
    text += "ptxas allows " + std::to_string(most_static) + " static ones";
  } else {
    text += std::to_string(most_bytes) + " are possible on " + card.name;
    if (most_bytes < card.shared_per_block) {
      text += " without cudaFuncAttributeMaxDynamicSharedMemorySize";
    }
  }
  report_host("invalid launch", text);
  return false;
}

std::mutex& allowed_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}
/// What cudaFuncSetAttribute was told of a kernel on a device: the most dynamic shared memory of a
/// launch.
std::map<std::pair<const void*, int>, std::size_t>& allowed() {
  static auto* bytes = new std::map<std::pair<const void*, int>, std::size_t>;
  return *bytes;
}

std::size_t most_dynamic(const void* kernel) {
  constexpr std::size_t without_asking = 48 * 1024;
  const std::lock_guard guard(allowed_lock());
  const auto told = allowed().find({kernel, current_device()});
  if (told != allowed().end()) return told->second;
  return without_asking - std::min(without_asking, static_shared_bytes(kernel));
}

}  // namespace

void enqueue(std::shared_ptr<const Call> call, dim3 grid, dim3 block, std::size_t shared_bytes,
             Stream* stream) {
  const int device = or_default(stream).device;
  Launch launch{std::move(call), grid, block, shared_bytes, device};
  if (device != current_device()) {
    report_host("invalid launch", kernel_name(launch.call->kernel) +
                                      ": the stream belongs to device " + std::to_string(device) +
                                      ", but the current device is " +
                                      std::to_string(current_device()));
    return set_error(cudaErrorInvalidResourceHandle);
  }
  const std::string mistake = invalid_launch(launch);
  if (!mistake.empty()) {
    report_host("invalid launch", kernel_name(launch.call->kernel) + ": " + mistake);
    return set_error(cudaErrorInvalidConfiguration);
  }
  const void* const kernel = launch.call->kernel;
  const std::size_t most = most_dynamic(kernel) + static_shared_bytes(kernel);
  if (!allows_shared(kernel, shared_bytes,
                     std::min(most, card_of(current_device()).shared_per_block))) {
    return set_error(cudaErrorInvalidValue);
  }
  count_call(HostCall::launch);
  submit(stream, work_of(launch), [launch](void* const* arguments) {
    Launch again = launch;
    again.call = launch.call->with(arguments);
    return work_of(std::move(again));
  });
}

void* dynamic_shared() {
  return running->dynamic_shared();
}

int barrier(bool predicate, Site at) {
  return running->barrier(predicate, at);
}

std::uint64_t collective(Collective what, unsigned mask, std::uint64_t input, unsigned argument,
                         unsigned width, Site at, CollectiveFunction function) {
  return running->collective(what, mask, input, argument, width, at, function);
}

unsigned active_lanes() {
  return running->active_lanes();
}

void fence() {
  running->fence();
}

void copy_async(void* shared, const void* global, std::size_t bytes, std::size_t zeros) {
  running->copy_async(shared, global, bytes, zeros,
                      reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
}

void copy_commit() {
  running->copy_commit();
}

void copy_wait(std::size_t groups_left) {
  running->copy_wait(groups_left);
}

void trap(Site at) {
  report("trap", at, "calls __trap()");
  running->abandon();
}

}  // namespace quipu::emulator

using namespace quipu::emulator;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  const auto bytes = static_cast<std::size_t>(value);
  if (value < 0 || !allows_shared(kernel, bytes, card_of(current_device()).shared_per_block)) {
    set_error(cudaErrorInvalidValue);
    return cudaErrorInvalidValue;
  }
  const std::lock_guard guard(allowed_lock());
  allowed()[{kernel, current_device()}] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  attributes->sharedSizeBytes = static_shared_bytes(kernel);
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(most_dynamic(kernel));
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
