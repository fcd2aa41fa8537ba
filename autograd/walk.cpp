// How a walk goes: the loss's slot is seeded; knots run from the last to the first, each as soon as
// it is reached, and leave gradients in the slots of their inputs or in the leaves; a knot that ran
// is freed with all it saved. A view has no buffer of its own: its slot is a strided part of its
// parent's, which is allocated (and zero-filled unless the view covers it) at first touch. A buffer
// may be handed on to several slots; whoever adds to one that others hold copies it first.
#include "quipu/autograd/walk.h"

#include <utility>

#include "quipu/core/dispatch/kernels.h"

namespace quipu::detail {
namespace {

constexpr int longest_view_chain =
    32;  // longer chains get buffers in between, so that no recursion is deep

AutogradMeta& meta_of(const Edge& edge) {
  return static_cast<AutogradMeta&>(*edge.leaf);
}

/// The gradient that a leaf holds, to be added to. What a knot saved of it, or a walk has on its
/// way, stays as it is: the leaf goes on with a copy.
const Tensor& writable_grad(AutogradMeta& leaf) {
  if (leaf.grad.storage().relied_on()) {
    leaf.grad = copy_of_gradient(leaf.grad);
  } else {
    leaf.grad.storage().changed("backward");
  }
  return leaf.grad;
}

}  // namespace

Walk::Walk(TapeState& tape, bool retain, Walk* parent)
    : tape_(tape), retain_(retain), parent_(parent) {}

void Walk::request(const std::vector<Tensor>& tensors) {
  everything_ = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    AutogradMeta* meta = detail::meta_of(tensors[i]);
    check(meta && (meta->leaf || meta->recorded()), "tensor ", i, " ", tensors[i].shape(),
          " has no gradient: it is neither a leaf that requires one nor recorded");
    if (meta->recorded()) {
      check(meta->tape.get() == &tape_, "tensor ", i, " ", tensors[i].shape(),
            " was recorded by another tape");
      kept_[{meta->knot, meta->output}] = {};
    } else {
      own_leaves_[meta] = {Ref<AutogradMeta>(meta), {}};
    }
  }
}

bool Walk::requested(const Edge& edge) const {
  return kept_.contains({edge.knot, edge.output});
}

bool Walk::has_hooks(const Edge& edge) const {
  const OutputInfo& info = knot(edge.knot).outputs[edge.output];
  return !static_cast<AutogradMeta&>(*info.extra).hooks.empty();
}

bool Walk::wants_leaf(const AutogradMeta& leaf) const {
  if (bound_.contains(&leaf)) return true;
  if (parent_) return parent_->wants_leaf(leaf);
  return leaf.leaf && (everything_ || own_leaves_.contains(&leaf));
}

bool Walk::wants(const Edge& edge) const {
  switch (edge.kind) {
    case Edge::Kind::none: return false;
    case Edge::Kind::leaf: return wants_leaf(meta_of(edge));
    case Edge::Kind::knot: return needed_[edge.knot] || requested(edge);
  }
  return false;
}

void Walk::find_needed(std::size_t end) {
  needed_.assign(end, 0);
  for (std::size_t k = 0; k < end; ++k) {
    if (!tape_.entries[k].knot) {
      needed_[k] = 1;  // undone already; whether that matters is decided when the loss reaches it
      continue;
    }
    const Knot& knot = *tape_.entries[k].knot;
    needed_[k] = knot.opaque();
    for (const Edge& edge : knot.inputs) needed_[k] = needed_[k] || wants(edge);
  }
}

/// Before anything is touched: every knot that the walk will reach must still be there.
void Walk::check_not_undone(std::size_t last) {
  std::vector<char> reached(last + 1, 0);
  reached[last] = 1;
  for (std::size_t k = last + 1; k-- > 0;) {
    if (!reached[k] || !needed_[k]) continue;
    const TapeState::Entry& entry = tape_.entries[k];
    check(entry.knot != nullptr, "knot ", k, " (", entry.name,
          ") was already undone by an earlier walk of this tape; pass retain = true to the first "
          "one");
    for (const Edge& edge : entry.knot->inputs) {
      if (edge.kind == Edge::Kind::knot) reached[edge.knot] = 1;
    }
  }
}

