// Backward of softmax attention. The weights are found again, tile by tile: exponentials of scores
// less the log-sum-exp and its rest, in the same order of sums as in forward. With
//   P the weights, D = P * (d_o v^T - mean), mean = the sum of d_o * o in a row,
// the gradients are d_v = P^T d_o, d_k = scale D^T q and d_q = scale D k.
//
// A block of 64 keys, their values and the gradients of both stay in the second-level cache while
// all rows pass by in tiles of 48. The tile of D also gives what the block adds to d_q in memory,
// so the blocks of a head follow each other; where there are few heads, each is cut into parts with
// sums of their own, each of which takes every n-th block, which makes causal parts equal (it costs
// up to 7 % on two threads, and 12 heads would be work for 12 threads alone). If d_q is not wanted,
// all blocks are independent. q, d_o and d_q move once for every block; the five products bound it:
// at 512 queries 70 % of the peak of f32 with heads of 64 features, 64 % with 128 (AMD Zen 5, two
// threads).
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/workspace.h"
#include "tiles.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
class Backward {
 public:
  Backward(const AttentionInputs& in, const View& o, const LogSums& sums, const View& d_o,
           const AttentionInputGrads& d, const View& mean, const View& partial)
      : in_(in),
        o_(o),
        sums_(sums),
        d_o_(d_o),
        d_(d),
        mean_(mean),
        partial_(partial),
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
    tile_ = rows_in_room(room - block_ * per_key, per_row + 2 * block_ + 3, Attending::most_rows);
  }

  void run() const {
    if (through_scores_) find_means();
    const std::int64_t blocks = (s_.m + block_ - 1) / block_;
    const std::int64_t parts = d_.q.wanted() ? attention_parts(s_.b, s_.key_heads, s_.m) : blocks;
    parallel_for(s_.b * s_.key_heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / parts, part = i % parts;
        go_through({head / s_.key_heads, head % s_.key_heads}, part, parts);
      }
    });
  }

 private:
  /// A block of keys and the gradients of keys and values.
  struct Keys {
    Keys(AttentionSpace<T>& space, const Backward& f, std::int64_t n)
        : k(space.take(f.block_ * std::max(f.d_width_, f.e_width_))),
          k_turned(space.take(f.block_ * f.d_width_)),
          v_turned(space.take(f.block_ * f.e_width_)),
          d_k(space.take(f.block_ * f.d_width_)),
          d_v(space.take(f.block_ * f.e_width_)),
          count(n) {}
    T *k, *k_turned, *v_turned, *d_k, *d_v;
    std::int64_t count;
  };
  /// A tile of queries, scaled, and what belongs to them.
  struct Rows {
    Rows(AttentionSpace<T>& space, const Backward& f)
        : q(space.take(f.tile_ * f.d_width_)),
          d_o(space.take(f.tile_ * f.e_width_)),
          d_q(space.take(f.tile_ * f.d_width_)),
          lse(space.take(f.tile_)),
          rest(space.take(f.tile_)),
          mean(space.take(f.tile_)) {}
    T *q, *d_o, *d_q, *lse, *rest, *mean;
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

  /// Every `parts`th block of keys, from block `part` on. Gradients of q are written at the first
  /// of them, even if there is none.
  void go_through(const AttentionHead& head, std::int64_t part, std::int64_t parts) const {
    Grad d_q = d_.q;
    if (partial_.defined) {
      d_q = Grad::write_to(partial_);
      d_q.view.data = at(partial_, part * partial_.stride(0));
      d_q.view.shape.erase(0);
      d_q.view.strides.erase(0);
    }
    std::int64_t first = part * block_;
    do {
      meet(head, first, d_q, first == part * block_);
      d_q.add = true;
      first += parts * block_;
    } while (first < s_.m);
  }

  /// Gradients of a block of keys and values, and what it adds to those of the queries.
  void meet(const AttentionHead& head, std::int64_t first, const Grad& d_q, bool is_first) const {
    AttentionSpace<T> space;
    const Keys keys(space, *this, std::min(block_, s_.m - first));
    const Rows rows(space, *this);
    const Scores scores(space, *this);
    load(keys, head, first);
    for (std::int64_t row = 0; row < s_.rows(); row += tile_) {
      const std::int64_t count = std::min(tile_, s_.rows() - row);
      const Attending at(s_, row, count, first, keys.count);
      if (at.most() == 0 && !(is_first && d_q.wanted())) continue;
      load(rows, head, row, count);
      find_scores(keys, rows, scores, at, count);
      add_to_keys(keys, rows, scores, at, count);
      if (d_q.wanted()) give_queries(keys, rows, scores, at, count, d_q, head, row);
    }
    for (std::int64_t i = 0; i < keys.count; ++i) {
      give(d_.k, head, first + i, keys.d_k + i * d_width_);
      give(d_.v, head, first + i, keys.d_v + i * e_width_);
    }
  }

  void load(const Keys& x, const AttentionHead& head, std::int64_t first) const {
    if (through_scores_) load_keys(x.k, e_width_, x.v_turned, block_, in_.v, head, first, x.count);
    load_keys(x.k, d_width_, x.k_turned, block_, in_.k, head, first, x.count);
    std::fill_n(x.d_k, block_ * d_width_, T(0));
    std::fill_n(x.d_v, block_ * e_width_, T(0));
  }

  void load(const Rows& x, const AttentionHead& head, std::int64_t first,
            std::int64_t count) const {
    const auto place = [&](const View& v) {
      return [&, this](std::int64_t i) { return head.query(v, s_, first + i); };
    };
    load_tile(x.q, d_width_, in_.q, count, s_.rows() - first, place(in_.q));
    for (std::int64_t i = 0; i < count * d_width_; ++i) x.q[i] *= scale_;
    load_tile(x.d_o, e_width_, d_o_, count, s_.rows() - first, place(d_o_));
    const std::int64_t from = head.statistic(s_, first);
    std::copy_n(sums_.lse.as<T>() + from, count, x.lse);
    if (sums_.rest.defined) {
      std::copy_n(sums_.rest.as<T>() + from, count, x.rest);
    } else {
      std::fill_n(x.rest, count, T(0));
    }
    if (through_scores_) std::copy_n(mean_.as<T>() + from, count, x.mean);
  }

  /// Weights and gradients of scores; 0 where a row does not attend.
  void find_scores(const Keys& keys, const Rows& rows, const Scores& x, const Attending& at,
                   std::int64_t count) const {
    multiply_tiles(count, at.most(), rows.q, keys.k_turned, {d_width_, 1, block_}, x.weights,
                   block_, false, [&](std::int64_t i) {
                     return Extent{at.keys_of_group(i), s_.d};
                   });
    for (std::int64_t i = 0; i < count; ++i) {
      T* const weights = x.weights + i * block_;
      const T lse = rows.lse[i], rest = rows.rest[i];
      const std::int64_t keys_of_row = at.keys(i);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < keys_of_row; ++j)
        weights[j] = math::exp_below((weights[j] - lse) - rest);
      std::fill(weights + keys_of_row, weights + at.most(), T(0));
    }
    if (!through_scores_) return;
    multiply_tiles(count, at.most(), rows.d_o, keys.v_turned, {e_width_, 1, block_}, x.d_scores,
                   block_, false, [&](std::int64_t i) {
                     return Extent{at.keys_of_group(i), e_};
                   });
    for (std::int64_t i = 0; i < count; ++i) {
      const T* const weights = x.weights + i * block_;
      T* const d_scores = x.d_scores + i * block_;
      const T mean = rows.mean[i];
      const std::int64_t keys_of_row = at.keys(i);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < keys_of_row; ++j)
        d_scores[j] = weights[j] * (d_scores[j] - mean);
      std::fill(d_scores + keys_of_row, d_scores + at.most(), T(0));
    }
  }

  void add_to_keys(const Keys& sums, const Rows& rows, const Scores& x, const Attending& at,
                   std::int64_t count) const {
    if (d_.v.wanted()) add_weighted(sums.d_v, x.weights, rows.d_o, e_, e_width_, at, count);
    if (d_.k.wanted()) add_weighted(sums.d_k, x.d_scores, rows.q, s_.d, d_width_, at, count);
  }

  /// sums += weights^T of_rows; row by row where 0 times what a row has is not 0.
  void add_weighted(T* sums, const T* weights, const T* of_rows, std::int64_t columns,
                    std::int64_t width, const Attending& at, std::int64_t count) const {
    const bool apart = at.is_partial() && !are_finite(of_rows, count * width);
    const std::int64_t step = apart ? 1 : count;
    for (std::int64_t i = 0; i < count; i += step) {
      multiply_tiles(apart ? at.keys(i) : at.most(), columns, weights + i * block_,
                     of_rows + i * width, {1, block_, width}, sums, width, true, [&](std::int64_t) {
                       return Extent{columns, step};
                     });
    }
  }

  void give_queries(const Keys& keys, const Rows& rows, const Scores& x, const Attending& at,
                    std::int64_t count, const Grad& g, const AttentionHead& head,
                    std::int64_t first) const {
    const bool apart = at.is_partial() && !are_finite(keys.k, at.most() * d_width_);
    const std::int64_t step = apart ? 1 : count;
    for (std::int64_t first_row = 0; first_row < count; first_row += step) {
      multiply_tiles(step, s_.d, x.d_scores + first_row * block_, keys.k, {block_, 1, d_width_},
                     rows.d_q + first_row * d_width_, d_width_, false, [&](std::int64_t i) {
                       return Extent{s_.d, apart ? at.keys(first_row) : at.keys_of_group(i)};
                     });
    }
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
  const LogSums& sums_;
  const View& d_o_;
  const AttentionInputGrads& d_;
  const View& mean_;
  const View& partial_;
  AttentionShape s_;
  bool through_scores_;
  T scale_;
  std::int64_t e_, d_width_, e_width_;
  std::int64_t block_ = 0, tile_ = 0;  // keys and rows of a tile
};

void backward(const AttentionInputs& in, View o, const LogSums& sums, View d_o,
              const AttentionInputGrads& d, View mean, View partial) {
  in.q.dtype == f64 ? Backward<double>(in, o, sums, d_o, d, mean, partial).run()
                    : Backward<float>(in, o, sums, d_o, d, mean, partial).run();
}

}  // namespace
}  // namespace on_cpu

void register_cpu_attention_backward() {
  attention_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
