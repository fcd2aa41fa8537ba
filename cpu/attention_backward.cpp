// Backward of softmax attention. The weights are found again, tile by tile: exponentials of scores
// less the log-sum-exp, in the same order of sums as in forward. With
//   P the weights, D = P * (d_o v^T - mean), mean = the sum of d_o * o in a row,
// the gradients are d_v = P^T d_o, d_k = scale D^T q and d_q = scale D k.
//
// A pass over keys holds a block of 64 keys, their values and both their gradients while all rows
// pass by in tiles of 48. Where there are many heads, a unit of work is a whole head, and the tile
// of D also gives what the block adds to d_q in memory: five products, and q, d_o and d_q move once
// for every block. Otherwise units are blocks of keys, and then pieces of rows for d_q, with seven
// products in all. Which of them it is depends on sizes alone. The products bound it.
#include "attention_tiles.h"
#include "quipu/core/parallel.h"

namespace quipu {
namespace on_cpu {
namespace {

template <class T>
class Backward {
 public:
  Backward(const AttentionInputs& in, const View& o, const View& lse, const View& d_o,
           const AttentionInputGrads& d, const View& mean)
      : in_(in),
        o_(o),
        lse_(lse),
        d_o_(d_o),
        d_(d),
        mean_(mean),
        s_(in),
        through_scores_(d.q.wanted() || d.k.wanted()),
        scale_(static_cast<T>(in.scale)),
        e_(d_o.size(3)),
        d_width_(padded<T>(s_.d)),
        e_width_(padded<T>(e_)) {
    constexpr std::int64_t room = AttentionSpace<T>::size - 10 * granule<T>;
    const std::int64_t wider = std::max(d_width_, e_width_);
    const std::int64_t per_key = wider + 2 * d_width_ + 2 * e_width_;
    const std::int64_t per_row = 2 * d_width_ + e_width_;
    block_ = keys_in_block<T>(per_key, room * 2 / 3);
    tile_ = rows_in_room(room - block_ * per_key, per_row + 2 * block_ + 2, Attending::most_rows);
    const std::int64_t rest = room - block_ * (per_key - d_width_ - e_width_ + 2 * tile_);
    unit_ = rows_in_unit(s_, rows_in_room(rest, per_row + 2, most_rows));
  }

  void run() const {
    if (through_scores_) find_means();
    if (attention_in_one_pass(s_.b, s_.key_heads, d_)) return over_heads();
    if (d_.k.wanted() || d_.v.wanted()) over_keys();
    if (d_.q.wanted()) over_rows();
  }

 private:
  static constexpr std::int64_t most_rows = 192;

  /// Keys, in both passes.
  struct Keys {
    Keys(AttentionSpace<T>& space, const Backward& f)
        : k(space.take(f.block_ * std::max(f.d_width_, f.e_width_))),
          k_turned(space.take(f.block_ * f.d_width_)),
          v_turned(space.take(f.block_ * f.e_width_)) {}
    T *k, *k_turned, *v_turned;
    std::int64_t first = 0, count = 0;
  };
  /// Gradients of keys.
  struct KeySums {
    KeySums(AttentionSpace<T>& space, const Backward& f)
        : d_k(space.take(f.block_ * f.d_width_)), d_v(space.take(f.block_ * f.e_width_)) {}
    T *d_k, *d_v;
  };
  /// Rows of queries; q is scaled.
  struct Rows {
    Rows(AttentionSpace<T>& space, const Backward& f, std::int64_t rows)
        : q(space.take(rows * f.d_width_)),
          d_o(space.take(rows * f.e_width_)),
          d_q(space.take(rows * f.d_width_)),
          lse(space.take(rows)),
          mean(space.take(rows)) {}
    T *q, *d_o, *d_q, *lse, *mean;
  };
  /// A tile of what would be n x m matrices.
  struct Scores {
    Scores(AttentionSpace<T>& space, const Backward& f)
        : weights(space.take(f.block_ * f.tile_)), d_scores(space.take(f.block_ * f.tile_)) {}
    T *weights, *d_scores;
  };

  /// The sum over all keys of weights times their gradients is the product of o and d_o.
  void find_means() const {
    const std::int64_t heads = s_.b * s_.key_heads;
    parallel_for(heads * s_.rows(), 256, [&](std::int64_t begin, std::int64_t end) {
      T o[most_attention_features], d_o[most_attention_features];
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t index = i / s_.rows(), row = i % s_.rows();
        const AttentionHead head{index / s_.key_heads, index % s_.key_heads};
        const auto read = [&](T* buffer, const View& v) {
          return read_row(buffer, v, head.query(v, s_, row), v.stride(3), e_);
        };
        mean_.as<T>()[i] = e_ > 0 ? row_product(read(o, o_), read(d_o, d_o_), e_) : T(0);
      }
    });
  }

