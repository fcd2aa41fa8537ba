// Recording: what `tie` does when a tape is there.
#include "quipu/autograd/knot.h"

#include <mutex>
#include <unordered_map>

#include "quipu/autograd/custom.h"
#include "quipu/autograd/recompute.h"
#include "quipu/autograd/tape.h"
#include "quipu/autograd/tensor_state.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/report/device_timing.h"

namespace quipu {
using namespace detail;
namespace {

thread_local bool paused = false;
thread_local bool anomaly = false;
thread_local bool saving_while_paused = false;

}  // namespace

NoGrad::NoGrad() : outer_(std::exchange(paused, true)) {}
NoGrad::~NoGrad() {
  paused = outer_;
}

RecordOn::RecordOn(std::shared_ptr<TapeState> tape)
    : tape_(std::move(tape)), outer_pause_(std::exchange(paused, false)) {
  push_tape(tape_);
}
RecordOn::~RecordOn() {
  remove_tape(tape_);
  paused = outer_pause_;
}

bool recording() {
  return taping() && !current_tape()->keeps_nothing;
}

AnomalyMode::AnomalyMode() : outer_(std::exchange(anomaly, true)) {}
AnomalyMode::~AnomalyMode() {
  anomaly = outer_;
}

Saved save(const Tensor& x) {
  Saved saved;
  if (!(recording() || saving_while_paused) || !x.defined()) return saved;
  saved.tensor_ = x.detach();
  saved.version_ = x.storage().version();
  saved.op_ = thread_context().op;
  x.storage().hold_for_backward();
  thread_context().saved_bytes += x.nbytes();
  return saved;
}

Saved::Saved(Saved&& other) noexcept
    : tensor_(std::exchange(other.tensor_, Tensor())), version_(other.version_), op_(other.op_) {}

Saved& Saved::operator=(Saved&& other) noexcept {
  std::swap(tensor_, other.tensor_);
  std::swap(version_, other.version_);
  std::swap(op_, other.op_);
  return *this;
}

Saved::~Saved() {
  if (tensor_.defined()) tensor_.storage().let_go();
}

const Tensor& Saved::get() const {
  ensure(tensor_.defined(), "a backward rule reads a tensor that it did not save");
  const Storage& storage = tensor_.storage();
  check(storage.version() == version_, "the tensor ", tensor_.shape(), " that ",
        op_ ? op_ : "an operator", " saved for backward was changed in place by ",
        storage.changed_by(), " since; clone() it before the change");
  return tensor_;
}

void detail::change_in_place(const Tensor& x) {
  check(!x.storage().frozen(),
        "a gradient that a walk still needs is changed in place; clone() it first, and pass on or "
        "return the changed copy");
  const AutogradMeta* meta = meta_of(x);
  if (meta && !paused) {
    check(!(meta->leaf && taping()),
          "a parameter is changed in place while a tape records; open a NoGrad scope");
    check(!(meta->recorded() && meta->tape->alive),
          "a tensor that a tape has recorded is changed in place; open a NoGrad scope, or change a "
          "clone()");
  }
  const char* op = thread_context().op;
  x.storage().changed(op ? op : "a change in place");
}

const char* detail::backward_name(const char* op) {
  static std::mutex mutex;
  static auto* names = new std::unordered_map<std::string, std::unique_ptr<std::string>>;
  const std::lock_guard lock(mutex);
  auto& name = (*names)[op];
  if (!name) name = std::make_unique<std::string>(std::string(op) + " backward");
  return name->c_str();
}

namespace detail {

double Knot::forward_seconds() const {
  return static_cast<double>(on_device ? on_device->duration_ns() : forward_ns) * 1e-9;
}

CustomForward::CustomForward() : outer_(std::exchange(saving_while_paused, recording())) {}
CustomForward::~CustomForward() {
  saving_while_paused = outer_;
}

bool anomaly_mode() {
  return anomaly;
}

bool taping() {
  return !paused && tape_is_open();
}

bool must_record(std::span<const Tensor> inputs) {
  bool wanted = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    note_read(inputs[i]);
    const AutogradMeta* meta = meta_of(inputs[i]);
    if (!meta) continue;
    check(!meta->is_gradient, "input ", i, " ", meta->shape,
          " is a gradient that Tape::gradients returned: second derivatives are not supported; "
          "detach() it to use it as a constant");
    if (meta->recorded()) {
      check(meta->tape->alive, "input ", i, " ", meta->shape,
            " was recorded by a tape that is gone; detach() it to use it as a constant");
      check(meta->tape == current_tape() || is_captured(inputs[i]), "input ", i, " ", meta->shape,
            " was recorded by another tape; detach() it to use it as a constant");
      wanted = true;
    }
    wanted = wanted || meta->leaf;
  }
  return wanted;
}

namespace {

Edge edge_to(const Tensor& input, const TapeState& tape) {
  Edge edge;
  AutogradMeta* meta = meta_of(input);
  if (!meta) return edge;
  if (meta->recorded() && meta->tape.get() == &tape) {
    edge.kind = Edge::Kind::knot;
    edge.knot = meta->knot;
    edge.output = meta->output;
  } else if (meta->leaf || meta->recorded()) {  // captured ones are leaves where f is run again
    edge.kind = Edge::Kind::leaf;
    edge.leaf = Ref<TensorExtra>(meta);
  }
  return edge;
}

}  // namespace

void record(std::unique_ptr<Knot> knot, std::span<const Tensor> outputs,
            std::span<const Tensor> inputs) {
  const std::shared_ptr<TapeState> tape = current_tape();
  check(tape->spent_by.empty(), "the tape was spent by an error in ", tape->spent_by,
        "; open a new one");
  std::uint32_t number = 0;
  for (const Tensor& output : outputs) {
    ensure(meta_of(output) == nullptr, "an operator returns a tensor that already has a history");
    Ref<AutogradMeta> meta(new AutogradMeta(output));
    meta->tape = tape;
    meta->knot = tape->entries.size();
    meta->output = number++;
    knot->outputs.push_back(
        {output.shape(), output.dtype(), output.device(), Ref<TensorExtra>(meta.get())});
    output.set_extra(Ref<TensorExtra>(meta.get()));
  }
  if (tape->keeps_nothing) return;
  const ThreadContext& context = thread_context();
  knot->name = context.op ? context.op : "operator";
  knot->scope = context.scope;
  knot->saved_bytes = context.saved_bytes;
  knot->workspace_bytes = context.workspace_bytes;
  if (context.timing && context.op) knot->forward_ns = now_ns() - context.op_start_ns;
  if (context.device_timing) knot->on_device = device_span();
  for (const Tensor& input : inputs) knot->inputs.push_back(edge_to(input, *tape));
  const char* name = knot->name;
  tape->entries.push_back({std::move(knot), name, tape->slots});
  tape->slots += outputs.size();
}

void inspect_outputs(std::span<const Tensor> outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::int64_t bad = first_nonfinite(outputs[i]);
    if (bad < 0) continue;
    const std::string scope = scope_path(thread_context().scope);
    fail("output ", i, " ", outputs[i].dtype(), outputs[i].shape(),
         " has a NaN or an infinity, first at element ", bad, " (scope ",
         scope.empty() ? "-" : scope, "); found by anomaly mode");
  }
}

}  // namespace detail
}  // namespace quipu
