#pragma once
// What an operator ties onto the tape: its inputs, what it saved, and how to undo itself.
//
// A backward rule is a plain struct with what it needs and one function:
//
//   struct ExpRule {
//     Saved o;
//     void backward(const Tensor& d_o, Grads& d) const { d.with(0, [&](const Grad& g) { ... }); }
//   };
//   return tie(o, {x}, ExpRule{save(o)});
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/tensor.h"

namespace quipu {

namespace detail {
class Walk;
class GradientBuffer;
struct RecomputeRule;
}  // namespace detail

/// True while operators on this thread are recorded, so that what backward needs must be kept.
bool recording();

/// Pauses recording on this thread, and allows in-place changes of recorded tensors.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool outer_;
};

/// A tensor kept for backward: its storage and shape without its history, and the version it had.
/// Keeps nothing when no tape records.
class Saved {
 public:
  Saved() = default;
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;
  Saved(Saved&& other) noexcept;
  /// Swaps; what was kept before goes with `other`.
  Saved& operator=(Saved&& other) noexcept;
  ~Saved();

  /// False when nothing was kept, or the tensor saved was undefined.
  bool defined() const { return tensor_.defined(); }
  /// Throws when it was changed in place since, naming who saved and who changed it.
  const Tensor& get() const;
  // As get(), so that a rule can hand it to operators and kernels.
  operator const Tensor&() const { return get(); }
  operator detail::View() const { return get().view(); }

 private:
  friend Saved save(const Tensor& x);
  Tensor tensor_;
  std::uint32_t version_ = 0;
  const char* op_ = nullptr;
};
/// Keeps x for a backward rule while an operator is recorded, and counts its bytes as saved.
Saved save(const Tensor& x);

/// The gradients that a backward rule is asked for, one per input of the operator.
class Grads {
 public:
  Grads(detail::Walk& walk, std::size_t knot, std::span<const detail::GradientBuffer> d_outputs)
      : walk_(walk), knot_(knot), d_outputs_(d_outputs) {}

  /// Whether the gradient of input number `input` (from 0, as tied) is needed at all.
  bool wants(int input) const;
  /// Where to leave the gradient of an input; not wanted: an undefined Grad. Everything handed out
  /// in one rule may be written by one kernel at once: where two inputs share memory, the second
  /// gets a buffer that is added afterwards.
  detail::Grad operator[](int input);
  /// Calls f(grad) if the gradient is wanted; f is done with it when it returns, so that no extra
  /// buffer is needed (unless operator[] has handed out the same memory before).
  template <class F>
  void with(int input, F&& f) {
    if (wants(input)) f(hand_out(input, false));
  }
  /// Adds a finished tensor, summed over the dimensions that were broadcast.
  void add(int input, const Tensor& gradient);
  /// As add, but may hand on `gradient` itself instead of a copy; for operators that only pass it
  /// through. It is copied before anything is added to it while somebody else holds it.
  void pass(int input, const Tensor& gradient);
  /// As pass, for a tensor that the rule just made and that nobody else has a handle on.
  void give(int input, Tensor gradient);
  /// The rule may keep the gradients of the outputs, so nothing is added to them from here on.
  void lend() const;

  /// After the rule: adds what went through buffers.
  void finish();

 private:
  detail::Grad hand_out(int input, bool stays_out);
  detail::Walk& walk_;
  std::size_t knot_;
  std::span<const detail::GradientBuffer> d_outputs_;
  std::vector<Tensor> out_;  // handed out by operator[] and perhaps not yet written
  std::vector<std::pair<int, Tensor>> later_;  // buffers to add
  std::vector<std::pair<int, Tensor>> seen_;   // for anomaly mode
  friend struct detail::RecomputeRule;
};

