// Attention of one token over factored keys and values. Blocks of entries go to the threads, each
// with a part of the heads and of the values that lets the sums stay in the second-level cache (all
// of them at usual sizes). A block is taken in tiles: bk bq^T, that times aq^T, and times ak gives
// scores; their exponentials times av, transposed and multiplied with bv, add to the output, which
// shrinks when a tile raises the largest score. Every factor is read once, nothing else but sums is
// written; bound by the multiply-add units (half of their peak at the published sizes, where sums
// of 16 columns are short of registers to wait in), with memory close behind. Keys of bf16 are
// multiplied by pairs where they lie; weights have more digits than that.
//
// Blocks are put together by their log-sum-exps.
#include "tpa_decode.h"

#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/online_columns.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
class Forward {
 public:
  Forward(const TpaInputs& in, const View& o, const LogSums& sums, const View& partial)
      : in_(in),
        o_(Target::write_to(o)),
        sums_(sums),
        partial_(partial),
        scores_(in),
        lengths_(in),
        blocks_(tpa_blocks(o.size(0), in.ak.size(1), in.split)),
        columns_(std::max<std::int64_t>(1, even_part(o.size(2), most_columns))),
        heads_(even_part(o.size(1), std::min(widest_heads, sums_size / columns_))),
        rows_(tile_rows<T>(tile_size, std::max(heads_, scores_.r()))) {}

