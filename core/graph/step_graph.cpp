#include "quipu/core/graph/step_graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "quipu/core/context.h"
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/error.h"
#include "quipu/core/graph/step_recorder.h"

namespace quipu {
using namespace detail;
namespace {

GraphFactory cuda_graphs = nullptr;

}  // namespace

constinit thread_local StepRecorder* detail::step_recorder = nullptr;

void detail::note_step_operands(const KernelCall& call) {
  for (const KernelOperand& operand : call.operands) step_recorder->note_operand(*operand.view);
}

void detail::provide_graphs(GraphFactory cuda) {
  cuda_graphs = cuda;
}

void StepRecorder::refuse(const char* what) {
  check(!step_recorder || !step_recorder->is_recording_, what,
        " while a StepGraph records a step, when nothing has been computed yet; do it outside the "
        "step, before or after replay()");
}

bool StepRecorder::record(const std::function<void()>& step) {
  check(!step_recorder, "StepGraph: one is being recorded by this thread already");
  struct Current {
    explicit Current(StepRecorder* recorder) { step_recorder = recorder; }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    ~Current() {
      step_recorder->is_recording_ = false;
      step_recorder = nullptr;
    }
  };
  const Current current(this);
  step();
  if (devices_.empty()) return false;
  device_ = devices_.front();
  check(devices_.size() == 1, "StepGraph: the step runs on ", device_, " and on ", devices_.back(),
        ", but a graph belongs to one device; make one for each");
  ensure(cuda_graphs != nullptr, "there are kernels for ", device_, ", but no graphs");
  // Events that time operators have no time while nothing runs.
  const bool outer_timing = std::exchange(thread_context().device_timing, false);
  const auto restore = [&] {
    thread_context().device_timing = outer_timing;
    restore_generators();
  };
  try {
    graph_ = cuda_graphs(device_.index());
    pool_ = new CachingAllocator(device_, graph_->make_source());
    is_recording_ = true;
    step();
    is_recording_ = false;
    graph_->end();
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return true;
}

void StepRecorder::restore_generators() {
  for (const Draws& draws : draws_) draws.generator->set_state(draws.before);
}

StepRecorder::~StepRecorder() {
  graph_.reset();
  for (Block* block : kept_) allocator_of(device_).let_go(block);
  if (pool_) CachingAllocator::abandon(pool_);
}

void StepRecorder::replay() {
  std::array<std::uint64_t, DeviceGraph::most_numbers> values{};
  for (const Number& number : numbers_) {
    const double now = number.read();
    check(number.used || now == number.recorded, "StepGraph: the learning rate was ",
          number.recorded, " in the recording and is ", now,
          " now, but this optimizer's kernels do not read it; make a new graph");
    values[number.at] = std::bit_cast<std::uint64_t>(now);
  }
  for (const Draws& draws : draws_) {
    const PhiloxState from = draws.generator->reserve(draws.counters);
    values[draws.at] = from.seed;
    values[draws.at + 1] = from.offset;
  }
  graph_->replay({values.data(), reserved_});
}

void StepRecorder::note_operand(const View& view) {
  if (!view.defined || !view.device.is_cuda() || view.device.is_meta()) return;
  if (!is_recording_) {
    if (std::find(devices_.begin(), devices_.end(), view.device) == devices_.end()) {
      devices_.push_back(view.device);
    }
    return;
  }
  check(view.device == device_, "StepGraph: the recorded step runs on ", view.device,
        ", but before it ran on ", device_, " alone");
  for (Number& number : numbers_) {
    if (view.data == graph_->numbers() + number.at) number.used = true;
  }
  if (Block* block = allocator_of(device_).keep(view.data)) kept_.push_back(block);
}

CachingAllocator& StepRecorder::allocator_for(Device device) {
  return is_recording_ && device == device_ ? *pool_ : allocator_of(device);
}

std::size_t StepRecorder::reserve(std::size_t words) {
  check(reserved_ + words <= DeviceGraph::most_numbers,
        "StepGraph: the step has more learning rates and generators than the ",
        DeviceGraph::most_numbers, " numbers that a graph may have");
  return std::exchange(reserved_, reserved_ + words);
}

PhiloxState StepRecorder::draw(Generator& generator, std::uint64_t counters) {
  if (!is_recording_) return generator.advance(counters);
  auto draws = std::find_if(draws_.begin(), draws_.end(),
                            [&](const Draws& d) { return d.generator == &generator; });
  if (draws == draws_.end()) {
    draws_.push_back({&generator, generator.state(), 0, reserve(2)});
    draws = draws_.end() - 1;
  }
  const std::uint64_t offset = std::exchange(draws->counters, draws->counters + counters);
  generator.advance(counters);
  return {0, offset, graph_->numbers() + draws->at};
}

Tensor StepRecorder::number(std::function<double()> read) {
  if (!is_recording_) return {};
  const double now = read();
  const std::size_t at = reserve(1);
  numbers_.push_back({std::move(read), now, at});
  const Ref<Storage> storage(new Storage(graph_->numbers() + at, sizeof(double), device_, nullptr));
  return Tensor(storage, 0, {}, {}, f64);
}

StepGraph::StepGraph(std::function<void()> step) : step_(std::move(step)) {
  check(static_cast<bool>(step_), "StepGraph: the function is empty");
  auto recorder = std::make_unique<StepRecorder>();
  if (recorder->record(step_)) recorder_ = std::move(recorder);
}

StepGraph::~StepGraph() = default;
StepGraph::StepGraph(StepGraph&&) noexcept = default;
StepGraph& StepGraph::operator=(StepGraph&&) noexcept = default;

void StepGraph::replay() {
  check(static_cast<bool>(step_), "StepGraph: it was moved from");
  StepRecorder::refuse("replay()");
  if (!recorder_) return step_();
  recorder_->replay();
}

bool StepGraph::recorded() const {
  return recorder_ != nullptr;
}

MemoryReport StepGraph::memory() const {
  return recorder_ ? recorder_->memory() : MemoryReport();
}

}  // namespace quipu
