// o (=|+=) scale * sum of f(operands). The loop is ordered as (groups, rows, columns): rows are
// summed, groups and columns are kept, and columns are there only if the operands lie densest along
// kept dimensions. Each operand is read once, in the order in which it lies, and sums are kept in
// f64 (i64): long rows make it bounded by memory.
//
// Work is cut by shape alone. Many groups or columns: each block of outputs is one thread's. Few of
// them: the rows are cut as well, into slices whose sums are added in order at the end.
#include <algorithm>
#include <type_traits>

#include "frame.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/loop_order.h"
#include "quipu/cpu/simd/vector_math.h"
#include "quipu/cpu/simd/wrapping.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t most_slices = 256;     // of the rows
constexpr std::int64_t most_partials = 8192;  // sums of slices, 64 KiB on the caller's stack
constexpr std::int64_t enough_units = 64;     // pieces of work that keep every thread busy

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

template <class T>
Sum<T> sum_of_few(const T* values, std::int64_t n) {
  Sum<T> total = 0;
  for (std::int64_t i = 0; i < n; ++i) total = wrapping_sum(total, static_cast<Sum<T>>(values[i]));
  return total;
}

/// The sum of n values, in lanes that the compiler keeps in vector registers.
template <class T>
Sum<T> sum_of(const T* values, std::int64_t n) {
  constexpr std::int64_t lanes = 32;
  if (n < lanes) return sum_of_few(values, n);
  Sum<T> sums[lanes] = {};
  for (; n >= lanes; n -= lanes, values += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) {
      sums[j] = wrapping_sum(sums[j], static_cast<Sum<T>>(values[j]));
    }
  }
  for (std::int64_t width = lanes / 2; width > 0; width /= 2) {
    for (std::int64_t j = 0; j < width; ++j) sums[j] = wrapping_sum(sums[j], sums[j + width]);
  }
  return wrapping_sum(sums[0], sum_of_few(values, n));
}

/// Rows that lie `stride` apart.
template <class T>
struct Rows {
  const T* values;
  std::int64_t stride;
  std::int64_t count;

  /// The sum of `n` rows in one column.
  template <int n>
  QUIPU_INLINE Sum<T> sum_down(std::int64_t row, std::int64_t column) const {
    if constexpr (n == 1) {
      return static_cast<Sum<T>>(values[row * stride + column]);
    } else {
      return wrapping_sum(sum_down<n / 2>(row, column), sum_down<n / 2>(row + n / 2, column));
    }
  }
};

/// sums[c] += the sum of column c over bundles of `n` rows, until fewer are left: the larger they
/// are, the less often the sums are read and written.
template <int n, class T>
void add_bundles(Sum<T>* sums, Rows<T>& rows, std::int64_t columns) {
  for (; rows.count >= n; rows.count -= n, rows.values += n * rows.stride) {
    QUIPU_VECTORIZE
    for (std::int64_t c = 0; c < columns; ++c) {
      sums[c] = wrapping_sum(sums[c], rows.template sum_down<n>(0, c));
    }
  }
}

/// sums[c] += the sum of column c.
template <class T>
void add_long_rows(Sum<T>* sums, Rows<T> rows, std::int64_t columns) {
  if (columns >= 512) add_bundles<8>(sums, rows, columns);
  add_bundles<4>(sums, rows, columns);
  add_bundles<1>(sums, rows, columns);
}

/// The same. Many short rows without gaps are taken as fewer long ones, of which the compiler makes
/// vectors.
template <class T>
void add_rows(Sum<T>* sums, Rows<T> rows, std::int64_t columns) {
  constexpr std::int64_t lanes = 64;
  if (columns == 1 && rows.stride == 1) {
    sums[0] = wrapping_sum(sums[0], sum_of(rows.values, rows.count));
    return;
  }
  const std::int64_t joined = lanes / columns;
  if (joined < 2 || rows.count < 2 * joined || rows.stride != columns)
    return add_long_rows(sums, rows, columns);
  Sum<T> wide[lanes] = {};
  const std::int64_t wide_count = rows.count / joined, wide_columns = joined * columns;
  add_long_rows(wide, Rows<T>{rows.values, wide_columns, wide_count}, wide_columns);
  add_long_rows(sums, Rows<Sum<T>>{wide, columns, joined}, columns);
  add_long_rows(sums,
                Rows<T>{rows.values + wide_count * wide_columns, columns, rows.count % joined},
                columns);
}