  void run() const {
    lengths_.check_values();
    const View& o = o_.view;
    const std::int64_t head_parts = parts(o.size(1), heads_);
    const std::int64_t column_parts = std::max<std::int64_t>(1, parts(o.size(2), columns_));
    const std::int64_t work =
        std::min(blocks_.length, in_.ak.size(1)) * heads_ * (scores_.r() + columns_) + 1;
    parallel_for(o.size(0) * blocks_.count * head_parts * column_parts,
                 std::max<std::int64_t>(1, least_work / work),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     Task task{i, 0, 0, 0};
                     task.column = task.b % column_parts * columns_;
                     task.b /= column_parts;
                     task.head = task.b % head_parts * heads_;
                     task.b /= head_parts;
                     task.block = task.b % blocks_.count;
                     task.b /= blocks_.count;
                     attend(task);
                   }
                 });
    if (blocks_.count > 1) merge();
  }

 private:
  // Tiles lie in the room that a product leaves: 24 KiB of sums and three tiles of 12 KiB.
  static constexpr std::int64_t tile_size = (12 << 10) / sizeof(T);
  static constexpr std::int64_t sums_size = (24 << 10) / sizeof(T);
  static constexpr std::int64_t most_columns = 1024 / sizeof(T), widest_heads = 64;
  static_assert(tile_size >= most_tpa_width);
  static constexpr std::int64_t least_work = 1 << 16;  // multiply-adds worth a task

  struct Task {
    std::int64_t b, block, head, column;
  };
  static std::int64_t parts(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

  void attend(const Task& task) const {
    Gemm<T> gemm(sums_size + 3 * tile_size);
    T *sums = gemm.tile(), *scores = sums + sums_size, *products = scores + tile_size;
    T largest[widest_heads], sum[widest_heads];
    const OnlineColumns<T> state{largest, sum};
    const std::int64_t columns = std::min(columns_, o_.view.size(2) - task.column);
    TpaTile t{task.b, task.block * blocks_.length, 0, task.head,
              std::min(heads_, o_.view.size(1) - task.head)};
    const std::int64_t end = std::min(t.first + blocks_.length, lengths_[t.b]);
    state.start(t.heads);
    std::fill_n(sums, t.heads * columns, T(0));
    for (; t.first < end; t.first += t.rows) {
      t.rows = std::min(rows_, end - t.first);
      scores_.score(gemm, t, products + tile_size, products, scores);
      absorb(state, t, scores, sums, columns);
      for (std::int64_t rank = 0; rank < in_.av.size(2); ++rank) {
        weigh(t, rank, scores, products);
        const Matrix bv = entries_of(in_.bv, t.b, t.first, t.rows, rank);
        gemm.multiply(tile_matrix(products, t.rows, t.heads).transposed(),
                      bv.block(0, task.column, t.rows, columns), sums, columns, true);
      }
    }
    finish(task, t.heads, columns, sums, largest, sum);
  }

  /// Turns scores into exponentials, and lowers the sums to the new largest score.
  static void absorb(const OnlineColumns<T>& state, const TpaTile& t, T* scores, T* sums,
                     std::int64_t columns) {
    T before[widest_heads];
    std::copy_n(state.largest, t.heads, before);
    const auto row = [&](std::int64_t i) { return scores + i * t.heads; };
    state.add(t.rows, t.heads, row, row);
    for (std::int64_t h = 0; h < t.heads; ++h) {
      if (state.largest[h] == before[h]) continue;
      const T shrink = math::exp(before[h] - state.largest[h]);
      T* head = sums + h * columns;
      for (std::int64_t j = 0; j < columns; ++j) head[j] *= shrink;
    }
  }

  void weigh(const TpaTile& t, std::int64_t rank, const T* weights, T* weighted) const {
    TpaScores<T>::for_each_factor(in_.av, t, rank, [&](std::int64_t i, const T* av) {
      const T* from = weights + i * t.heads;
      T* to = weighted + i * t.heads;
      QUIPU_VECTORIZE
      for (std::int64_t h = 0; h < t.heads; ++h) to[h] = from[h] * av[h];
    });
  }

  /// To the output, or to the block's part of it.
  void finish(const Task& task, std::int64_t heads, std::int64_t columns, T* sums, const T* largest,
              const T* sum) const {
    const std::int64_t e = o_.view.size(2);
    for (std::int64_t i = 0; i < heads; ++i) {
      const std::int64_t h = task.head + i;
      T* row = sums + i * columns;
      // Where nothing attends, all is 0.
      const T factor = sum[i] == T(0) ? T(0) : static_cast<T>(in_.value_scale) / sum[i];
      const LogSum<T> lse = log_sum_of(largest[i], math::log(sum[i]));
      for (std::int64_t j = 0; j < columns; ++j) row[j] *= factor;
      if (blocks_.count > 1) {
        T* part = part_of(task.b, task.block, h);
        std::copy_n(row, columns, part + task.column);
        if (task.column > 0) continue;
        part[e] = lse.lse;
        part[e + 1] = lse.rest;
      } else {
        put(task.b, h, task.column, row, columns);
        if (task.column == 0) keep(task.b, h, lse);
      }
    }
  }

  void merge() const {
    const std::int64_t h_count = o_.view.size(1), e = o_.view.size(2);
    parallel_for(o_.view.size(0) * h_count, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t b = i / h_count, h = i % h_count;
        T weights[most_tpa_blocks], row[most_columns];
        keep(b, h, weigh_blocks(b, h, weights));
        for (std::int64_t first = 0; first < e; first += most_columns) {
          const std::int64_t n = std::min(most_columns, e - first);
          std::fill_n(row, n, T(0));
          for (std::int64_t k = 0; k < blocks_.count; ++k) {
            const T *part = part_of(b, k, h) + first, weight = weights[k];
            for (std::int64_t j = 0; j < n; ++j) row[j] += weight * part[j];
          }
          put(b, h, first, row, n);
        }
      }
    });
  }

  /// How much each block's output counts; returns the log-sum-exp over all.
  LogSum<T> weigh_blocks(std::int64_t b, std::int64_t h, T* weights) const {
    const std::int64_t e = o_.view.size(2);
    T largest = -std::numeric_limits<T>::infinity(), sum = 0;
    for (std::int64_t k = 0; k < blocks_.count; ++k) {
      weights[k] = part_of(b, k, h)[e];
      largest = weights[k] > largest ? weights[k] : largest;
    }
    const T shift = largest == -std::numeric_limits<T>::infinity() ? T(0) : largest;
    for (std::int64_t k = 0; k < blocks_.count; ++k) {
      sum += weights[k] = math::exp((weights[k] - shift) + part_of(b, k, h)[e + 1]);
    }
    if (sum == T(0)) return {largest, T(0)};
    for (std::int64_t k = 0; k < blocks_.count; ++k) weights[k] /= sum;
    return log_sum_of(shift, math::log(sum));
  }

  T* part_of(std::int64_t b, std::int64_t block, std::int64_t h) const {
    const std::int64_t row = (b * blocks_.count + block) * o_.view.size(1) + h;
    return partial_.as<T>() + row * (o_.view.size(2) + 2);
  }
  void put(std::int64_t b, std::int64_t h, std::int64_t column, const T* row,
           std::int64_t n) const {
    if (n == 0) return;
    const View& o = o_.view;
    const std::int64_t offset = b * o.stride(0) + h * o.stride(1) + column * o.stride(2);
    finish_row(o_, offset, o.stride(2), row, n);
  }
  void keep(std::int64_t b, std::int64_t h, const LogSum<T>& lse) const {
    if (!sums_.lse.defined) return;
    const std::int64_t to = b * sums_.lse.stride(0) + h * sums_.lse.stride(1);
    sums_.lse.as<T>()[to] = lse.lse;
    sums_.rest.as<T>()[to] = lse.rest;
  }

  const TpaInputs& in_;
  Grad o_;
  const LogSums& sums_;
  const View& partial_;
  TpaScores<T> scores_;
  TpaLengths lengths_;
  TpaBlocks blocks_;
  std::int64_t columns_, heads_, rows_;  // of a task, and of its tiles
};

void forward(const TpaInputs& in, View o, const LogSums& sums, View partial) {
  if (o.size(0) * o.size(1) == 0) return;
  in.aq.dtype == f64 ? Forward<double>(in, o, sums, partial).run()
                     : Forward<float>(in, o, sums, partial).run();
}

}  // namespace
}  // namespace on_cpu

void register_cpu_tpa_decode() {
  tpa_decode_forward_kernel.provide(Variant::cpu, on_cpu::forward);
}

}  // namespace quipu::detail
