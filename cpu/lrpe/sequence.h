#pragma once
// Position encodings with softmax over the sequence. Columns are independent but for the pairs that
// are turned together, so a task is some columns for a few batch entries: heads that lie side by
// side, or a strip of one head. First come the statistics of its columns over all tokens, then its
// rows. Tokens come in blocks, so that exponentials, cos and sin stay near; x, and in backward d_o,
// are read twice, which bounds it together with exp.
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/matmul/gemm.h"
#include "quipu/cpu/online_columns.h"
#include "row_transform.h"

namespace quipu::detail::on_cpu {

template <class T>
class SequenceEncoding {
 public:
  /// For x (b, h, t, d).
  SequenceEncoding(const View& x, const View& angles, const RowTransform& transform)
      : batch_(x.size(0)),
        heads_(x.size(1)),
        tokens_(x.size(2)),
        encoder_(transform, x.size(3)),
        source_(angles, encoder_, tokens_),
        halves_(transform.kind == LrpeKind::rotate ? 2 : 1),
        parts_((batch_ + few - 1) / few) {
    const bool side_by_side = std::abs(x.stride(1)) < std::abs(x.stride(2));
    const std::int64_t fitting = widest / std::max<std::int64_t>(x.size(3), 1);
    strip_ = widest / halves_;
    group_ = side_by_side ? std::clamp<std::int64_t>(fitting, 1, heads_) : 1;
    // Smaller ones where there would be few tasks; by the shape alone.
    while (tasks() < 8 && group_ > 1) group_ = (group_ + 1) / 2;
    while (tasks() < 8 && strip_ > 16) strip_ /= 2;
    group_ = even_part(heads_, group_);
  }

 protected:
  static constexpr std::int64_t widest = widest_strip;  // columns of a task
  static constexpr std::int64_t few = 3;                // batch entries of a task
  static constexpr std::int64_t room = 32768 / sizeof(T);
  struct Task {
    std::int64_t head, heads, b, entries, first, angles;
  };
  struct Buffers {
    alignas(64) T cos[room], sin[room], x[room], d_y[room], wide[2 * widest];
    alignas(64) T largest[few][widest], sum[few][widest], weighted[few][widest];
    alignas(64) T angle[most_features(dtype_of<T>)];

    OnlineColumns<T> state(std::int64_t entry, bool back) {
      return {largest[entry], sum[entry], back ? weighted[entry] : nullptr};
    }
  };

  /// Calls f(buffers, task) for all tasks.
  template <class F>
  void for_each_task(F f) const {
    parallel_for(tasks(), 1, [&](std::int64_t begin, std::int64_t end) {
      Buffers buffers;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t b = i / strips() % parts_ * few, first = i % strips() * strip_;
        const std::int64_t head = i / strips() / parts_ * group_;
        f(buffers, Task{head, std::min(group_, heads_ - head), b, std::min(few, batch_ - b), first,
                        std::min(strip_, encoder_.angles() - first)});
      }
    });
  }

  /// Columns of a task.
  std::int64_t width(const Task& task) const { return task.heads * halves_ * task.angles; }
  /// Tokens of a block.
  std::int64_t block(const Task& task) const {
    return std::min<std::int64_t>(64, room / std::max<std::int64_t>(width(task), 1));
  }

  /// Calls f(t, rows) for blocks of tokens, when their cos and sin have been found.
  template <class F>
  void for_each_block(Buffers& buffers, const Task& task, Angles how, F f) const {
    for (std::int64_t t = 0; t < tokens_; t += block(task)) {
      const std::int64_t rows = std::min(block(task), tokens_ - t);
      for (std::int64_t k = 0; k < rows; ++k) {
        for (std::int64_t g = 0; g < task.heads; ++g) {
          const T* angle = source_.get(how, task.head + g, t + k, buffers.angle);
          const std::int64_t turn = (k * task.heads + g) * task.angles;
          find_turns(angle + task.first, buffers.cos + turn, buffers.sin + turn, task.angles);
        }
      }
      f(t, rows);
    }
  }

