#pragma once
// A gradient on its way through a walk, and who may write it. Internal to autograd/.
#include <memory>
#include <utility>

#include "quipu/core/tensor.h"

namespace quipu::detail {

/// A gradient tensor and a share of its memory. A share is made by `share` alone, so the memory
/// knows how many places of the walk hold it; and it knows whether somebody outside the walk may
/// have seen it (the user's upstream, a hook, a custom rule). It may be written in place only by a
/// sole holder that nobody outside has seen; everyone else copies first. While it is held, changes
/// in place by the user are refused.
class GradientBuffer {
 public:
  GradientBuffer() = default;
  /// Memory that nobody else holds a handle on.
  static GradientBuffer own(Tensor fresh) { return {std::move(fresh), false}; }
  /// Memory that somebody outside the walk may hold.
  static GradientBuffer borrow(Tensor foreign) { return {std::move(foreign), true}; }

  GradientBuffer(GradientBuffer&&) noexcept = default;
  GradientBuffer& operator=(GradientBuffer&&) noexcept = default;
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  /// A second holder of the same memory.
  GradientBuffer share() const { return share_as(tensor_); }
  /// A second holder that sees the same memory through a view.
  GradientBuffer share_as(Tensor view) const;
  /// From now on somebody outside may hold it.
  void lend() const {
    if (memory_) memory_->lent = true;
  }

  bool defined() const { return memory_ != nullptr; }
  const Tensor& tensor() const { return tensor_; }
  bool writable() const { return !memory_->lent && memory_.use_count() == 1; }
  bool shares_memory_with(const Tensor& x) const {
    return defined() && &tensor_.storage() == &x.storage();
  }
  /// Its tensor, to be written: a copy takes its place unless it is writable.
  const Tensor& for_writing();
  /// A tensor that is the caller's alone: this one if it was writable, else a copy.
  Tensor taken_or_copied() const;

 private:
  struct Memory {
    explicit Memory(const Tensor& x, bool is_lent) : storage(&x.storage()), lent(is_lent) {
      storage->freeze();
    }
    ~Memory() { storage->thaw(); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    const Ref<Storage> storage;
    bool lent;
  };
  GradientBuffer(Tensor x, bool lent)
      : memory_(std::make_shared<Memory>(x, lent)), tensor_(std::move(x)) {}

  std::shared_ptr<Memory> memory_;
  Tensor tensor_;
};

/// A dense copy, entered as a gradient.
Tensor copy_of_gradient(const Tensor& gradient);
Tensor new_gradient(const Shape& shape, DType dtype, Device device);

}  // namespace quipu::detail
