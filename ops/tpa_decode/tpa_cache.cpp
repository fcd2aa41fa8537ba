#include "quipu/ops/tpa_decode/tpa_cache.h"

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"

namespace quipu {
using namespace detail;
namespace {

struct Named {
  const char* name;
  Tensor TpaCache::Factors::*tensor;
};
constexpr Named all_factors[] = {{"ak", &TpaCache::Factors::ak},
                                 {"av", &TpaCache::Factors::av},
                                 {"bk", &TpaCache::Factors::bk},
                                 {"bv", &TpaCache::Factors::bv}};

/// (b, tokens, width), or (b, tokens, rank, width) above rank 1.
Shape shape_of(std::int64_t b, std::int64_t tokens, std::int64_t rank, std::int64_t width) {
  return rank == 1 ? Shape{b, tokens, width} : Shape{b, tokens, rank, width};
}

/// The shape for another number of tokens.
Shape with_tokens(Shape shape, std::int64_t tokens) {
  shape[1] = tokens;
  return shape;
}

}  // namespace

void TpaCache::reserve(std::int64_t b, std::int64_t capacity, std::int64_t h, std::int64_t d,
                       std::int64_t e, DType dtype, Device device, TpaRanks ranks) {
  const OpScope op("TpaCache::reserve");
  check_floating("dtype", dtype);
  check(b >= 0 && h >= 0 && d >= 0 && e >= 0 && ranks.key >= 0 && ranks.value >= 0,
        "a size is negative: b ", b, ", h ", h, ", d ", d, ", e ", e, ", ranks ", ranks.key,
        " and ", ranks.value);
  check(capacity >= length_, "capacity is ", capacity, ", but ", length_, " tokens are held");
  const Shape shapes[] = {
      shape_of(b, capacity, ranks.key, h), shape_of(b, capacity, ranks.value, h),
      shape_of(b, capacity, ranks.key, d), shape_of(b, capacity, ranks.value, e)};
  if (length_ > 0) {
    for (int i = 0; i < 4; ++i) {
      const Tensor& held = room_.*all_factors[i].tensor;
      check(held.shape() == with_tokens(shapes[i], capacity_) && held.dtype() == dtype &&
                held.device() == device,
            "tokens are held in ", all_factors[i].name, " ", held.shape(), " ", held.dtype(),
            " on ", held.device(), "; only the capacity may change until clear()");
    }
  }
  const NoGrad no_grad;
  Factors room;
  for (int i = 0; i < 4; ++i) {
    room.*all_factors[i].tensor = empty(shapes[i], dtype, device);
    if (length_ == 0) continue;
    (room.*all_factors[i].tensor)
        .slice(1, 0, length_)
        .copy_from((room_.*all_factors[i].tensor).slice(1, 0, length_));
  }
  room_ = room;
  capacity_ = capacity;
}

void TpaCache::append(const Tensor& ak, const Tensor& av, const Tensor& bk, const Tensor& bv) {
  const OpScope op("TpaCache::append");
  check(room_.ak.defined(), "the cache has no room yet; call reserve first");
  const Factors tokens{ak, av, bk, bv};
  const std::int64_t count = ak.dim() > 1 ? ak.size(1) : 0;
  for (const auto& [name, tensor] : all_factors) {
    const Tensor& x = tokens.*tensor;
    const Shape wanted = with_tokens((room_.*tensor).shape(), count);
    check(x.shape() == wanted, name, " has shape ", x.shape(), ", but ", wanted, " is wanted");
    check_same_dtype("the cache", room_.*tensor, name, x);
    check_same_device("the cache", room_.*tensor, name, x);
  }
  check(length_ + count <= capacity_, "the cache is full: it holds ", length_, " of ", capacity_,
        " tokens, and ", count, " more came; make room with reserve");
  const NoGrad no_grad;
  for (const auto& [name, tensor] : all_factors) {
    (room_.*tensor).slice(1, length_, length_ + count).copy_from(tokens.*tensor);
  }
  length_ += count;
}

TpaCache::Factors TpaCache::view() const {
  const OpScope op("TpaCache::view");
  check(room_.ak.defined(), "the cache has no room yet; call reserve first");
  Factors held;
  for (const auto& [name, tensor] : all_factors) {
    held.*tensor = (room_.*tensor).slice(1, 0, length_);
  }
  return held;
}

}  // namespace quipu