void Walk::run(const Tensor& loss, GradientBuffer upstream) {
  AutogradMeta& meta = *detail::meta_of(loss);
  if (meta.tape.get() != &tape_) {  // a leaf
    const Edge edge{Edge::Kind::leaf, 0, 0, Ref<TensorExtra>(loss.extra())};
    if (wants(edge)) {
      const Target t = target(edge);
      add_into_kernel({t.buffer, !t.fresh}, upstream.tensor());
    }
    run_hooks_of_leaves();
    return;
  }
  const std::size_t last = meta.knot;
  find_needed(last + 1);
  check_not_undone(last);
  slots_.resize(tape_.entries[last].first_slot + tape_.entries[last].knot->outputs.size());
  const NoGrad pause;
  try {
    slots_[tape_.entries[last].first_slot + meta.output].buffer = std::move(upstream);
    walk(last);
    running_ = "a hook";
    run_hooks_of_leaves();
  } catch (...) {
    spend(running_);
    throw;
  }
}

void Walk::walk(std::size_t last) {
  for (std::size_t k = last + 1; k-- > 0;) {
    TapeState::Entry& entry = tape_.entries[k];
    if (!entry.knot) continue;
    const std::size_t count = entry.knot->outputs.size();
    bool reached = false, aliased = true;
    for (std::size_t i = 0; i < count; ++i) {
      const Slot& s = slots_[entry.first_slot + i];
      reached = reached || s.reached();
      aliased = aliased && s.alias;
    }
    if (!reached) continue;
    running_ = entry.name;
    if (!aliased) undo(k);
    for (std::size_t i = 0; i < count; ++i) slots_[entry.first_slot + i] = Slot();
    if (!retain_) entry.knot.reset();
  }
}

void Walk::undo(std::size_t index) {
  TapeState::Entry& entry = tape_.entries[index];
  const MemoryScope scope(entry.knot->scope);
  const OpScope op(backward_name(entry.name));
  std::vector<GradientBuffer> buffers;
  std::vector<Tensor> d_outputs;
  for (std::uint32_t i = 0; i < entry.knot->outputs.size(); ++i) {
    GradientBuffer buffer = std::move(slots_[entry.first_slot + i].buffer);
    if (buffer.defined()) {
      buffer =
          apply_hooks(static_cast<AutogradMeta&>(*entry.knot->outputs[i].extra), std::move(buffer));
      if (const auto kept = kept_.find({index, i}); kept != kept_.end())
        kept->second = buffer.share();
    }
    d_outputs.push_back(buffer.tensor());
    buffers.push_back(std::move(buffer));
  }
  if (!needed_[index]) return;
  Grads grads(*this, index, buffers);
  entry.knot->backward(d_outputs, grads);
  grads.finish();
}

Walk::Target Walk::target(const Edge& edge, int depth) {
  if (edge.kind == Edge::Kind::leaf) return leaf_target(meta_of(edge));
  Slot& s = slot(edge);
  if (s.buffer.defined()) return {s.buffer.for_writing(), false};
  const Knot& k = knot(edge.knot);
  if (s.alias || (k.is_view() && depth < longest_view_chain && wants(k.inputs[0]) &&
                  !has_hooks(edge) && !requested(edge))) {
    const Target part = view_target(edge, depth);
    if (part.buffer.defined()) return part;
  }
  const OutputInfo& info = k.outputs[edge.output];
  s.buffer = GradientBuffer::own(new_gradient(info.shape, info.dtype, info.device));
  return {s.buffer.tensor(), true};
}

