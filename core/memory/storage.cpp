#include "quipu/core/memory/storage.h"

#include "quipu/core/error.h"
#include "quipu/core/graph/step_recorder.h"
#include "quipu/core/memory/allocator.h"

namespace quipu::detail {
namespace {

std::atomic<std::uint64_t> storages_made{0};

std::size_t bytes_of(const Shape& shape, DType dtype) {
  check_enum("dtype", dtype, DType::boolean);
  return static_cast<std::size_t>(numel(shape)) * size_of(dtype);
}

}  // namespace

std::uint64_t Storage::next_serial() {
  return storages_made.load();
}

Storage::Storage(std::size_t bytes, Device device, Category category)
    : Storage(bytes, {static_cast<std::int64_t>(bytes)}, DType::u8, device, category) {}

Storage::Storage(const Shape& shape, DType dtype, Device device, Category category)
    : Storage(bytes_of(shape, dtype), shape, dtype, device, category) {}

Storage::Storage(std::size_t bytes, const Shape& shape, DType dtype, Device device,
                 Category category)
    : data_(nullptr),
      bytes_(bytes),
      device_(device),
      category_(category),
      serial_(storages_made.fetch_add(1)) {
  check_enum("category", category, Category::workspace);
  CachingAllocator& allocator =
      step_recorder ? step_recorder->allocator_for(device) : allocator_of(device);
  block_ = allocator.allocate(bytes, category, shape, dtype);
  if (block_) data_ = block_->data;
  if (category == Category::workspace) thread_context().workspace_bytes += bytes;
}

Storage::Storage(void* data, std::size_t bytes, Device device, std::shared_ptr<const void> owner)
    : data_(data),
      bytes_(bytes),
      device_(device),
      category_(Category::output),
      serial_(storages_made.fetch_add(1)),
      owner_(std::move(owner)) {}

Storage::~Storage() {
  if (block_) block_->owner->free(block_);
}

void Storage::relabel() {
  if (!block_) return;
  const bool savable = category_ == Category::output || category_ == Category::workspace;
  // Two threads may save and let go at once; whoever labels last looks again.
  bool held;
  do {
    held = holds_.load() > 0;
    block_->owner->relabel(block_, held && savable ? Category::saved : category_);
  } while (held != (holds_.load() > 0));
}

void Storage::set_category(Category category) {
  check_enum("category", category, Category::workspace);
  if (category_ == category) return;
  category_ = category;
  relabel();
}

void Storage::hold_for_backward() {
  if (holds_.fetch_add(1) == 0) relabel();
}

void Storage::let_go() {
  if (holds_.fetch_sub(1) == 1) relabel();
}

}  // namespace quipu::detail
