#pragma once
// One walk along a tape in reverse: where gradients are gathered, handed out and handed on.
// Internal to autograd/.
#include <map>
#include <unordered_map>
#include <vector>

#include "quipu/autograd/gradient_buffer.h"
#include "quipu/autograd/tensor_state.h"

namespace quipu::detail {

class Walk {
 public:
  /// The gradient of one output. `alias`: it has no buffer, but lies in that of its parent, so
  /// nothing is left to do for its knot.
  struct Slot {
    GradientBuffer buffer;
    bool alias = false;
    bool reached() const { return alias || buffer.defined(); }
  };
  /// Where to leave a gradient; it may be written.
  struct Target {
    Tensor buffer;
    bool fresh;  // nothing was written yet
  };

  /// Walks for `recompute` have a parent, which decides about leaves.
  Walk(TapeState& tape, bool retain, Walk* parent = nullptr);

  /// Only these tensors are wanted, instead of every leaf.
  void request(const std::vector<Tensor>& tensors);
  /// The gradient of this leaf is that of an input of a knot of the parent.
  void bind(const AutogradMeta& leaf, const Edge& parent_edge) { bound_[&leaf] = parent_edge; }

  void run(const Tensor& loss, GradientBuffer upstream);
  /// The gradient of a requested tensor, in memory of its own; zeros where the loss does not depend
  /// on it.
  Tensor result(const Tensor& requested);

  // For Grads.
  const Knot& knot(std::size_t index) const { return *tape_.entries[index].knot; }
  bool wants(const Edge& edge) const;
  Target target(const Edge& edge, int depth = 0);
  /// Whether `gradient` itself can be the buffer of an input; false where it must be added instead.
  bool accepts(const Edge& edge, const Tensor& gradient);
  void hand_on(const Edge& edge, GradientBuffer gradient) {
    slot(edge).buffer = std::move(gradient);
  }
  TapeState& tape() const { return tape_; }

 private:
  Slot& slot(const Edge& edge) { return slots_[tape_.entries[edge.knot].first_slot + edge.output]; }
  bool requested(const Edge& edge) const;
  bool has_hooks(const Edge& edge) const;
  Target view_target(const Edge& edge, int depth);
  Target leaf_target(AutogradMeta& leaf);
  bool wants_leaf(const AutogradMeta& leaf) const;
  void find_needed(std::size_t end);
  void check_not_undone(std::size_t last);
  void walk(std::size_t last);
  void undo(std::size_t index);
  void run_hooks_of_leaves();
  void touch(AutogradMeta& leaf);
  void spend(const char* by) noexcept;

  TapeState& tape_;
  bool retain_;
  Walk* parent_;
  bool everything_ = true;  // every leaf is wanted
  std::vector<Slot> slots_;
  std::vector<char> needed_;  // knots that lead to something wanted
  std::unordered_map<const AutogradMeta*, Edge> bound_;
  std::map<std::pair<std::size_t, std::uint32_t>, GradientBuffer> kept_;  // requested outputs
  struct LeafSlot {
    Ref<AutogradMeta> leaf;
    GradientBuffer buffer;
  };
  std::unordered_map<const AutogradMeta*, LeafSlot> own_leaves_;  // requested, or with hooks
  std::unordered_map<const AutogradMeta*, Ref<AutogradMeta>>
      touched_;  // leaves whose gradient this walk changed
  const char* running_ = "";
};

/// Runs the tensor's hooks on its finished gradient. Each gets a tensor of its own, which it may
/// keep or change.
GradientBuffer apply_hooks(const AutogradMeta& meta, GradientBuffer gradient);
/// Anomaly mode: throws when the gradient has a NaN or an infinity.
void inspect_gradient(const Tensor& gradient, const char* what);

}  // namespace quipu::detail