namespace detail {

/// Where an input of a knot came from: a leaf, or output `output` of knot `knot`, or nowhere that
/// wants a gradient.
struct Edge {
  enum class Kind : std::uint8_t { none, leaf, knot };
  Kind kind = Kind::none;
  std::uint32_t output = 0;
  std::size_t knot = 0;
  Ref<TensorExtra> leaf;
};

/// What the tape needs to make a gradient buffer for an output.
struct OutputInfo {
  Shape shape;
  DType dtype;
  Device device;
  Ref<TensorExtra> extra;  // its hooks
};

class DeviceSpan;

struct Knot {
  const char* name = "";
  ScopeId scope = 0;
  std::vector<Edge> inputs;
  std::vector<OutputInfo> outputs;
  std::size_t saved_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::int64_t forward_ns = 0;                            // of the host
  std::shared_ptr<const DeviceSpan> on_device = nullptr;  // under DeviceTimes

  /// How long forward took: on the device where that is known, else on the host.
  double forward_seconds() const;

  virtual ~Knot() = default;
  /// Gradients of the outputs in, gradients of the inputs out. Outputs that nobody used have no
  /// gradient.
  virtual void backward(std::span<const Tensor> d_outputs, Grads& d) = 0;
  /// May lead to leaves that are not among its inputs.
  virtual bool opaque() const { return false; }
  virtual bool is_view() const { return false; }
  /// For a view: the part of the parent's gradient that is this one's. Undefined where strides do
  /// not allow it.
  virtual Tensor project(const Tensor& parent_gradient) const { return {}; }
  /// A view whose parts cover its parent exactly once.
  virtual bool covers_parent() const { return false; }
};

template <class Rule>
struct KnotOf final : Knot {
  explicit KnotOf(Rule r) : rule(std::move(r)) {}
  void backward(std::span<const Tensor> d_outputs, Grads& d) override {
    if constexpr (requires { rule.backward(d_outputs, d); }) {
      rule.backward(d_outputs, d);
    } else {
      rule.backward(d_outputs[0], d);
    }
  }
  bool opaque() const override {
    return requires {
      rule.opaque();
    };
  }
  bool is_view() const override {
    return requires(const Tensor& g) {
      rule.project(g);
    };
  }
  Tensor project(const Tensor& g) const override {
    if constexpr (requires { rule.project(g); }) return rule.project(g);
    return {};
  }
  bool covers_parent() const override {
    if constexpr (requires { rule.covers_parent(); }) return rule.covers_parent();
    return false;
  }
  Rule rule;
};

/// As recording(), and in the first run of a recomputed function, too, which keeps nothing.
bool taping();
/// Whether any input wants a gradient under the tape that records; throws for one whose tape is
/// gone.
bool must_record(std::span<const Tensor> inputs);
void record(std::unique_ptr<Knot> knot, std::span<const Tensor> outputs,
            std::span<const Tensor> inputs);
/// Anomaly mode: throws when an output has a NaN or an infinity.
void inspect_outputs(std::span<const Tensor> outputs);
bool anomaly_mode();

/// Ends an operator: ties its knot if a tape records and an input wants a gradient. Returns the
/// output.
template <class Rule>
Tensor tie(Tensor o, std::initializer_list<Tensor> inputs, Rule rule) {
  const std::span<const Tensor> in(inputs.begin(), inputs.size());
  if (anomaly_mode()) inspect_outputs({&o, 1});
  if (taping() && must_record(in)) {
    record(std::make_unique<KnotOf<Rule>>(std::move(rule)), {&o, 1}, in);
  }
  return o;
}

/// As tie, for operators with several outputs or a list of inputs.
template <class Rule>
void tie_all(std::span<const Tensor> outputs, std::span<const Tensor> inputs, Rule rule) {
  if (anomaly_mode()) inspect_outputs(outputs);
  if (taping() && must_record(inputs)) {
    record(std::make_unique<KnotOf<Rule>>(std::move(rule)), outputs, inputs);
  }
}

/// Ends an operator that has no gradient.
inline Tensor no_gradient(Tensor o) {
  if (anomaly_mode()) inspect_outputs({&o, 1});
  return o;
}

/// Before an in-place change: throws where recorded history would be wrong, then raises the
/// version.
void change_in_place(const Tensor& x);

}  // namespace detail
}  // namespace quipu
