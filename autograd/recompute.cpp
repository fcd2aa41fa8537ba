// recompute: forward keeps inputs only; backward runs the function again on a tape of its own and
// walks that one, with gradients going straight where the outer walk wants them.
#include "quipu/autograd/tape.h"
#include "quipu/autograd/walk.h"

namespace quipu {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

namespace {

/// The random state of the first run while it lives, the present one afterwards.
class ReplayRandom {
 public:
  explicit ReplayRandom(PhiloxState state) : present_(default_generator().state()) {
    default_generator().set_state(state);
  }
  ~ReplayRandom() { default_generator().set_state(present_); }
  ReplayRandom(const ReplayRandom&) = delete;
  ReplayRandom& operator=(const ReplayRandom&) = delete;

 private:
  PhiloxState present_;
};

}  // namespace

struct RecomputeRule {
  Function f;
  std::vector<Saved> inputs;
  PhiloxState random;

  bool opaque() const { return true; }

  void backward(const Tensor& d_o, Grads& d) {
    const TapeOwner again_tape;
    const std::shared_ptr<TapeState>& state = again_tape.state;
    Walk inner(*state, false, &d.walk_);
    std::vector<Tensor> again;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      again.push_back(inputs[i].get().detach());
      if (!d.wants(static_cast<int>(i))) continue;
      make_leaf(again.back());
      inner.bind(*meta_of(again.back()), d.walk_.knot(d.knot_).inputs[i]);
    }
    Tensor o;
    {
      const ReplayRandom replay(random);
      const RecordOn on(state);
      o = f(again);
    }
    check(o.shape() == d_o.shape(), "the function gave ", d_o.shape(), " in forward and ",
          o.shape(), " in backward: it must do the same both times");
    const AutogradMeta* meta = meta_of(o);
    if (meta && (meta->leaf || meta->tape == state)) inner.run(o, d_o);
  }
};

Tensor recompute(const Function& f, const std::vector<Tensor>& inputs) {
  if (!recording()) return f(inputs);
  const OpScope op("recompute");
  detail::must_record(inputs);  // throws for inputs of another tape
  const PhiloxState random = default_generator().state();
  Tensor o;
  {
    const NoGrad pause;
    o = f(inputs);
  }
  RecomputeRule rule{f, {}, random};
  for (const Tensor& input : inputs) rule.inputs.push_back(save(input));
  o = o.detach();
  detail::record(std::make_unique<detail::KnotOf<RecomputeRule>>(std::move(rule)), {&o, 1}, inputs);
  return o;
}

}  // namespace quipu
