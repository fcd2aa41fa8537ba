// Softmax attention with a running softmax (FlashAttention-2; Dao 2023, arXiv:2307.08691). A unit
// of work is a few hundred queries that share a key head. They and their sums stay in the
// second-level cache while blocks of 64 keys pass by: each block is converted and transposed once,
// then 48 rows at a time meet it. Their scores are a tile in the first-level cache, in which
// exponentials are taken with the largest score so far subtracted, and from which they go into the
// sums with the values; when the largest score grows, the sums of that row shrink. Groups of six
// rows leave out the keys that none of them attends to. q and o move once, k and v once a unit; the
// two products bound it, with exp close behind where heads are narrow: at 512 queries 61 % of the
// peak of f32 with heads of 64 features, 68 % with 128 (AMD Zen 5, two threads).
#include "quipu/core/threads/parallel.h"
#include "tiles.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
class Forward {
 public:
  Forward(const AttentionInputs& in, const View& o, const LogSums& sums)
      : in_(in),
        o_(o),
        sums_(sums),
        s_(in),
        e_(in.v.size(3)),
        d_width_(padded<T>(s_.d)),
        e_width_(padded<T>(e_)) {
    constexpr std::int64_t room = AttentionSpace<T>::size;
    const std::int64_t per_key = 2 * d_width_ + e_width_;
    block_ = keys_in_block<T>(per_key, room / 2);
    const std::int64_t rest = room - block_ * (per_key + Attending::most_rows) - 2 * granule<T>;
    unit_ = rows_in_unit(s_, rows_in_room(rest, d_width_ + e_width_ + 2, most_rows));
  }

