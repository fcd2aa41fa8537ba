#include "index_errors.h"

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/error.h"

namespace quipu::detail::on_cuda {
namespace {

/// What the message needs that the device does not know.
struct Check {
  const char* operation;  // a literal
  Shape shape;            // of the indices
  IndexWords words;
  bool operator==(const Check&) const = default;
};

struct DeviceNotes {
  std::mutex mutex;
  IndexNote* note = nullptr;
  std::vector<Check> checks;  // since the last synchronisation, equal ones once
};

DeviceNotes& notes_of(int device) {
  static auto* all = new std::array<DeviceNotes, Device::max_index>;
  return (*all)[static_cast<std::size_t>(device)];
}

int number_of(std::vector<Check>& checks, const Check& check) {
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (checks[i] == check) return static_cast<int>(i);
  }
  checks.push_back(check);
  return static_cast<int>(checks.size()) - 1;
}

std::string message(const Check& check, const IndexNote& found) {
  Dims place = check.shape;
  std::int64_t position = found.position();
  for (int d = place.size() - 1; d >= 0; --d) {
    place[d] = position % check.shape[d];
    position /= check.shape[d];
  }
  const std::string value = check.words.shows_value
                                ? detail::concat(" is ", static_cast<std::int64_t>(found.value))
                                : std::string();
  return detail::concat(check.operation, ": ", check.words.name, " at ", place, value,
                        check.words.rest);
}

}  // namespace

IndexGuard index_guard(const Queue& queue, const View& index, std::int64_t size, int axis) {
  return index_guard(queue, index,
                     {"index", detail::concat(", but x has size ", size, " in dimension ", axis)});
}

IndexGuard index_guard(const Queue& queue, const View& index, IndexWords words) {
  DeviceNotes& notes = notes_of(queue.device);
  const std::lock_guard lock(notes.mutex);
  if (!notes.note) {
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, sizeof(IndexNote)), "cudaMalloc");
    check_cuda(cudaMemset(memory, 0, sizeof(IndexNote)), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    notes.note = static_cast<IndexNote*>(memory);
  }
  const char* name = thread_context().op;
  return {notes.note,
          number_of(notes.checks, {name ? name : "index", index.shape, std::move(words)})};
}

void throw_index_errors(int device) {
  DeviceNotes& notes = notes_of(device);
  std::string text;
  {
    const std::lock_guard lock(notes.mutex);
    if (notes.checks.empty()) return;
    // All streams: a note of another one must not be wiped out half-written.
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    IndexNote found{};
    check_cuda(cudaMemcpy(&found, notes.note, sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (found.priority != 0) {
      text = message(notes.checks[static_cast<std::size_t>(found.check())], found);
      check_cuda(cudaMemset(notes.note, 0, sizeof found), "cudaMemset");
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    notes.checks.clear();
  }
  if (!text.empty()) throw Error(text);
}

}  // namespace quipu::detail::on_cuda