/// How a sum is ordered and cut.
struct Plan {
  Plan(const Layout<4>& merged, std::int64_t widest_block) : layout(merged), widest(widest_block) {
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
  std::int64_t widest;  // block of columns
  std::int64_t groups = 1, rows = 1, columns = 1;
  std::int64_t group_size, outputs;
  std::int64_t blocks;      // of columns
  std::int64_t slices = 1;  // of rows
};

template <class T>
class SumTask {
 public:
  SumTask(const Target& o, Pointwise f, const Operands& in, const Layout<4>& layout, double scale)
      : plan_(layout, tile_size<T>), task_(f, in, plan_.layout, {}), scale_(scale), add_(o.add) {
    Layout<4> kept = plan_.layout;
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
      if (columns == 1) {
        for (std::int64_t g = 0; g < count; ++g) sums[g] = sum_of(values + g * size, size);
      } else {
        std::fill_n(sums, count * columns, Sum<T>{0});
        for (std::int64_t g = 0; g < count; ++g) {
          add_rows(sums + g * columns, Rows<T>{values + g * size, columns, plan_.rows}, columns);
        }
      }
      store(sums, group * columns, count * columns);
    }
  }

  /// Large ones: a unit is a block of columns of one group, or a slice of its rows.
  void sum_units() const {
    Sum<T> partials[most_partials];
    const std::int64_t units = plan_.groups * plan_.blocks * plan_.slices;
    const std::int64_t unit_size =
        plan_.rows * std::min(plan_.columns, plan_.widest) / plan_.slices;
    const std::int64_t grain = std::max(chunk_size / unit_size, std::int64_t{1});
    parallel_for(units, grain, [&](std::int64_t begin, std::int64_t end) {
      Evaluator<T> evaluator(task_);
      for (std::int64_t unit = begin; unit < end; ++unit) sum_unit(evaluator, unit, partials);
    });
    if (plan_.slices == 1) return;
    const Rows<Sum<T>> later{partials + plan_.outputs, plan_.outputs, plan_.slices - 1};
    add_rows(partials, later, plan_.outputs);
    store(partials, 0, plan_.outputs);
  }

  void sum_unit(Evaluator<T>& evaluator, std::int64_t unit, Sum<T>* partials) const {
    const std::int64_t slice = unit % plan_.slices, rest = unit / plan_.slices;
    const std::int64_t group = rest / plan_.blocks, column = rest % plan_.blocks * plan_.widest;
    const std::int64_t width = std::min(plan_.widest, plan_.columns - column);
    const std::int64_t begin = plan_.rows * slice / plan_.slices,
                       end = plan_.rows * (slice + 1) / plan_.slices;
    Sum<T> sums[tile_size<T>];
    std::fill_n(sums, width, Sum<T>{0});
    sum_block(evaluator, sums, group * plan_.group_size + begin * plan_.columns + column,
              end - begin, width);
    const std::int64_t output = group * plan_.columns + column;
    if (plan_.slices == 1) {
      store(sums, output, width);
    } else {
      std::copy_n(sums, width, partials + slice * plan_.outputs + output);
    }
  }

  /// Adds `rows` rows of `width` columns, the first of which starts at position `first`.
  void sum_block(Evaluator<T>& evaluator, Sum<T>* sums, std::int64_t first, std::int64_t rows,
                 std::int64_t width) const {
    const std::int64_t columns = plan_.columns;
    if (const T* values = evaluator.dense(first, (rows - 1) * columns + width)) {
      return add_rows(sums, Rows<T>{values, columns, rows}, width);
    }
    alignas(64) T tile[tile_size<T>];
    const std::int64_t step = width == columns ? tile_size<T> / width : 1;
    for (std::int64_t row = 0; row < rows; row += step) {
      const std::int64_t count = std::min(step, rows - row);
      const T* values = evaluator.evaluate(first + row * columns, count * width, tile);
      add_rows(sums, Rows<T>{values, width, count}, width);
    }
  }

  void store(const Sum<T>* sums, std::int64_t begin, std::int64_t n) const {
    if (scale_ == 1.0) return out_.write(sums, begin, n, add_);
    double scaled[tile_size<double>];
    for (std::int64_t i = 0; i < n; i += tile_size<double>) {
      const std::int64_t count = std::min(tile_size<double>, n - i);
      for (std::int64_t j = 0; j < count; ++j)
        scaled[j] = scale_ * static_cast<double>(sums[i + j]);
      out_.write(scaled, begin + i, count, add_);
    }
  }

  Plan plan_;
  PointwiseTask<T> task_;
  Path out_;
  double scale_;
  bool add_;
};

void pointwise_sum(Target o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  if (o.view.numel() == 0) return;
  if (numel(over) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Layout<4> layout = Layout<4>{over, pointwise_strides(o.view, in, over)}.merged();
  with_compute_type(pointwise_type(in),
                    [&]<class T>(T) { SumTask<T>(o, f, in, layout, scale).run(); });
}

}  // namespace
}  // namespace on_cpu

void register_cpu_pointwise_sum() {
  pointwise_sum_kernel.provide(Variant::cpu, on_cpu::pointwise_sum);
}

}  // namespace quipu::detail
