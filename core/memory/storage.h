#pragma once
// Part of tensor.h: reference-counted memory of one device. Tensors are views on it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "quipu/core/device.h"
#include "quipu/core/dtype.h"
#include "quipu/core/memory/category.h"
#include "quipu/core/shape.h"

namespace quipu::detail {

struct Block;

/// Base of everything that handles share; the count is atomic, the rest is not.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;
  void retain() const { count_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  int use_count() const { return count_.load(std::memory_order_acquire); }

 private:
  mutable std::atomic<int> count_{0};
};

/// A handle that shares ownership of a RefCounted.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* p) : p_(p) {
    if (p_) p_->retain();
  }
  Ref(const Ref& o) : Ref(o.p_) {}
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (p_) p_->release();
  }
  T* get() const { return p_; }
  T* operator->() const { return p_; }
  // Whoever asks knows that it is there:
  // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.UndefReturn)
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const Ref& o) const { return p_ == o.p_; }

 private:
  T* p_ = nullptr;
};

class Storage : public RefCounted {
 public:
  /// Memory from the device's allocator, entered in its ledger. Throws OutOfMemory.
  Storage(std::size_t bytes, Device device, Category category);
  /// The same for a tensor; reports show its shape and type.
  Storage(const Shape& shape, DType dtype, Device device, Category category);
  /// Foreign memory, kept alive by `owner`; not in the ledger.
  Storage(void* data, std::size_t bytes, Device device, std::shared_ptr<const void> owner);
  ~Storage() override;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  /// What it counts as while no knot holds it.
  void set_category(Category category);
  /// A knot saves it, or lets it go: it counts as `saved` in between, unless it is a parameter.
  void hold_for_backward();
  void let_go();

  /// A gradient that a walk has on its way must not be changed in place until it lets it go.
  void freeze() { frozen_.fetch_add(1); }
  void thaw() { frozen_.fetch_sub(1); }
  bool frozen() const { return frozen_.load() > 0; }
  /// Somebody counts on the present values: a knot that saved it, or a walk.
  bool relied_on() const { return frozen() || holds_.load() > 0; }

  /// Counts all storages that were ever made: no two have the same number.
  std::uint64_t serial() const { return serial_; }
  /// The number that the next storage gets.
  static std::uint64_t next_serial();

  /// Rises with every change in place; saved tensors remember the one they were saved at.
  std::uint32_t version() const { return version_; }
  const char* changed_by() const { return changed_by_; }
  void changed(const char* op) {
    ++version_;
    changed_by_ = op;
  }

 private:
  Storage(std::size_t bytes, const Shape& shape, DType dtype, Device device, Category category);
  void relabel();
  void* data_;
  std::size_t bytes_;
  Device device_;
  Block* block_ = nullptr;
  Category category_;
  std::atomic<int> holds_{0};
  std::atomic<int> frozen_{0};
  const std::uint64_t serial_;
  std::uint32_t version_ = 0;
  const char* changed_by_ = "";
  std::shared_ptr<const void> owner_;
};

}  // namespace quipu::detail
