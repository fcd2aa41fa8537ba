// One memory access of a kernel: what the address is, whether it may be touched, who else touched
// it, and what it costs.
#include "../multiprocessor.h"
#include "memory.h"
#include "report.h"

namespace quipu::emulator {
namespace {

const char* verb(Access access) {
  switch (access) {
    case Access::read: return "load";
    case Access::write: return "store";
    case Access::atomic: return "atomic";
    default: return "asynchronous copy";
  }
}

std::string index_text(uint3 i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

}  // namespace

void Multiprocessor::fault(const char* kind, std::uintptr_t code, const std::string& text) {
  report(kind, code, text);
  abandon();
}

void Multiprocessor::access(std::uintptr_t address, std::size_t bytes, Access access,
                            std::uintptr_t code) {
  if (address - reinterpret_cast<std::uintptr_t>(stacks_) < most_threads * stack_bytes) return;
  Place place;
  if (!find(address, bytes, access, code, place)) return;
  watch(place, address, bytes, access, code);
  ++counting.launch.accesses;
  if (counting_) count(place, address, bytes, access, code);
  notice_spinning(address, code);
  if (preempt_ != 0 && random() % preempt_ == 0) {
    step_back(static_cast<int>(random() % 32), static_cast<int>(random() % 32));
  }
}

/// A thread that looks at one word again and again waits for another one: it lets others run, and
/// is given up if that does not help.
void Multiprocessor::notice_spinning(std::uintptr_t address, std::uintptr_t code) {
  constexpr unsigned patience = 200, end_of_patience = 200 * patience;
  Lane& mine = lane();
  if (address != mine.last_address || code != mine.last_code) [[likely]] {
    mine.last_address = address;
    mine.last_code = code;
    mine.repeats = 0;
    return;
  }
  if (++mine.repeats % patience != 0) return;
  if (mine.repeats == end_of_patience) {
    fault("deadlock", code,
          "waits for a word that nobody changes; blocks run one after another, so no other block "
          "can");
  }
  step_back((warp_ + 1) % 32, (lane_ + 1) % 32);  // everybody gets a turn
}

/// Where the shadow of an address is; false for what is nobody's business. Comes back only if the
/// access is inside something.
bool Multiprocessor::find(std::uintptr_t address, std::size_t bytes, Access access,
                          std::uintptr_t code, Place& place) {
  DeviceMemory& memory = device_memory();
  if (memory.contains(address)) {
    const std::size_t offset = memory.offset_of(address);
    if (!memory.inside(offset, bytes)) [[unlikely]] {
      const DeviceMemory::Block& block = memory.block_at(offset);
      const bool freed = !block.live && offset - block.offset < block.bytes;
      fault(freed ? "use after free" : "out of bounds", code,
            memory.describe(offset, bytes, verb(access)));
    }
    if (!memory.on_device(offset, launch_->device)) [[unlikely]] {
      fault("other device", code,
            memory.describe(offset, bytes, verb(access)) + " on device " +
                std::to_string(memory.device_of(offset)) + "; the kernel runs on device " +
                std::to_string(launch_->device));
    }
    place = {&memory.shadow(), offset, false};
    return true;
  }
  const std::uintptr_t in_dynamic = address - reinterpret_cast<std::uintptr_t>(dynamic_);
  if (in_dynamic < dynamic_limit + page) {
    if (in_dynamic + bytes > dynamic_bytes_) {
      fault("out of bounds", code,
            std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at offset " +
                std::to_string(in_dynamic) + " of " + std::to_string(dynamic_bytes_) +
                " bytes of dynamic shared memory");
    }
    place = {&dynamic_shadow_, in_dynamic, true};
    return true;
  }
  if (static_.contains(address)) return find_shared_array(address, bytes, code, place);
  if (arguments_.contains(address)) return false;
  if (access == Access::read && is_program_constant(address)) return false;
  fault("host memory", code,
        std::string(verb(access)) + " of " + std::to_string(bytes) +
            " bytes of host memory: the pointer does not come from cudaMalloc");
}

bool Multiprocessor::find_shared_array(std::uintptr_t address, std::size_t bytes,
                                       std::uintptr_t code, Place& place) {
  const std::size_t offset = address - static_.begin;
  if (arrays_->exempt(offset)) return false;
  const SharedArray* array = arrays_->at(offset);
  if (array == nullptr) fault("out of bounds", code, "outside every shared array");
  if (offset + bytes > array->offset + array->bytes) {
    fault("out of bounds", code,
          std::to_string(bytes) + " bytes at offset " + std::to_string(offset - array->offset) +
              " of shared array '" + array->name + "' of " + std::to_string(array->bytes) +
              " bytes");
  }
  place = {static_shadow_.get(), offset, true};
  return true;
}

void Multiprocessor::watch(const Place& place, std::uintptr_t address, std::size_t bytes,
                           Access access, std::uintptr_t code) {
  const bool vector = bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
  if (vector && address % bytes != 0) [[unlikely]] {
    fault("misaligned access", code,
          std::string(verb(access)) + " of " + std::to_string(bytes) +
              " bytes at an address that is no multiple of " + std::to_string(bytes) + ", " +
              name_place(place));
  }
  if (!checking_) return;
  asker_.at = static_cast<std::uint32_t>(code - code_base_);
  const Finding finding = place.shadow->touch(place.offset, bytes, access, asker_);
  if (finding.kind != Finding::none) [[unlikely]] {
    report_finding(finding, place, bytes, code);
  }
}

void Multiprocessor::count(const Place& place, std::uintptr_t address, std::size_t bytes,
                           Access access, std::uintptr_t code) {
  constexpr std::size_t widest = 16;
  if (access == Access::copy) access = Access::write;
  if (warp().requests.crowded(lane_)) counting.close(warp().requests);
  for (std::size_t done = 0; done < bytes; done += widest) {
    warp().requests.add(lane_, code, address + done, std::min(widest, bytes - done), access,
                        place.shared);
  }
}

std::string Multiprocessor::name_place(const Place& place) const {
  if (!place.shared) {
    const DeviceMemory::Block& block = device_memory().block_at(place.offset);
    return "offset " + std::to_string(place.offset - block.offset) + " of a device allocation of " +
           std::to_string(block.bytes) + " bytes";
  }
  if (place.shadow == &dynamic_shadow_) {
    return "dynamic shared memory at offset " + std::to_string(place.offset);
  }
  const SharedArray& array = *arrays_->at(place.offset);
  return "shared array '" + array.name + "' at offset " +
         std::to_string(place.offset - array.offset);
}

std::string Multiprocessor::name_other(Stamp stamp) const {
  const std::uint64_t epoch = epoch_of(stamp);
  if (epoch < asker_.launch_start) {
    return "work on stream " + std::to_string(stream_order().stream_at(epoch));
  }
  if (warp_of(stamp) == several_blocks) return "several blocks";
  const bool other_block = epoch < asker_.block_start;
  std::string text = other_block ? "block " + index_text(order_.block_at(epoch)) + " " : "";
  if (warp_of(stamp) == several_warps) return text + "several threads";
  if (lane_of(stamp) == several_lanes) {
    return text + "several lanes of warp " + std::to_string(warp_of(stamp));
  }
  const Lane& lane = warps_[warp_of(stamp)].lanes[lane_of(stamp)];
  return text + "thread " + index_text(lane.index);
}

void Multiprocessor::report_finding(const Finding& finding, const Place& place, std::size_t bytes,
                                    std::uintptr_t code) {
  const bool uninitialised = finding.kind == Finding::uninitialised;
  const bool copying = finding.kind == Finding::unfinished_copy;
  const bool other_stream = !uninitialised && epoch_of(finding.other) < asker_.launch_start;
  const char* kind = uninitialised  ? "uninitialised read"
                     : copying      ? "unfinished copy"
                     : other_stream ? "stream order"
                                    : "race";
  if (!first_at(kind, code)) return;
  const std::string what = std::to_string(bytes) + " bytes, " + name_place(place);
  if (uninitialised) {
    return report(kind, code,
                  "reads " + what + ", which " +
                      (place.shared ? "nobody has written in this block" : "nobody has written"));
  }
  const bool reads = finding.kind == Finding::read_after_write;
  const bool was_read = finding.kind == Finding::write_after_read;
  std::string other = name_other(finding.other);
  if (finding.other_at != 0) {
    const SourceLine line = source_line(long_code(finding.other_at));
    if (line.line != 0) {
      const SourceLine here = source_line(code);
      other +=
          " at " + (here.file == line.file ? "line " + std::to_string(line.line) : line.text());
    }
  }
  if (copying) {
    return report(
        kind, code,
        "touches " + what + ", where the asynchronous copy of " + other + " is still in flight");
  }
  const bool same_block =
      epoch_of(finding.other) >= asker_.block_start && warp_of(finding.other) != several_blocks;
  report(kind, code,
         std::string(reads ? "reads " : "writes ") + what + ", which is " +
             (was_read ? "read" : "written") + " by " + other + "; " +
             (other_stream ? "no event orders the two"
              : same_block ? "no barrier between"
                           : "nothing orders the blocks"));
}

void Multiprocessor::atomic(std::uintptr_t address, std::size_t bytes, std::uintptr_t code) {
  access(address, bytes, Access::atomic, code);
  if (!checking_ || !device_memory().contains(address)) return;
  const void* word = reinterpret_cast<const void*>(address);
  order_.learn(word, asker_.now);
  order_.publish(word, lane().fenced);
}

void Multiprocessor::fence() {
  lane().fenced = asker_.now;
}

}  // namespace quipu::emulator
