#pragma once
// Streams and events. Work is queued and runs when somebody waits for it, in an order that the seed
// chooses among those that CUDA allows. With seed 0 it runs at once.
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../checks/order.h"

namespace quipu::emulator {

/// How far an event has come; outlives the event while a stream waits for it.
struct EventState {
  std::uint64_t recorded = 0, reached = 0;
  StreamClock clock;  // what the last record comes after
  std::chrono::steady_clock::time_point time;
  bool ready() const { return reached >= recorded; }
};
struct Event {
  int device = 0;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

struct Item {
  std::uint64_t sequence = 0;
  std::function<void()> run;
  std::shared_ptr<EventState> wait;  // null: needs no event
  std::uint64_t ticket = 0;          // which record of it
};
/// Queues a kernel, a copy, a fill or a library call. It is given the first epoch that is its own
/// and the first that is not ordered before it.
using WorkFunction = std::function<void(std::uint64_t start, std::uint64_t oldest_unordered)>;

/// The same kernel with other arguments, given as CUDA takes them: an address each.
using Rebuild = std::function<WorkFunction(void* const* arguments)>;

/// What a stream was asked for while it was captured, in order.
struct GraphNode {
  WorkFunction work;           // either this,
  std::function<void()> note;  // or something that touches no device memory
  Rebuild rebuild;             // of kernels
};
struct Graph {
  int device = 0;
  std::vector<std::unique_ptr<GraphNode>> nodes;  // their addresses are handles
  bool spoiled = false;  // something was asked for that no graph may contain
};

struct Stream {
  std::uint32_t number = 0;
  int device = 0;
  bool blocking = true;  // with regard to the default stream
  std::uint32_t position = 0;
  StreamClock clock;
  std::deque<Item> queue;
  std::unique_ptr<Graph> capture;  // null: what it is asked for runs
};

/// One thread at a time talks to the device.
std::recursive_mutex& device_lock();

/// The device that this host thread's calls go to.
int current_device();
void set_current_device(int device);
/// The default stream of the current device, if it is meant.
Stream& or_default(Stream* stream);

void submit(Stream* stream, WorkFunction work, Rebuild rebuild = {});
/// Queues something that touches no device memory.
void submit_note(Stream* stream, std::function<void()> note);

Stream* create_stream(bool blocking);  // of the current device
void destroy_stream(Stream* stream);
void finish_stream(Stream* stream);
void finish_device(int device);
void finish_all_streams();  // of all devices
bool is_finished(Stream* stream);
/// Something that is queued runs, so that a host that only asks comes to an end.
void make_progress();
void record(Event& event, Stream* stream);
void wait_for(Stream* stream, const Event& event);
void finish_event(const Event& event);
/// Whether a stream is captured, which `call` does not allow: reported, and the graph is spoiled.
bool spoils_capture(Stream& stream, const char* call);
/// The same for all streams of a device.
bool spoils_captures(int device, const char* call);

}  // namespace quipu::emulator