  /// Calls f(offset, first, n) for the runs that the task has of a token's rows with `halves`
  /// halves, as few as the strides allow. `offset` is the place in the view, `first` the one in the
  /// task's own row.
  template <class F>
  void for_each_run_of(const View& v, const Task& task, std::int64_t b, std::int64_t token,
                       std::int64_t halves, F f) const {
    const std::int64_t start = b * v.stride(0) + task.head * v.stride(1) + token * v.stride(2);
    const std::int64_t n = encoder_.angles(), row = halves * n;
    if (task.angles < n) {  // a strip of one head
      for (std::int64_t half = 0; half < halves; ++half) {
        f(start + (half * n + task.first) * v.stride(3), half * task.angles, task.angles);
      }
    } else if (task.heads == 1 || v.stride(1) == row * v.stride(3)) {
      f(start, 0, task.heads * row);
    } else {
      for (std::int64_t g = 0; g < task.heads; ++g) f(start + g * v.stride(1), g * row, row);
    }
  }

  /// The task's part of a token: where it is, or in `buffer`.
  const T* read(T* buffer, const View& v, const Task& task, std::int64_t b, std::int64_t token,
                std::int64_t halves) const {
    const T* found = buffer;
    for_each_run_of(v, task, b, token, halves,
                    [&](std::int64_t offset, std::int64_t first, std::int64_t n) {
                      const T* run = read_row(buffer + first, v, offset, v.stride(3), n);
                      if (n == task.heads * halves * task.angles) {
                        found = run;
                      } else if (run != buffer + first) {
                        std::copy_n(run, n, buffer + first);
                      }
                    });
    return found;
  }

  void write(const Grad& g, const Task& task, std::int64_t b, std::int64_t token,
             std::int64_t halves, const T* results) const {
    for_each_run_of(g.view, task, b, token, halves,
                    [&](std::int64_t offset, std::int64_t first, std::int64_t n) {
                      finish_row(g, offset, g.view.stride(3), results + first, n);
                    });
  }

  /// Calls f(cos, sin, start) for the heads of row k of a block; `start` is where the head's part
  /// begins in a row with one half.
  template <class F>
  void for_each_head(const Buffers& buffers, const Task& task, std::int64_t k, F f) const {
    for (std::int64_t g = 0; g < task.heads; ++g) {
      const std::int64_t turn = (k * task.heads + g) * task.angles;
      f(buffers.cos + turn, buffers.sin + turn, g * task.angles);
    }
  }

  /// y = softmax of a row's part.
  static void activate(const T* x, const OnlineColumns<T>& found, T* y, std::int64_t n) {
    const T *largest = found.largest, *inverse = found.sum;
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) y[i] = math::exp_below(x[i] - largest[i]) * inverse[i];
  }

  std::int64_t batch_, heads_, tokens_;
  RowEncoder<T> encoder_;
  AngleSource<T> source_;
  std::int64_t halves_;  // of a row of x; encoded ones have two

 private:
  std::int64_t strips() const { return (encoder_.angles() + strip_ - 1) / strip_; }
  std::int64_t tasks() const { return (heads_ + group_ - 1) / group_ * parts_ * strips(); }

  std::int64_t parts_;          // of the batch
  std::int64_t strip_, group_;  // angles and heads of a task; one of them is all or one
};

template <class T>
class SequenceForward : SequenceEncoding<T> {
  using Base = SequenceEncoding<T>;
  using typename Base::Buffers, typename Base::Task;

 public:
  SequenceForward(const View& x, const View& o, const View& angles, const RowTransform& transform)
      : Base(x, angles, transform), x_(x), o_(Target::write_to(o)) {}

  void run() const {
    this->for_each_task([&](Buffers& buffers, const Task& task) {
      for (std::int64_t i = 0; i < task.entries; ++i) find_columns(buffers, task, i);
      // One task of each head fills the table.
      const Angles how = task.b == 0 && task.first == 0 ? Angles::enter : Angles::find;
      this->for_each_block(buffers, task, how, [&](std::int64_t t, std::int64_t rows) {
        for (std::int64_t i = 0; i < task.entries; ++i) encode(buffers, task, i, t, rows);
      });
    });
  }

 private:
  void find_columns(Buffers& buffers, const Task& task, std::int64_t entry) const {
    const std::int64_t width = this->width(task);
    const OnlineColumns<T> state = buffers.state(entry, false);
    state.start(width);
    for (std::int64_t t = 0; t < this->tokens_; t += this->block(task)) {
      const auto place = [&](std::int64_t k) { return buffers.x + k * width; };
      state.add_converted(
          std::min(this->block(task), this->tokens_ - t), width,
          [&](std::int64_t k) {
            return this->read(place(k), x_, task, task.b + entry, t + k, this->halves_);
          },
          place);
    }
    state.finish(width);
  }

