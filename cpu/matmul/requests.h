#pragma once
// Lines of memory that are asked for in advance while a product is made in registers: one at each
// step, because a processor forgets most of what comes in a burst. A run of lines that lie equally
// far apart goes with each call of the inner loop, so that asking costs it next to nothing.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "gemm.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail::on_cpu {

/// `count` lines, `spacing` bytes apart.
struct Request {
  const char* first = nullptr;
  std::int64_t spacing = 0, count = 0;

  // Inlined, or the compiler takes it for a function without effect.
  QUIPU_INLINE void send(std::int64_t step) const {
    if (step < count) __builtin_prefetch(first + step * spacing, 0, 3);
  }
};

/// A matrix that is going to be read: one run of lines if it is dense, else the first line of each
/// row, the second, and so on.
class Ahead {
 public:
  Ahead() = default;
  explicit Ahead(const Matrix& m) {
    const Matrix lying = m.column_stride == 1 ? m : m.transposed();
    const auto bytes = static_cast<std::int64_t>(size_of(m.dtype));
    const bool dense = lying.row_stride == lying.columns;
    next_.first = static_cast<const char*>(lying.data);
    runs_ = lying.rows == 0 ? 0 : lines_of((dense ? lying.rows : 1) * lying.columns * bytes);
    next_.spacing = lying.row_stride * bytes;
    length_ = lying.rows;
    if (dense) {
      next_.spacing = line_bytes;
      length_ = std::exchange(runs_, std::min<std::int64_t>(runs_, 1));
    }
    next_.count = runs_ > 0 ? length_ : 0;
  }

  /// The next lines, at most as many as there are steps; none where all have been asked for.
  Request take(std::int64_t steps) {
    Request request = next_;
    request.count = std::min(request.count, steps);
    next_.first += request.count * next_.spacing;
    next_.count -= request.count;
    if (next_.count == 0 && runs_ > 1) {
      next_.first += line_bytes - length_ * next_.spacing;
      next_.count = length_;
      --runs_;
    }
    return request;
  }

 private:
  static constexpr std::int64_t line_bytes = 64;
  static std::int64_t lines_of(std::int64_t bytes) { return (bytes + line_bytes - 1) / line_bytes; }

  Request next_;
  std::int64_t length_ = 0, runs_ = 0;
};

/// What comes next, in the order in which it is needed.
class Requests {
 public:
  /// Nothing is asked for unless `asks`.
  Requests(const std::array<Matrix, 4>& later, bool asks)
      : all_{Ahead(), Ahead(), Ahead(later[0]), Ahead(later[1]), Ahead(later[2]), Ahead(later[3])},
        asks_(asks) {}
  void next_a(const Matrix& a) { begin(0, a); }
  void next_b(const Matrix& b) { begin(1, b); }

  Request take(std::int64_t steps) {
    if (!asks_) return {};
    for (; first_ < all_.size(); ++first_) {
      const Request request = all_[first_].take(steps);
      if (request.count > 0) return request;
    }
    return {};
  }

 private:
  void begin(std::size_t place, const Matrix& m) {
    all_[place] = Ahead(m);
    first_ = std::min(first_, place);
  }

  std::array<Ahead, 6> all_;
  std::size_t first_ = 0;  // those before it have been asked for
  bool asks_;
};

}  // namespace quipu::detail::on_cpu