/// The view's part of its parent's buffer, which is looked up each time, because the parent may
/// have gone on with a copy. Not defined: strides do not allow it.
Walk::Target Walk::view_target(const Edge& edge, int depth) {
  const Knot& k = knot(edge.knot);
  const Target parent = target(k.inputs[0], depth + 1);
  const Tensor part = k.project(parent.buffer);
  const bool whole = part.defined() && k.covers_parent();
  if (parent.fresh && !whole) fill_kernel(parent.buffer, 0);
  slot(edge).alias = part.defined();
  return {part, parent.fresh && whole};
}

Walk::Target Walk::leaf_target(AutogradMeta& leaf) {
  if (const auto it = bound_.find(&leaf); it != bound_.end()) {
    // Hooks of a captured tensor see its whole gradient, outside.
    if (leaf.hooks.empty() || leaf.recorded()) return parent_->target(it->second);
  } else if (parent_) {
    return parent_->leaf_target(leaf);
  }
  const DType dtype = leaf.grad_dtype.value_or(leaf.dtype);
  auto own = own_leaves_.find(&leaf);
  if (own == own_leaves_.end() && !leaf.hooks.empty()) {
    own = own_leaves_.emplace(&leaf, LeafSlot{Ref<AutogradMeta>(&leaf), {}}).first;
  }
  if (own != own_leaves_.end()) {
    GradientBuffer& buffer = own->second.buffer;
    if (buffer.defined()) return {buffer.for_writing(), false};
    buffer = GradientBuffer::own(new_gradient(leaf.shape, dtype, leaf.device));
    return {buffer.tensor(), true};
  }
  touch(leaf);
  if (leaf.grad.defined()) return {writable_grad(leaf), false};
  leaf.grad = new_gradient(leaf.shape, dtype, leaf.device);
  return {leaf.grad, true};
}

bool Walk::accepts(const Edge& edge, const Tensor& gradient) {
  if (edge.kind != Edge::Kind::knot) return false;
  const Knot& k = knot(edge.knot);
  const OutputInfo& info = k.outputs[edge.output];
  if (slot(edge).reached() || gradient.dtype() != info.dtype || gradient.shape() != info.shape)
    return false;
  // A part of something larger is better added to its place at once.
  if (k.is_view() && !k.covers_parent()) return false;
  for (int d = 0; d < gradient.dim(); ++d) {
    if (gradient.strides()[d] == 0 && gradient.shape()[d] > 1) return false;
  }
  return true;
}

void Walk::run_hooks_of_leaves() {
  for (auto& [meta, own] : own_leaves_) {
    if (!own.buffer.defined()) continue;
    own.buffer = apply_hooks(*own.leaf, std::move(own.buffer));
    if (const auto it = bound_.find(meta); it != bound_.end()) {
      const Target t = parent_->target(it->second);
      add_into_kernel({t.buffer, !t.fresh}, own.buffer.tensor());
      continue;
    }
    if (!everything_) continue;
    touch(*own.leaf);
    if (Tensor& grad = own.leaf->grad; grad.defined()) {
      add_into_kernel(Grad::add_to(writable_grad(*own.leaf)), own.buffer.tensor());
    } else {
      grad = own.buffer.taken_or_copied();
    }
  }
}

Tensor Walk::result(const Tensor& requested) {
  const AutogradMeta& meta = *detail::meta_of(requested);
  const GradientBuffer& buffer =
      meta.recorded() ? kept_.at({meta.knot, meta.output}) : own_leaves_.at(&meta).buffer;
  Tensor gradient = buffer.defined() ? buffer.taken_or_copied()
                                     : zeros(meta.shape, meta.grad_dtype.value_or(meta.dtype),
                                             meta.device, Category::gradient);
  gradient = gradient.detach();
  ensure_meta(gradient).is_gradient = true;
  return gradient;
}

void Walk::touch(AutogradMeta& leaf) {
  if (!touched_.contains(&leaf)) touched_.emplace(&leaf, Ref<AutogradMeta>(&leaf));
}

void Walk::spend(const char* by) noexcept {
  tape_.spent_by = by;
  tape_.entries.clear();
  for (const auto& [meta, leaf] : touched_) leaf->partial = true;
}

}  // namespace quipu::detail