  void run() const {
    if (s_.rows() == 0) return;
    const std::int64_t units = (s_.rows() + unit_ - 1) / unit_;
    parallel_for(s_.b * s_.key_heads * units, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / units, first = i % units * unit_;
        attend({head / s_.key_heads, head % s_.key_heads}, first,
               std::min(unit_, s_.rows() - first));
      }
    });
  }

 private:
  static constexpr std::int64_t most_rows = 252;
  static constexpr T nothing = -std::numeric_limits<T>::infinity();

  struct Tiles {
    explicit Tiles(const Forward& f)
        : q(space.take(f.unit_ * f.d_width_)),
          o(space.take(f.unit_ * f.e_width_)),
          largest(space.take(f.unit_)),
          sum(space.take(f.unit_)),
          k(space.take(f.block_ * f.d_width_)),
          k_turned(space.take(f.block_ * f.d_width_)),
          v(space.take(f.block_ * f.e_width_)),
          scores(space.take(f.block_ * Attending::most_rows)) {}
    AttentionSpace<T> space;
    T *q, *o, *largest, *sum, *k, *k_turned, *v, *scores;
  };

  void attend(const AttentionHead& head, std::int64_t first, std::int64_t rows) const {
    Tiles x(*this);
    load_tile(x.q, d_width_, in_.q, rows, rows,
              [&](std::int64_t i) { return head.query(in_.q, s_, first + i); });
    const T scale = static_cast<T>(in_.scale);
    for (std::int64_t i = 0; i < rows * d_width_; ++i) x.q[i] *= scale;
    std::fill_n(x.o, rows * e_width_, T(0));
    std::fill_n(x.largest, rows, std::numeric_limits<T>::lowest());
    std::fill_n(x.sum, rows, T(0));
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < rows; ++i) end = std::max(end, s_.limit(first + i));

    for (std::int64_t key = 0; key < end; key += block_) {
      const std::int64_t keys = std::min(block_, end - key);
      load_keys(x.k, d_width_, x.k_turned, block_, in_.k, head, key, keys);
      load_keys<T>(x.v, e_width_, nullptr, 0, in_.v, head, key, keys);
      for (std::int64_t i = 0; i < rows; i += Attending::most_rows) {
        const std::int64_t part = std::min(Attending::most_rows, rows - i);
        const Attending at(s_, first + i, part, key, keys);
        if (at.most() > 0) meet(x, at, i, part);
      }
    }
    for (std::int64_t i = 0; i < rows; ++i) finish(x, head, first, i);
  }

  /// Takes a block of keys into the sums of some rows.
  void meet(Tiles& x, const Attending& at, std::int64_t first, std::int64_t rows) const {
    multiply_tiles(rows, at.most(), x.q + first * d_width_, x.k_turned, {d_width_, 1, block_},
                   x.scores, block_, false, [&](std::int64_t i) {
                     return Extent{at.keys_of_group(i), s_.d};
                   });
    for (std::int64_t i = 0; i < rows; ++i) {
      weigh(x, first + i, x.scores + i * block_, at.keys(i), at.keys_of_group(i));
    }
    if (at.is_partial() && !are_finite(x.v, at.most() * e_width_)) {
      return add_one_by_one(x, at, first, rows);
    }
    multiply_tiles(rows, e_, x.scores, x.v, {block_, 1, e_width_}, x.o + first * e_width_, e_width_,
                   true, [&](std::int64_t i) {
                     return Extent{e_, at.keys_of_group(i)};
                   });
  }

  /// The weighted values, for each row those that it attends to and no other.
  void add_one_by_one(Tiles& x, const Attending& at, std::int64_t first, std::int64_t rows) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      multiply_tiles(1, e_, x.scores + i * block_, x.v, {block_, 1, e_width_},
                     x.o + (first + i) * e_width_, e_width_, true, [&](std::int64_t) {
                       return Extent{at.keys(i) > 0 ? e_ : 0, at.keys(i)};
                     });
    }
  }

  /// A row of scores becomes weights; those beyond its keys are 0.
  void weigh(Tiles& x, std::int64_t row, T* scores, std::int64_t keys, std::int64_t width) const {
    if (width == 0) return;
    const std::int64_t n = padded<T>(width);
    std::fill(scores + keys, scores + n, keys > 0 ? nothing : T(0));
    if (keys == 0) return;
    const T before = x.largest[row], largest = std::max(before, granules_maximum(scores, n));
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < n; ++j) scores[j] = math::exp_below(scores[j] - largest);
    const T shrink = math::exp_below(before - largest);
    x.largest[row] = largest;
    x.sum[row] = x.sum[row] * shrink + granules_sum(scores, n);
    if (shrink == T(1)) return;
    T* const o = x.o + row * e_width_;
    for (std::int64_t j = 0; j < e_width_; ++j) o[j] *= shrink;
  }

  void finish(Tiles& x, const AttentionHead& head, std::int64_t first, std::int64_t row) const {
    T* const o = x.o + row * e_width_;
    const bool attends = s_.limit(first + row) > 0;
    if (attends) {
      const T sum = x.sum[row];
      for (std::int64_t j = 0; j < e_width_; ++j) o[j] /= sum;
    }
    store_run(at(o_, head.query(o_, s_, first + row)), o_.dtype, o_.stride(3), o, e_);
    if (!sums_.lse.defined) return;
    const std::int64_t to = head.statistic(s_, first + row);
    const LogSum<T> whole = log_sum_of(attends ? x.largest[row] : nothing, math::log(x.sum[row]));
    sums_.lse.as<T>()[to] = whole.lse;
    sums_.rest.as<T>()[to] = whole.rest;
  }

  const AttentionInputs& in_;
  const View& o_;
  const LogSums& sums_;
  AttentionShape s_;
  std::int64_t e_, d_width_, e_width_;
  std::int64_t block_ = 0, unit_ = 0;  // keys at a time, rows of a unit
};

void forward(const AttentionInputs& in, View o, const LogSums& sums, View) {
  in.q.dtype == f64 ? Forward<double>(in, o, sums).run() : Forward<float>(in, o, sums).run();
}

}  // namespace
}  // namespace on_cpu

void register_cpu_attention() {
  attention_forward_kernel.provide(Variant::cpu, on_cpu::forward);
}

}  // namespace quipu::detail
