#include "stream.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <vector>

#include "../checks/report.h"
#include "../emulator.h"
#include "../multiprocessor.h"
#include "runtime.h"

namespace quipu::emulator {
namespace {

struct Devices {
  std::deque<Stream> default_streams;  // one a device
  std::vector<Stream*> streams;
  StreamClock host;  // what the host has waited for
  std::uint64_t sequence = 0, random = 0x853c49e6748fea9bu;
  std::uint32_t numbers = 0;

  Devices() {
    for (int i = 0; i < settings().devices; ++i) {
      Stream& stream = default_streams.emplace_back();
      stream.device = i;
      stream.number = numbers++;
      streams.push_back(&stream);
    }
  }
  Stream& default_of(int device) { return default_streams[static_cast<std::size_t>(device)]; }
};

Devices& devices() {
  static auto* all = new Devices;
  return *all;
}

constinit thread_local int current = 0;

constexpr std::uint64_t never = ~std::uint64_t{0};

std::uint64_t first_sequence(const Stream& stream) {
  return stream.queue.empty() ? never : stream.queue.front().sequence;
}

bool can_run(const Stream& stream) {
  if (stream.queue.empty()) return false;
  const Item& item = stream.queue.front();
  if (item.wait != nullptr && item.wait->reached < item.ticket) return false;
  if (!stream.blocking) return true;
  // The default stream of a device and its blocking ones keep the order of enqueueing between them.
  const Stream& common = devices().default_of(stream.device);
  if (&stream != &common) return first_sequence(common) > item.sequence;
  const auto& all = devices().streams;
  return std::all_of(all.begin(), all.end(), [&](const Stream* other) {
    return other == &stream || other->device != stream.device || !other->blocking ||
           first_sequence(*other) > item.sequence;
  });
}

/// Runs the first item of one stream, any that can.
bool step() {
  Devices& d = devices();
  d.random = d.random * 6364136223846793005u + settings().seed * 2 + 1;
  const std::size_t start = settings().seed == 0 ? 0 : d.random >> 33;
  for (std::size_t i = 0; i < d.streams.size(); ++i) {
    Stream& stream = *d.streams[(start + i) % d.streams.size()];
    if (!can_run(stream)) continue;
    Item item = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (item.run) item.run();
    return true;
  }
  return false;
}

template <class Done>
void run_until(Done done) {
  while (!done()) {
    if (step()) continue;
    report_host("deadlock", "streams wait for events that nobody records");
    for (Stream* stream : devices().streams) stream->queue.clear();
    return;
  }
}

std::size_t queued() {
  std::size_t count = 0;
  for (const Stream* stream : devices().streams) count += stream->queue.size();
  return count;
}

void push(Stream* stream, Item item) {
  item.sequence = ++devices().sequence;
  stream->queue.push_back(std::move(item));
  constexpr std::size_t most_queued = 256;
  if (settings().seed == 0) {
    run_until([] { return queued() == 0; });
  } else if (queued() > most_queued) {
    run_until([] { return queued() <= most_queued / 2; });
  }
}

/// At its end, without the device's lock, other host threads get a chance.
struct Yield {
  Yield() = default;
  Yield(const Yield&) = delete;
  Yield& operator=(const Yield&) = delete;
  ~Yield() {
    static thread_local unsigned calls = 0;
    const unsigned every = settings().yield;
    if (every == 0 || ++calls % every != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
};

/// What comes before the next item of a stream.
void catch_up(Stream& stream) {
  Devices& d = devices();
  join(stream.clock, d.host);
  if (!stream.blocking) return;
  const Stream& common = d.default_of(stream.device);
  if (&stream != &common) return join(stream.clock, common.clock);
  for (const Stream* other : d.streams) {
    if (other->blocking && other->device == stream.device) join(stream.clock, other->clock);
  }
}

}  // namespace

int current_device() {
  return current;
}

void set_current_device(int device) {
  current = device;
}

Stream& or_default(Stream* stream) {
  return stream == nullptr || stream == cudaStreamLegacy ? devices().default_of(current) : *stream;
}

std::recursive_mutex& device_lock() {
  static auto* lock = new std::recursive_mutex;
  return *lock;
}

bool spoils_capture(Stream& stream, const char* call) {
  if (stream.capture == nullptr) return false;
  stream.capture->spoiled = true;
  report_host("capture", std::string(call) + " while a stream is captured");
  set_error(cudaErrorStreamCaptureUnsupported);
  return true;
}

bool spoils_captures(int device, const char* call) {
  const std::lock_guard guard(device_lock());
  bool spoils = false;
  for (Stream* stream : devices().streams) {
    if (stream->device == device) spoils = spoils_capture(*stream, call) || spoils;
  }
  return spoils;
}

void submit(Stream* stream, WorkFunction function, Rebuild rebuild) {
  const Yield yield;
  const std::lock_guard guard(device_lock());
  Stream& s = or_default(stream);
  if (s.capture != nullptr) {
    s.capture->nodes.push_back(
        std::make_unique<GraphNode>(std::move(function), nullptr, std::move(rebuild)));
    return;
  }
  catch_up(s);
  Work work;
  work.stream = s.number;
  work.position = ++s.position;
  work.after = s.clock;
  if (s.clock.size() <= s.number) s.clock.resize(s.number + 1);
  s.clock[s.number] = s.position;
  push(&s, {0,
            [work = std::move(work), function = std::move(function)] {
              const std::uint64_t start = ++global_epoch();
              const std::uint64_t oldest = stream_order().begin(work, start);
              if (device_fault() == cudaSuccess) function(start, oldest);
            },
            nullptr, 0});
}

void submit_note(Stream* stream, std::function<void()> note) {
  const std::lock_guard guard(device_lock());
  Stream& s = or_default(stream);
  if (s.capture != nullptr) {
    s.capture->nodes.push_back(std::make_unique<GraphNode>(nullptr, std::move(note), Rebuild()));
    return;
  }
  push(&s, {0, std::move(note), nullptr, 0});
}

Stream* create_stream(bool blocking) {
  const std::lock_guard guard(device_lock());
  auto* stream = new Stream;
  stream->number = devices().numbers++;
  stream->device = current;
  stream->blocking = blocking;
  devices().streams.push_back(stream);
  return stream;
}

void destroy_stream(Stream* stream) {
  const std::lock_guard guard(device_lock());
  finish_stream(stream);
  std::erase(devices().streams, stream);
  delete stream;
}

void finish_stream(Stream* stream) {
  const std::lock_guard guard(device_lock());
  Stream& s = or_default(stream);
  if (spoils_capture(s, "waiting for a stream")) return;
  run_until([&] { return s.queue.empty(); });
  catch_up(s);
  join(devices().host, s.clock);
}

void finish_device(int device) {
  if (settings().devices == 1) return finish_all_streams();
  if (running != nullptr) return;
  const std::lock_guard guard(device_lock());
  const auto for_each = [&](auto f) {
    for (Stream* stream : devices().streams) {
      if (stream->device == device) f(*stream);
    }
  };
  run_until([&] {
    bool empty = true;
    for_each([&](const Stream& stream) { empty = empty && stream.queue.empty(); });
    return empty;
  });
  for_each([](const Stream& stream) { join(devices().host, stream.clock); });
}

void finish_all_streams() {
  if (running != nullptr) return;
  const std::lock_guard guard(device_lock());
  run_until([] { return queued() == 0; });
  for (const Stream* stream : devices().streams) join(devices().host, stream->clock);
  stream_order().forget();
}

bool is_finished(Stream* stream) {
  const std::lock_guard guard(device_lock());
  Stream& s = or_default(stream);
  if (spoils_capture(s, "cudaStreamQuery")) return true;
  if (!s.queue.empty()) make_progress();
  return s.queue.empty();
}

void make_progress() {
  const std::lock_guard guard(device_lock());
  step();
}

void record(Event& event, Stream* stream) {
  const std::lock_guard guard(device_lock());
  Stream& s = or_default(stream);
  if (spoils_capture(s, "cudaEventRecord")) return;
  catch_up(s);
  EventState& state = *event.state;
  state.clock = s.clock;
  const std::uint64_t ticket = ++state.recorded;
  push(&s, {0,
            [state = event.state, ticket] {
              state->reached = std::max(state->reached, ticket);
              state->time = std::chrono::steady_clock::now();
            },
            nullptr, 0});
}

void wait_for(Stream* stream, const Event& event) {
  const std::lock_guard guard(device_lock());
  Stream& s = or_default(stream);
  if (spoils_capture(s, "cudaStreamWaitEvent")) return;
  join(s.clock, event.state->clock);
  push(&s, {0, nullptr, event.state, event.state->recorded});
}

void finish_event(const Event& event) {
  const std::lock_guard guard(device_lock());
  run_until([&] { return event.state->ready(); });
  join(devices().host, event.state->clock);
}

}  // namespace quipu::emulator
