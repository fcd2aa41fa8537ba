#include "quipu/autograd/tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "quipu/autograd/walk.h"
#include "quipu/core/dispatch/kernels.h"

namespace quipu {
using namespace detail;
namespace {

thread_local bool thread_ended = false;
/// The tapes that are open on this thread. A tape of static lifetime outlives it, hence the flag.
thread_local struct OpenTapes {
  std::vector<std::shared_ptr<TapeState>> stack;
  ~OpenTapes() { thread_ended = true; }
} open_tapes;

/// Tapes that ended, perhaps on another thread, no longer record.
void drop_ended() {
  while (!open_tapes.stack.empty() && !open_tapes.stack.back()->alive) open_tapes.stack.pop_back();
  thread_context().timing = !open_tapes.stack.empty();
}

thread_local TapeWatch* tape_watch = nullptr;

std::size_t saved_by(const TapeState& tape) {
  std::size_t bytes = 0;
  for (const TapeState::Entry& entry : tape.entries)
    bytes += entry.knot ? entry.knot->saved_bytes : 0;
  return bytes;
}

std::vector<KnotMemory> knots_of(const TapeState& tape) {
  std::vector<KnotMemory> knots;
  for (std::size_t k = 0; k < tape.entries.size(); ++k) {
    const Knot* knot = tape.entries[k].knot.get();
    if (!knot || knot->saved_bytes == 0) continue;
    const OutputInfo& o = knot->outputs[0];
    knots.push_back({k, knot->name, scope_path(knot->scope),
                     to_string(o.dtype) + to_string(o.shape), knot->saved_bytes,
                     knot->workspace_bytes, knot->forward_seconds()});
  }
  std::stable_sort(knots.begin(), knots.end(),
                   [](const KnotMemory& a, const KnotMemory& b) { return a.saved > b.saved; });
  return knots;
}

/// Before a walk, while all knots are there.
void show(const TapeState& tape) {
  if (!tape_watch || saved_by(tape) <= tape_watch->saved) return;
  *tape_watch = {saved_by(tape), knots_of(tape)};
}

/// The upstream gradient to start from; throws when it does not fit the loss.
GradientBuffer first_gradient(const Tensor& loss, const Tensor& upstream) {
  if (!upstream.defined()) {
    check(
        loss.numel() == 1, "the loss has shape ", loss.shape(),
        "; one with more than one element needs an upstream gradient (BackwardOptions::upstream)");
    Tensor one = new_gradient(loss.shape(), loss.dtype(), loss.device());
    fill_kernel(one, 1);
    return GradientBuffer::own(one);
  }
  check(upstream.shape() == loss.shape() && upstream.dtype() == loss.dtype() &&
            upstream.device() == loss.device(),
        "the upstream gradient is ", upstream.dtype(), upstream.shape(), " on ", upstream.device(),
        ", but the loss is ", loss.dtype(), loss.shape(), " on ", loss.device());
  return GradientBuffer::borrow(upstream.detach());
}

void check_walkable(const TapeState& tape, const Tensor& loss) {
  check(tape.spent_by.empty(), "the tape was spent by an error in ", tape.spent_by,
        "; record again on a new one");
  const AutogradMeta* meta = meta_of(loss);
  check(!(meta && meta->is_gradient),
        "the loss is a gradient: second derivatives are not supported");
  check(meta && (meta->leaf || meta->recorded()),
        "no tape recorded this loss: no input of its operators requires a gradient, or no tape was "
        "open");
  check(meta->leaf || meta->tape.get() == &tape, "the loss was recorded by another tape",
        meta->tape && !meta->tape->alive ? ", and that one is gone" : "");
}

}  // namespace

bool detail::tape_is_open() {
  if (thread_ended || open_tapes.stack.empty()) return false;
  if (!open_tapes.stack.back()->alive) drop_ended();
  return !open_tapes.stack.empty();
}

std::shared_ptr<TapeState> detail::current_tape() {
  return tape_is_open() ? open_tapes.stack.back() : nullptr;
}

void detail::push_tape(std::shared_ptr<TapeState> tape) {
  open_tapes.stack.push_back(std::move(tape));
  thread_context().timing = true;
}

void detail::remove_tape(const std::shared_ptr<TapeState>& tape) {
  if (thread_ended) return;
  std::erase(open_tapes.stack, tape);
  drop_ended();
}

TapeWatch* detail::watch_tapes(TapeWatch* watch) {
  return std::exchange(tape_watch, watch);
}

Tape::Tape() : owner_(std::make_unique<TapeOwner>()) {
  push_tape(owner_->state);
}

Tape::~Tape() {
  remove_tape(owner_->state);
}

void Tape::backward(const Tensor& loss, const BackwardOptions& options) {
  const OpScope op("backward");
  check_walkable(*owner_->state, loss);
  show(*owner_->state);
  Walk walk(*owner_->state, options.retain);
  walk.run(loss, first_gradient(loss, options.upstream));
}

std::vector<Tensor> Tape::gradients(const Tensor& loss, const std::vector<Tensor>& with_respect_to,
                                    const BackwardOptions& options) {
  const OpScope op("gradients");
  check_walkable(*owner_->state, loss);
  show(*owner_->state);
  Walk walk(*owner_->state, options.retain);
  walk.request(with_respect_to);
  walk.run(loss, first_gradient(loss, options.upstream));
  std::vector<Tensor> results;
  for (const Tensor& x : with_respect_to) results.push_back(walk.result(x));
  return results;
}

std::size_t Tape::size() const {
  return owner_->state->entries.size();
}

std::size_t Tape::saved_bytes() const {
  return saved_by(*owner_->state);
}

std::vector<KnotMemory> Tape::knots() const {
  return knots_of(*owner_->state);
}

std::string Tape::text() const {
  std::string out = fmt::format("{:>6}  {:<16} {:<22} {:>11} {:>11} {:>10}  {}\n", "knot",
                                "operator", "output", "saved", "workspace", "time", "scope");
  for (std::size_t k = 0; k < owner_->state->entries.size(); ++k) {
    const TapeState::Entry& entry = owner_->state->entries[k];
    if (!entry.knot) {
      out += fmt::format("{:>6}  {:<16} undone\n", k, entry.name);
      continue;
    }
    const Knot& knot = *entry.knot;
    const OutputInfo& o = knot.outputs[0];
    out += fmt::format("{:>6}  {:<16} {:<22} {:>11} {:>11} {:>7.1f} us  {}\n", k, knot.name,
                       to_string(o.dtype) + to_string(o.shape), human_bytes(knot.saved_bytes),
                       human_bytes(knot.workspace_bytes), knot.forward_seconds() * 1e6,
                       scope_path(knot.scope));
  }
  return out + fmt::format("{} knots, {} saved for backward\n", size(), human_bytes(saved_bytes()));
}

std::ostream& operator<<(std::ostream& out, const Tape& tape) {
  return out << tape.text();
}

}  // namespace quipu