  template <class F>
  void for_units(std::int64_t in_head, F f) const {
    parallel_for(s_.b * s_.key_heads * in_head, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / in_head;
        f(AttentionHead{head / s_.key_heads, head % s_.key_heads}, i % in_head);
      }
    });
  }

  /// At least one block, so that every gradient is written.
  std::int64_t blocks() const { return std::max<std::int64_t>(1, (s_.m + block_ - 1) / block_); }

  void over_heads() const {
    for_units(1, [&](const AttentionHead& head, std::int64_t) {
      for (std::int64_t i = 0; i < blocks(); ++i) keys_pass(head, i * block_, true);
    });
  }
  void over_keys() const {
    for_units(blocks(), [&](const AttentionHead& head, std::int64_t i) {
      keys_pass(head, i * block_, false);
    });
  }
  void over_rows() const {
    const std::int64_t units = (s_.rows() + unit_ - 1) / unit_;
    for_units(units,
              [&](const AttentionHead& head, std::int64_t i) { rows_pass(head, i * unit_); });
  }

  /// Gradients of a block of keys and values, and what it adds to those of the queries.
  void keys_pass(const AttentionHead& head, std::int64_t first, bool with_queries) const {
    AttentionSpace<T> space;
    Keys keys(space, *this);
    const KeySums sums(space, *this);
    const Rows rows(space, *this, tile_);
    const Scores scores(space, *this);
    load(keys, head, first);
    std::fill_n(sums.d_k, block_ * d_width_, T(0));
    std::fill_n(sums.d_v, block_ * e_width_, T(0));
    for (std::int64_t row = 0; row < s_.rows(); row += tile_) {
      const std::int64_t count = std::min(tile_, s_.rows() - row);
      const Attending at(s_, row, count, first, keys.count);
      if (at.most() == 0 && !(with_queries && first == 0)) continue;
      load(rows, head, row, count);
      find_scores(keys, rows, scores, at, 0, count);
      add_to_keys(sums, rows, scores, at.most(), count);
      if (!with_queries) continue;
      give_queries(keys, rows, scores, at, 0, count, false);
      store_queries(rows, head, row, count, first > 0);
    }
    for (std::int64_t i = 0; i < keys.count; ++i) {
      give(d_.k, head, first + i, sums.d_k + i * d_width_);
      give(d_.v, head, first + i, sums.d_v + i * e_width_);
    }
  }