  void encode(Buffers& buffers, const Task& task, std::int64_t entry, std::int64_t t,
              std::int64_t rows) const {
    const OnlineColumns<T> found = buffers.state(entry, false);
    const std::int64_t width = this->width(task), b = task.b + entry;
    for (std::int64_t k = 0; k < rows; ++k) {
      const T* x = this->read(buffers.x, x_, task, b, t + k, this->halves_);
      this->activate(x, found, buffers.x, width);
      this->for_each_head(buffers, task, k, [&](const T* cos, const T* sin, std::int64_t start) {
        this->encoder_.encode(buffers.x + start * this->halves_, cos, sin, buffers.wide + 2 * start,
                              task.angles);
      });
      this->write(o_, task, b, t + k, 2, buffers.wide);
    }
  }

  const View& x_;
  Grad o_;
};

template <class T>
class SequenceBackward : SequenceEncoding<T> {
  using Base = SequenceEncoding<T>;
  using typename Base::Buffers, typename Base::Task;

 public:
  SequenceBackward(const View& x, const View& d_o, const Grad& d_x, const View& angles,
                   const RowTransform& transform)
      : Base(x, angles, transform), x_(x), d_o_(d_o), d_x_(d_x) {}

  void run() const {
    this->for_each_task([&](Buffers& buffers, const Task& task) {
      const std::int64_t width = this->width(task);
      const auto state = [&](std::int64_t entry) { return buffers.state(entry, true); };
      for (std::int64_t i = 0; i < task.entries; ++i) state(i).start(width);
      this->for_each_block(buffers, task, Angles::read, [&](std::int64_t t, std::int64_t rows) {
        for (std::int64_t i = 0; i < task.entries; ++i) take_in(buffers, task, i, t, rows);
      });
      for (std::int64_t i = 0; i < task.entries; ++i) state(i).finish(width);
      this->for_each_block(buffers, task, Angles::read, [&](std::int64_t t, std::int64_t rows) {
        for (std::int64_t i = 0; i < task.entries; ++i) write_gradient(buffers, task, i, t, rows);
      });
    });
  }

 private:
  /// The gradient of the activated row's part.
  void decode(Buffers& buffers, const Task& task, std::int64_t entry, std::int64_t t,
              std::int64_t k, T* d_y) const {
    const T* d_o = this->read(buffers.wide, d_o_, task, task.b + entry, t + k, 2);
    this->for_each_head(buffers, task, k, [&](const T* cos, const T* sin, std::int64_t start) {
      this->encoder_.encode_back(d_o + 2 * start, cos, sin, d_y + start * this->halves_,
                                 task.angles);
    });
  }

  void take_in(Buffers& buffers, const Task& task, std::int64_t entry, std::int64_t t,
               std::int64_t rows) const {
    const std::int64_t width = this->width(task);
    const T* x[64];
    for (std::int64_t k = 0; k < rows; ++k) {
      decode(buffers, task, entry, t, k, buffers.d_y + k * width);
      x[k] = this->read(buffers.x + k * width, x_, task, task.b + entry, t + k, this->halves_);
    }
    buffers.state(entry, true)
        .add(
            rows, width, [&](std::int64_t k) { return x[k]; },
            [&](std::int64_t k) { return buffers.x + k * width; },
            [&](std::int64_t k) { return buffers.d_y + k * width; });
  }

  void write_gradient(Buffers& buffers, const Task& task, std::int64_t entry, std::int64_t t,
                      std::int64_t rows) const {
    const OnlineColumns<T> found = buffers.state(entry, true);
    const std::int64_t width = this->width(task), b = task.b + entry;
    T *y = buffers.x, *d_y = buffers.d_y;
    for (std::int64_t k = 0; k < rows; ++k) {
      decode(buffers, task, entry, t, k, d_y);
      this->activate(this->read(y, x_, task, b, t + k, this->halves_), found, y, width);
      const T* mean = found.weighted;
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < width; ++i) d_y[i] = y[i] * (d_y[i] - mean[i]);
      this->write(d_x_, task, b, t + k, this->halves_, d_y);
    }
  }

  const View& x_;
  const View& d_o_;
  const Grad& d_x_;
};

}  // namespace quipu::detail::on_cpu
