// o (=|+=) scale * sum of f(operands). The loop is ordered as (groups, rows, columns): rows are
// summed, groups and columns are kept, and columns are there only if the operands lie densest along
// kept dimensions. Each operand is read once, in the order in which it lies, and sums are kept in
// f64 (i64): long rows make it bounded by memory.
//
// Work is cut by shape alone. Many groups or columns: each block of outputs is one thread's. Few of
// them: the rows are cut as well, into slices whose sums are added in order at the end.
#include <algorithm>
#include <type_traits>

#include "loop_order.h"
#include "pointwise_frame.h"
#include "quipu/core/kernels.h"
#include "quipu/core/parallel.h"
#include "vector_math.h"
#include "wrapping.h"

namespace quipu {
namespace on_cpu {
namespace {

constexpr std::int64_t widest = 1024;         // columns of a block
constexpr std::int64_t most_slices = 256;     // of the rows
constexpr std::int64_t most_partials = 8192;  // sums of slices, 64 KiB on the caller's stack
constexpr std::int64_t enough_units = 64;     // pieces of work that keep every thread busy

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

/// The sum of n values, in lanes that the compiler keeps in vector registers.
template <class T>
Sum<T> sum_of(const T* values, std::int64_t n) {
  constexpr std::int64_t lanes = 32;
  Sum<T> total = 0;
  if (n >= lanes) {
    Sum<T> sums[lanes] = {};
    for (; n >= lanes; n -= lanes, values += lanes) {
      for (std::int64_t j = 0; j < lanes; ++j) {
        sums[j] = wrapping_sum(sums[j], static_cast<Sum<T>>(values[j]));
      }
    }
    for (std::int64_t width = lanes / 2; width > 0; width /= 2) {
      for (std::int64_t j = 0; j < width; ++j) sums[j] = wrapping_sum(sums[j], sums[j + width]);
    }
    total = sums[0];
  }
  for (std::int64_t i = 0; i < n; ++i) total = wrapping_sum(total, static_cast<Sum<T>>(values[i]));
  return total;
}

/// sums[c] += values[r, c] over all rows, two at a time.
template <class T>
void add_pairs_of_rows(Sum<T>* sums, const T* values, std::int64_t rows, std::int64_t columns) {
  for (; rows >= 2; rows -= 2, values += 2 * columns) {
    QUIPU_VECTORIZE
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto pair =
          wrapping_sum(static_cast<Sum<T>>(values[c]), static_cast<Sum<T>>(values[columns + c]));
      sums[c] = wrapping_sum(sums[c], pair);
    }
  }
  if (rows == 0) return;
  QUIPU_VECTORIZE
  for (std::int64_t c = 0; c < columns; ++c) {
    sums[c] = wrapping_sum(sums[c], static_cast<Sum<T>>(values[c]));
  }
}

/// The same. Many short rows are taken as fewer long ones, of which the compiler makes vectors.
template <class T>
void add_rows(Sum<T>* sums, const T* values, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t lanes = 64;
  if (columns == 1) {
    sums[0] = wrapping_sum(sums[0], sum_of(values, rows));
    return;
  }
  const std::int64_t joined = lanes / columns;  // rows
  if (joined < 2 || rows < 2 * joined) return add_pairs_of_rows(sums, values, rows, columns);
  Sum<T> wide[lanes] = {};
  const std::int64_t wide_rows = rows / joined;
  add_pairs_of_rows(wide, values, wide_rows, joined * columns);
  add_pairs_of_rows(sums, wide, joined, columns);
  add_pairs_of_rows(sums, values + wide_rows * joined * columns, rows % joined, columns);
}

/// How a sum is ordered and cut.
struct Plan {
  explicit Plan(const Layout<4>& merged) : layout(merged) {
    sort_dims(layout, [](const Layout<4>& l, int d) {
      return std::abs(l[1][d]) + std::abs(l[2][d]) + std::abs(l[3][d]);
    });
    const auto kept = [&](int d) { return layout[0][d] != 0; };
    int first_column = layout.shape.size();
    while (first_column > 0 && kept(first_column - 1)) --first_column;
    int first_row = 0;
    for (int d = 0; d < first_column; ++d) {
      if (kept(d)) move_dim(layout, d, first_row++);
    }
    for (int d = 0; d < layout.shape.size(); ++d) {
      (d < first_row ? groups : d < first_column ? rows : columns) *= layout.shape[d];
    }
    group_size = rows * columns;
    outputs = groups * columns;
    blocks = (columns + widest - 1) / widest;
    if (groups * blocks < enough_units) {
      const std::int64_t chunks = (groups * group_size + chunk_size - 1) / chunk_size;
      slices =
          std::max(std::int64_t{1}, std::min({rows, chunks, most_partials / outputs, most_slices}));
    }
  }
  Layout<4> layout;
  std::int64_t groups = 1, rows = 1, columns = 1;
  std::int64_t group_size, outputs;
  std::int64_t blocks;      // of columns
  std::int64_t slices = 1;  // of rows
};

template <class T>
class SumTask {
 public:
  SumTask(const Grad& o, Pointwise f, const Operands& in, const Plan& plan, double scale)
      : plan_(plan), task_(f, in, plan.layout, {}), scale_(scale), add_(o.add) {
    Layout<4> kept = plan.layout;
    for (int d = 0; d < kept.shape.size(); ++d) {
      if (kept[0][d] == 0) kept.shape[d] = 1;
    }
    out_ = Path(o.view, kept.shape, kept[0], 0);
  }

