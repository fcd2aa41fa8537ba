#pragma once
// What softmax over the sequence must know of its columns before any row can be encoded: of each
// batch entry, head and feature the largest entry over all tokens, the sum of e^(x - largest), and
// for the way back the mean of the gradient of the activated row. Rows then go the way of all
// others (lrpe.cpp).
//
// A task is a part of the tokens for all heads that lie side by side, so that it reads long
// stretches, and in backward for a few batch entries, for which cos and sin are found once. Heads
// that lie one behind the other are tasks of their own, if these are enough: all tokens of a few
// entries, which are still near when they are encoded. The columns' largest entries are raised for
// blocks of tokens that stay in the second-level cache until their exponentials are added up. Parts
// have numbers of their own, which are joined in order. With heads side by side this takes 0.5 to
// 0.7 of the time of tasks that have all tokens of a few heads. The memory is asked in advance for
// d_o, whose rows come between exponentials, and for the rows of one head: 0.7 of the time.
//
// x, and in backward d_o, are read twice and need two exponentials an element. On two cores it
// moves 0.5 to 0.7 of what a copy does where 256 tokens are partly in the caches, and 0.25 with
// 2048 tokens (before: 0.3 and 0.15).
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/matmul/gemm.h"
#include "quipu/cpu/online_columns.h"
#include "quipu/cpu/workspace.h"
#include "row_transform.h"

namespace quipu::detail::on_cpu {

template <class T>
class SequenceColumns {
 public:
  static constexpr std::int64_t few = 3;  // batch entries that share cos and sin

  /// For x (b, h, t, d); d_o is undefined in forward. `space` is lrpe_workspace.
  SequenceColumns(const View& x, const View& d_o, const View& angles, const RowTransform& transform,
                  const View& space)
      : x_(x),
        d_o_(d_o),
        batch_(x.size(0)),
        heads_(x.size(1)),
        tokens_(x.size(2)),
        features_(x.size(3)),
        encoder_(transform, features_),
        source_(angles, encoder_, tokens_),
        space_(space.as<T>()),
        side_by_side_(std::abs(x.stride(1)) < std::abs(x.stride(2))) {
    const LrpeColumns cut = lrpe_columns(batch_, tokens_, d_o.defined);
    constexpr std::int64_t enough = 8;  // tasks
    in_parts_ = side_by_side_ || heads_ * ((batch_ + few - 1) / few) < enough;
    parts_ = in_parts_ ? cut.parts : 1;
    entries_ = in_parts_ ? cut.entries : std::min(batch_, cut.slots());
    const std::int64_t most = std::clamp<std::int64_t>(widest / features_, 1, heads_);
    group_ = side_by_side_ ? even_part(heads_, most) : 1;
    few_ = d_o.defined ? std::clamp<std::int64_t>(longest / (group_ * features_), 1, few) : 1;
    block_ = std::clamp<std::int64_t>(8 * longest / (few_ * group_ * features_), 8, 64);
  }

  bool heads_side_by_side() const { return side_by_side_; }
  /// Whether all heads are to be found together, in parts of the tokens, or each by itself.
  bool in_parts() const { return in_parts_; }
  /// How many batch entries there is room for at a time: the first ones, and so on.
  std::int64_t entries() const { return entries_; }

