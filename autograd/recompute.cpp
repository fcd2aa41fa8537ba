// recompute: forward keeps inputs only; backward runs the function again on a tape of its own and
// walks that one, with gradients going straight where the outer walk wants them. The first run is
// on a tape that keeps nothing, so that both runs see the same rules. Tensors that the function
// captures become inputs of the knot when they were recorded outside; of all that it reads the
// version is noted, so that a change before backward is an error and not another function.
#include "quipu/autograd/recompute.h"

#include <algorithm>
#include <utility>

#include "quipu/autograd/tape.h"
#include "quipu/autograd/walk.h"

namespace quipu::detail {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

namespace {

thread_local RecomputeRun* innermost = nullptr;

/// The default generator keeps its state, even if the function seeds it.
class KeepRandomState {
 public:
  KeepRandomState() : state_(default_generator().state()) {}
  ~KeepRandomState() { default_generator().set_state(state_); }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  PhiloxState state_;
};

}  // namespace

bool FirstRun::has_captured(const AutogradMeta* meta) const {
  return std::any_of(captured.begin(), captured.end(),
                     [&](const Ref<AutogradMeta>& other) { return other.get() == meta; });
}

RecomputeRun::RecomputeRun(FirstRun& log, const TapeState& tape, const TapeState& outside)
    : RecomputeRun(std::as_const(log), tape, outside) {
  noting_ = &log;
}

RecomputeRun::RecomputeRun(const FirstRun& log, const TapeState& tape, const TapeState& outside)
    : log_(log),
      tape_(tape),
      outside_(outside),
      start_(Storage::next_serial()),
      outer_(std::exchange(innermost, this)) {}

RecomputeRun::~RecomputeRun() {
  innermost = outer_;
}

bool RecomputeRun::captures(const Tensor& x) {
  AutogradMeta* meta = meta_of(x);
  if (log_.has_captured(meta)) return true;
  if (!noting_ || meta->tape.get() != &outside_) return false;
  noting_->captured.emplace_back(meta);
  return true;
}

void RecomputeRun::read(const Tensor& x) {
  if (!running_) return;
  const Storage& storage = x.storage();
  if (noting_) {
    noting_->read.emplace(storage.serial(), storage.version());
    return;
  }
  if (storage.serial() >= start_) return;
  const auto before = log_.read.find(storage.serial());
  check(before != log_.read.end(), "the recomputed function reads a tensor ", x.dtype(), x.shape(),
        " that it did not read in forward; capture what it needs by value, or pass it as an input");
  check(before->second == storage.version(), "a tensor ", x.dtype(), x.shape(),
        " that the recomputed function reads was changed in place by ", storage.changed_by(),
        " since forward; change it after backward, or let the function read a clone()");
}

void note_read(const Tensor& x) {
  for (RecomputeRun* run = innermost; run; run = run->outer()) run->read(x);
}

bool is_captured(const Tensor& x) {
  const TapeState* tape = current_tape().get();
  for (RecomputeRun* run = innermost; run; run = run->outer()) {
    if (&run->tape() != tape) continue;
    if (run->captures(x)) return true;
    tape = &run->outside();  // a leaf of the run outside is one for those inside it
  }
  return false;
}

/// A function may return what the tape that records now has, or what it, or one around it,
/// captures.
void check_returned(const Tensor& o) {
  check(o.defined(), "the function returned an undefined tensor");
  const AutogradMeta* meta = meta_of(o);
  if (!meta || !meta->recorded() || meta->tape == current_tape()) return;
  check(is_captured(o), "the function returned a tensor ", o.shape(),
        " that another tape recorded; detach() it to use it as a constant");
}

struct RecomputeRule {
  Function f;
  std::vector<Saved> inputs;
  FirstRun first;

  bool opaque() const { return true; }

  void backward(const Tensor& d_o, Grads& d) {
    const TapeOwner again_tape;
    const std::shared_ptr<TapeState>& state = again_tape.state;
    Walk inner(*state, false, &d.walk_);
    const std::vector<Edge>& edges = d.walk_.knot(d.knot_).inputs;
    std::vector<Tensor> again;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      again.push_back(inputs[i].get().detach());
      if (!d.wants(static_cast<int>(i))) continue;
      make_leaf(again.back());
      inner.bind(*meta_of(again.back()), edges[i]);
    }
    for (std::size_t i = 0; i < first.captured.size(); ++i) {
      const std::size_t input = inputs.size() + i;
      if (d.wants(static_cast<int>(input))) inner.bind(*first.captured[i], edges[input]);
    }
    RecomputeRun run(std::as_const(first), *state, d.walk_.tape());
    Tensor o;
    bool is_outside = false;  // recorded around this run, or around one that this one is within
    {
      const KeepRandomState keep;
      const DrawScope draws(first.draws, DrawScope::Mode::repeat);
      const RecordOn on(state);
      o = f(again);
      is_outside = meta_of(o) && meta_of(o)->recorded() && is_captured(o);
    }
    run.function_returned();
    check(o.defined() && o.shape() == d_o.shape(), "the function gave ", d_o.shape(),
          " in forward and ", o.defined() ? o.shape() : Shape{},
          " in backward: it must do the same both times");
    const AutogradMeta* meta = meta_of(o);
    if (meta && (meta->leaf || meta->tape == state || is_outside))
      inner.run(o, d.d_outputs_[0].share());
  }
};

}  // namespace quipu::detail

namespace quipu {
using namespace detail;

Tensor recompute(const Function& f, const std::vector<Tensor>& inputs) {
  if (!taping()) return f(inputs);
  const OpScope op("recompute");
  must_record(inputs);  // throws for inputs of another tape
  if (!recording()) {   // within a first run, which keeps nothing but notes what is captured
    Tensor o = f(inputs);
    check_returned(o);
    return o;
  }
  RecomputeRule rule{f, {}, {}};
  std::vector<Tensor> all;
  for (const Tensor& input : inputs) {
    all.push_back(input.detach());
    if (input.requires_grad()) make_leaf(all.back());
  }
  Tensor o;
  {
    const TapeOwner tape;
    tape.state->keeps_nothing = true;
    RecomputeRun run(rule.first, *tape.state, *current_tape());
    const DrawScope draws(rule.first.draws, DrawScope::Mode::note);
    const RecordOn on(tape.state);
    o = f(all);
    check_returned(o);
  }
  for (const Tensor& input : inputs) rule.inputs.push_back(save(input));
  std::vector<Edge> captured;
  for (const Ref<AutogradMeta>& meta : rule.first.captured) {
    captured.push_back({Edge::Kind::knot, meta->output, meta->knot, {}});
  }
  o = o.detach();
  record(std::make_unique<KnotOf<RecomputeRule>>(std::move(rule)), {&o, 1}, inputs);
  std::vector<Edge>& edges = current_tape()->entries.back().knot->inputs;
  edges.insert(edges.end(), captured.begin(), captured.end());
  return o;
}

}  // namespace quipu