  void run() const {
    const bool small = plan_.blocks == 1 && plan_.slices == 1 && plan_.group_size <= tile_size<T>;
    if (small) {
      const std::int64_t grain = std::max(chunk_size / plan_.group_size, std::int64_t{1});
      parallel_for(plan_.groups, grain,
                   [&](std::int64_t begin, std::int64_t end) { sum_groups(begin, end); });
    } else {
      sum_units();
    }
  }

 private:
  /// Small groups: several a tile.
  void sum_groups(std::int64_t begin, std::int64_t end) const {
    Evaluator<T> evaluator(task_);
    alignas(64) T tile[tile_size<T>];
    Sum<T> sums[tile_size<T>];
    const std::int64_t size = plan_.group_size, columns = plan_.columns, step = tile_size<T> / size;
    for (std::int64_t group = begin; group < end; group += step) {
      const std::int64_t count = std::min(step, end - group);
      const T* values = evaluator.evaluate(group * size, count * size, tile);
      std::fill_n(sums, count * columns, Sum<T>{0});
      for (std::int64_t g = 0; g < count; ++g) {
        add_rows(sums + g * columns, values + g * size, plan_.rows, columns);
      }
      store(sums, group * columns, count * columns);
    }
  }

  /// Large ones: a unit is a block of columns of one group, or a slice of its rows.
  void sum_units() const {
    Sum<T> partials[most_partials];
    const std::int64_t units = plan_.groups * plan_.blocks * plan_.slices;
    const std::int64_t unit_size = plan_.rows * std::min(plan_.columns, widest) / plan_.slices;
    const std::int64_t grain = std::max(chunk_size / unit_size, std::int64_t{1});
    parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
      Evaluator<T> evaluator(task_);
      for (std::int64_t unit = begin; unit < end; ++unit) sum_unit(evaluator, unit, partials);
    });
    if (plan_.slices == 1) return;
    add_rows(partials, partials + plan_.outputs, plan_.slices - 1, plan_.outputs);
    store(partials, 0, plan_.outputs);
  }

  void sum_unit(Evaluator<T>& evaluator, std::int64_t unit, Sum<T>* partials) const {
    const std::int64_t slice = unit % plan_.slices, rest = unit / plan_.slices;
    const std::int64_t group = rest / plan_.blocks, column = rest % plan_.blocks * widest;
    const std::int64_t width = std::min(widest, plan_.columns - column);
    const std::int64_t end = plan_.rows * (slice + 1) / plan_.slices;
    const std::int64_t step = width == plan_.columns ? tile_size<T> / width : 1;  // rows a tile
    alignas(64) T tile[tile_size<T>];
    Sum<T> sums[widest];
    std::fill_n(sums, width, Sum<T>{0});
    for (std::int64_t row = plan_.rows * slice / plan_.slices; row < end; row += step) {
      const std::int64_t count = std::min(step, end - row);
      const std::int64_t first = group * plan_.group_size + row * plan_.columns + column;
      add_rows(sums, evaluator.evaluate(first, count * width, tile), count, width);
    }
    const std::int64_t output = group * plan_.columns + column;
    if (plan_.slices == 1) {
      store(sums, output, width);
    } else {
      std::copy_n(sums, width, partials + slice * plan_.outputs + output);
    }
  }

  void store(const Sum<T>* sums, std::int64_t begin, std::int64_t n) const {
    if (scale_ == 1.0) return out_.write(sums, begin, n, add_);
    double scaled[widest];
    for (std::int64_t i = 0; i < n; i += widest) {
      const std::int64_t count = std::min(widest, n - i);
      for (std::int64_t j = 0; j < count; ++j)
        scaled[j] = scale_ * static_cast<double>(sums[i + j]);
      out_.write(scaled, begin + i, count, add_);
    }
  }

  const Plan& plan_;
  PointwiseTask<T> task_;
  Path out_;
  double scale_;
  bool add_;
};

void pointwise_sum(Grad o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  if (o.view.numel() == 0) return;
  if (numel(over) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Plan plan(pointwise_layout(o.view, in, over).merged());
  with_compute_type(pointwise_type(in),
                    [&]<class T>(T) { SumTask<T>(o, f, in, plan, scale).run(); });
}

}  // namespace
}  // namespace on_cpu

void register_cpu_pointwise_sum() {
  pointwise_sum_kernel.provide(DeviceKind::cpu, on_cpu::pointwise_sum);
}

}  // namespace quipu