  /// Finds what `of` tells of some heads and batch entries.
  void find(std::int64_t first_head, std::int64_t heads, std::int64_t first_entry,
            std::int64_t entries) const {
    const std::int64_t groups = (heads + group_ - 1) / group_;
    const std::int64_t entry_groups = (entries + few_ - 1) / few_;
    parallel_for(entry_groups * groups * parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      Buffers buffers;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / parts_ % groups * group_, e = i / parts_ / groups * few_;
        const Task task{i % parts_, first_head + head, std::min(group_, heads - head),
                        first_entry + e, std::min(few_, entries - e)};
        find_part(buffers, task);
      }
    });
    const std::int64_t grain = std::max<std::int64_t>(1, 2048 / features_);
    parallel_for(entries * heads, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        join_parts(column_of(first_entry + i / heads, first_head + i % heads));
      }
    });
  }

  /// Once they are found.
  ColumnRow<T> of(std::int64_t b, std::int64_t head) const {
    const OnlineColumns<T> found = columns(0, column_of(b, head));
    return {found.largest, found.sum, found.weighted};
  }

 private:
  static constexpr std::int64_t longest = most_features(dtype_of<T>);
  static constexpr std::int64_t widest = longest / 4;  // columns of heads side by side
  struct Task {
    std::int64_t part, head, heads, b, entries;
  };
  struct Buffers {
    alignas(64) T shift[longest], sum[longest], weighted[longest];  // of a few entries
    alignas(64) T cos[longest], sin[longest], row[longest], wide[2 * longest];
  };

  std::int64_t width(const Task& task) const { return task.heads * features_; }

  std::int64_t column_of(std::int64_t b, std::int64_t head) const {
    return (b % entries_ * heads_ + head) * features_;
  }
  /// The columns from a number on, of a part.
  OnlineColumns<T> columns(std::int64_t part, std::int64_t column) const {
    const std::int64_t all = entries_ * heads_ * features_, kinds = d_o_.defined ? 3 : 2;
    T* const found = space_ + part * kinds * all + column;
    return {found, found + all, d_o_.defined ? found + 2 * all : nullptr};
  }
  OnlineColumns<T> state(const Task& task, std::int64_t entry) const {
    return columns(task.part, column_of(task.b + entry, task.head));
  }

  /// The rows that the task's heads have of a token, one behind the other: where they are, or in
  /// `buffer`.
  const T* read(T* buffer, const View& v, const Task& task, std::int64_t entry,
                std::int64_t token) const {
    const std::int64_t n = v.size(3);
    const std::int64_t start =
        (task.b + entry) * v.stride(0) + task.head * v.stride(1) + token * v.stride(2);
    if (task.heads == 1 || v.stride(1) == n * v.stride(3)) {
      return read_row(buffer, v, start, v.stride(3), task.heads * n);
    }
    for (std::int64_t g = 0; g < task.heads; ++g) {
      load_run(buffer + g * n, at(v, start + g * v.stride(1)), v.dtype, v.stride(3), n);
    }
    return buffer;
  }

  /// Asks the memory for what will be read of a token, if there is one.
  QUIPU_INLINE void ask(const View& v, const Task& task, std::int64_t entry,
                        std::int64_t token) const {
    if (token >= tokens_) return;
    const std::int64_t n = v.size(3);
    const std::int64_t start =
        (task.b + entry) * v.stride(0) + task.head * v.stride(1) + token * v.stride(2);
    for (std::int64_t g = 0; g < task.heads; ++g) {
      ask_for(v, start + g * v.stride(1), v.stride(3), n);
    }
  }

  void find_part(Buffers& buffers, const Task& task) const {
    const std::int64_t last = tokens_ * (task.part + 1) / parts_;
    for (std::int64_t e = 0; e < task.entries; ++e) state(task, e).start(width(task));
    for (std::int64_t t = tokens_ * task.part / parts_; t < last; t += block_) {
      take_in(buffers, task, t, std::min(t + block_, last));
    }
  }

  void take_in(Buffers& buffers, const Task& task, std::int64_t begin, std::int64_t end) const {
    const std::int64_t n = width(task);
    for (std::int64_t e = 0; e < task.entries; ++e) {
      state(task, e).raise(
          end - begin, n, [&](std::int64_t k) { return read(buffers.row, x_, task, e, begin + k); },
          buffers.shift + e * n);
    }
    std::fill_n(buffers.sum, task.entries * n, T(0));
    std::fill_n(buffers.weighted, task.entries * n, T(0));
    const std::int64_t turns = task.heads * encoder_.angles();
    const std::int64_t step = d_o_.defined ? std::max<std::int64_t>(1, longest / turns) : block_;
    for (std::int64_t t = begin; t < end; t += step) {
      const std::int64_t rows = std::min(step, end - t);
      if (d_o_.defined) find_turns_of(buffers, task, t, rows);
      for (std::int64_t e = 0; e < task.entries; ++e) {
        for (std::int64_t k = 0; k < rows; ++k) add_row(buffers, task, e, t + k, k * turns);
      }
    }
    for (std::int64_t e = 0; e < task.entries; ++e) {
      state(task, e).add_sums(buffers.sum + e * n, buffers.weighted + e * n, n);
    }
  }

  void find_turns_of(Buffers& buffers, const Task& task, std::int64_t t, std::int64_t rows) const {
    const std::int64_t n = encoder_.angles();
    for (std::int64_t k = 0; k < rows; ++k) {
      for (std::int64_t g = 0; g < task.heads; ++g) {
        const T* angle = source_.get(Angles::read, task.head + g, t + k, buffers.row);
        const std::int64_t turn = (k * task.heads + g) * n;
        find_turns(angle, buffers.cos + turn, buffers.sin + turn, n);
      }
    }
  }

  void add_row(Buffers& buffers, const Task& task, std::int64_t entry, std::int64_t token,
               std::int64_t turn) const {
    const std::int64_t n = width(task), first = entry * n;
    const T* d_y = nullptr;
    if (d_o_.defined) {
      ask(d_o_, task, entry, token + std::clamp<std::int64_t>(512 / n, 1, 4));
      const T* d_o = read(buffers.wide, d_o_, task, entry, token);
      const std::int64_t angles = encoder_.angles(), encoded = encoder_.width();
      for (std::int64_t g = 0; g < task.heads; ++g) {
        encoder_.encode_back(d_o + g * encoded, buffers.cos + turn + g * angles,
                             buffers.sin + turn + g * angles, buffers.wide + g * features_);
      }
      d_y = buffers.wide;
    }
    if (task.heads == 1) ask(x_, task, entry, token + block_);
    const T* x = read(buffers.row, x_, task, entry, token);
    OnlineColumns<T>::add_row(x, buffers.shift + first, d_y, buffers.sum + first,
                              buffers.weighted + first, n);
  }

  /// Of one head, from a column on.
  void join_parts(std::int64_t column) const {
    const OnlineColumns<T> whole = columns(0, column);
    for (std::int64_t part = 1; part < parts_; ++part) whole.join(columns(part, column), features_);
    whole.finish(features_);
  }

  View x_, d_o_;
  std::int64_t batch_, heads_, tokens_, features_;
  RowEncoder<T> encoder_;
  AngleSource<T> source_;
  T* space_;
  bool side_by_side_;  // the heads
  bool in_parts_;
  std::int64_t parts_;        // of the tokens
  std::int64_t entries_;      // of the batch, at a time
  std::int64_t group_, few_;  // heads and batch entries of a task
  std::int64_t block_;        // tokens
};

}  // namespace quipu::detail::on_cpu