  /// Gradients of some queries.
  void rows_pass(const AttentionHead& head, std::int64_t first) const {
    AttentionSpace<T> space;
    Keys keys(space, *this);
    const Rows rows(space, *this, unit_);
    const Scores scores(space, *this);
    const std::int64_t count = std::min(unit_, s_.rows() - first);
    load(rows, head, first, count);
    std::fill_n(rows.d_q, count * d_width_, T(0));
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < count; ++i) end = std::max(end, s_.limit(first + i));
    for (std::int64_t key = 0; key < end; key += block_) {
      load(keys, head, key);
      for (std::int64_t i = 0; i < count; i += tile_) {
        const std::int64_t part = std::min(tile_, count - i);
        const Attending at(s_, first + i, part, key, keys.count);
        if (at.most() == 0) continue;
        find_scores(keys, rows, scores, at, i, part);
        give_queries(keys, rows, scores, at, i, part, true);
      }
    }
    store_queries(rows, head, first, count, false);
  }

  void load(Keys& x, const AttentionHead& head, std::int64_t first) const {
    x.first = first;
    x.count = std::min(block_, s_.m - first);
    if (through_scores_) load_keys(x.k, e_width_, x.v_turned, block_, in_.v, head, first, x.count);
    load_keys(x.k, d_width_, x.k_turned, block_, in_.k, head, first, x.count);
  }

  void load(const Rows& x, const AttentionHead& head, std::int64_t first,
            std::int64_t count) const {
    const auto place = [&](const View& v) {
      return [&, this](std::int64_t i) { return head.query(v, s_, first + i); };
    };
    load_tile(x.q, d_width_, in_.q, count, place(in_.q));
    for (std::int64_t i = 0; i < count * d_width_; ++i) x.q[i] *= scale_;
    load_tile(x.d_o, e_width_, d_o_, count, place(d_o_));
    const std::int64_t from = head.statistic(s_, first);
    std::copy_n(lse_.as<T>() + from, count, x.lse);
    if (through_scores_) std::copy_n(mean_.as<T>() + from, count, x.mean);
  }

  /// Weights and gradients of scores of `count` rows from `first` on; 0 where a row does not
  /// attend.
  void find_scores(const Keys& keys, const Rows& rows, const Scores& x, const Attending& at,
                   std::int64_t first, std::int64_t count) const {
    multiply_tiles(count, at.most(), rows.q + first * d_width_, keys.k_turned,
                   {d_width_, 1, block_}, x.weights, block_, false, [&](std::int64_t i) {
                     return Extent{at.keys_of_group(i), s_.d};
                   });
    for (std::int64_t i = 0; i < count; ++i) {
      T* const weights = x.weights + i * block_;
      const T lse = rows.lse[first + i];
      const std::int64_t keys_of_row = at.keys(i);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < keys_of_row; ++j) weights[j] = math::exp_below(weights[j] - lse);
      std::fill(weights + keys_of_row, weights + at.most(), T(0));
    }
    if (!through_scores_) return;
    multiply_tiles(count, at.most(), rows.d_o + first * e_width_, keys.v_turned,
                   {e_width_, 1, block_}, x.d_scores, block_, false, [&](std::int64_t i) {
                     return Extent{at.keys_of_group(i), e_};
                   });
    for (std::int64_t i = 0; i < count; ++i) {
      const T* const weights = x.weights + i * block_;
      T* const d_scores = x.d_scores + i * block_;
      const T mean = rows.mean[first + i];
      const std::int64_t keys_of_row = at.keys(i);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < keys_of_row; ++j)
        d_scores[j] = weights[j] * (d_scores[j] - mean);
      std::fill(d_scores + keys_of_row, d_scores + at.most(), T(0));
    }
  }

  void add_to_keys(const KeySums& sums, const Rows& rows, const Scores& x, std::int64_t keys,
                   std::int64_t count) const {
    if (d_.v.wanted()) {
      multiply_tiles(keys, e_, x.weights, rows.d_o, {1, block_, e_width_}, sums.d_v, e_width_, true,
                     [&](std::int64_t) {
                       return Extent{e_, count};
                     });
    }
    if (d_.k.wanted()) {
      multiply_tiles(keys, s_.d, x.d_scores, rows.q, {1, block_, d_width_}, sums.d_k, d_width_,
                     true, [&](std::int64_t) {
                       return Extent{s_.d, count};
                     });
    }
  }

  /// The tile of d_q (=|+=), not scaled yet.
  void give_queries(const Keys& keys, const Rows& rows, const Scores& x, const Attending& at,
                    std::int64_t first, std::int64_t count, bool add) const {
    multiply_tiles(count, s_.d, x.d_scores, keys.k, {block_, 1, d_width_},
                   rows.d_q + first * d_width_, d_width_, add, [&](std::int64_t i) {
                     return Extent{s_.d, at.keys_of_group(i)};
                   });
  }

  void store_queries(const Rows& rows, const AttentionHead& head, std::int64_t first,
                     std::int64_t count, bool add) const {
    const Grad g{d_.q.view, d_.q.add || add};
    for (std::int64_t i = 0; i < count; ++i) {
      T* const row = rows.d_q + i * d_width_;
      for (std::int64_t j = 0; j < d_width_; ++j) row[j] *= scale_;
      finish_row(g, head.query(g.view, s_, first + i), g.view.stride(3), row, s_.d);
    }
  }

  void give(const Grad& g, const AttentionHead& head, std::int64_t row, const T* values) const {
    if (!g.wanted()) return;
    finish_row(g, head.key(g.view, row), g.view.stride(3), values, g.view.size(3));
  }

  const AttentionInputs& in_;
  const View& o_;
  const View& lse_;
  const View& d_o_;
  const AttentionInputGrads& d_;
  const View& mean_;
  AttentionShape s_;
  bool through_scores_;
  T scale_;
  std::int64_t e_, d_width_, e_width_;
  std::int64_t block_ = 0, tile_ = 0, unit_ = 0;  // keys, rows of a tile, rows of a unit
};

void backward(const AttentionInputs& in, View o, View lse, View d_o, const AttentionInputGrads& d,
              View mean) {
  in.q.dtype == f64 ? Backward<double>(in, o, lse, d_o, d, mean).run()
                    : Backward<float>(in, o, lse, d_o, d, mean).run();
}

}  // namespace
}  // namespace on_cpu

void register_cpu_attention_backward() {
  attention_backward_kernel.provide(DeviceKind::cpu, on_cpu::backward);
}

}  // namespace quipu
