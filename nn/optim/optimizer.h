#pragma once
// What all optimizers have in common: parameters in groups, what is remembered of each, clipping,
// loss scaling, state that goes into a checkpoint.
//
//   nn::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   for (std::int64_t step = 0; step < steps; ++step) {
//     optimizer.set_lr(schedule(step));
//     optimizer.zero_grad();
//     Tape tape;
//     tape.backward(loss_of(model, batch));   // several times: gradients just add up
//     optimizer.step({.max_norm = 1.0});
//   }
//
// Gradient accumulation needs no more than several backward walks between zero_grad() and step();
// divide each loss by their number. For bf16 and f16 parameters, set_grad_dtype(f32) sums them in
// f32. No value is read on the host, so that a whole step runs on meta.
#include <functional>
#include <string>
#include <vector>

#include "quipu/core/io/safetensors.h"
#include "quipu/nn/optim/clip.h"
#include "quipu/ops/optimizer_updates.h"

namespace quipu::nn {

/// Parameters that share options.
template <class Options>
struct ParameterGroup {
  NamedTensors parameters;  // names must differ, between groups, too
  Options options = {};     // AdamWOptions, for example
};
/// What the constructors of optimizers take in the place of one list, such as
/// ParameterGroups<AdamWOptions>{{matrices, {}}, {vectors, {.weight_decay = 0}}}.
template <class Options>
using ParameterGroups = std::vector<ParameterGroup<Options>>;

/// Those parameters for which keep(name, tensor) holds, in their order: for groups.
NamedTensors selected(const NamedTensors& parameters,
                      const std::function<bool(const std::string&, const Tensor&)>& keep);

/// What becomes of the memory of gradients that are no longer needed.
enum class ZeroGrad {
  drop,  // memory is free until the next backward, which then writes instead of adding
  keep,  // buffers stay where they are and are filled with zeros
};

/// The base of all optimizers. One of one's own derives from it and overrides update().
class Optimizer {
 public:
  // What update() works with: a parameter with its gradient and state, and what is done to
  // gradients.
  using ParameterUpdate = quipu::detail::ParameterUpdate;
  using GradientControl = quipu::detail::GradientControl;

  virtual ~Optimizer() = default;
  Optimizer(Optimizer&&) = default;  // copies would share what they remember
  Optimizer& operator=(Optimizer&&) = default;

  /// Updates every parameter that has a gradient. Throws, before anything changes, if one of them
  /// is partial (an error ended backward). Returns the norm of all gradients before clipping, on
  /// the device, where an option needs it; else an undefined tensor.
  Tensor step(const StepOptions& options = {});
  /// The same with gradients that were looked at before, by control_gradients: for several
  /// optimizers that are clipped together.
  void apply(const GradientControl& control);
  /// Forgets the gradients of all parameters: else the next backward adds to them.
  void zero_grad(ZeroGrad how = ZeroGrad::drop);

  // The learning rate of the first group; the others keep the ratio to it that they began with.
  void set_lr(double lr);
  double lr() const { return lr_; }

  /// All groups, a tensor that is given twice (shared weights) once.
  const NamedTensors& parameters() const { return parameters_; }

  /// What a checkpoint must hold: `lr`, and everything remembered behind the name of its parameter,
  /// such as `weight.momentum`. The tensors themselves, not copies.
  NamedTensors state() const;
  /// Takes over the values. Throws, before anything changes, with lists of what is missing, left
  /// over or of another shape.
  void load_state(const NamedTensors& state);

 protected:
  /// What is kept of each parameter of a group.
  struct Memory {
    std::vector<std::string> names = {};  // of ParameterUpdate::first and second
    bool counts = false;                  // uses ParameterUpdate::step
  };
  /// A ParameterGroup without the options that only the optimizer understands.
  struct Group {
    NamedTensors parameters;  // as given
    double lr;                // at the beginning; set_lr keeps the ratios
    Memory memory;            // the same for all of them
  };
  /// memory_for(options) says what a group needs.
  template <class Options, class F>
  static std::vector<Group> layout(const ParameterGroups<Options>& groups, F memory_for) {
    std::vector<Group> result;
    for (const auto& group : groups) {
      result.push_back({group.parameters, group.options.lr, memory_for(group.options)});
    }
    return result;
  }
  /// `kind` stands before error messages. bf16 and f16 parameters get an f32 master copy if asked.
  Optimizer(const char* kind, std::vector<Group> groups, bool master_weights);

  /// Updates parameters of one group. Their gradients are there; nothing is recorded.
  virtual void update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
                      const GradientControl& control) = 0;
  /// As given to the constructor.
  const char* kind() const { return kind_; }

 private:
  struct Slot {
    std::string name;
    std::size_t group;
    ParameterUpdate tensors;  // without the gradient; memory from the first need on
    bool ready = false;
    std::uint32_t version = 0;  // of the parameter when the master copy was last in step with it
  };
  void add_parameter(const std::string& name, const Tensor& parameter, std::size_t group);
  void prepare(Slot& slot, std::size_t index);
  void refresh_master(Slot& slot);
  NamedTensors remembered(const Slot& slot) const;

  const char* kind_;
  std::vector<Group> groups_;
  std::vector<double> ratios_;
  bool master_weights_;
  double lr_;
  NamedTensors parameters_;
  std::vector<Slot> slots_;  // beside parameters_
  Tensor steps_;             // i64, one for each parameter; undefined if no group counts
};

}  // namespace quipu::nn
