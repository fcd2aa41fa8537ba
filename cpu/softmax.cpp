// Softmax along any axis. Lines that lie densely are taken one by one: lines that fit a tile, a few
// at a time, are read once and written once, longer ones are read again. Along any other axis,
// strips of neighbouring lines are taken row by row, without a transpose: strips are as wide as
// lets their rows stay in the second-level cache between the passes over them (largest entry,
// exponentials and sum, result; backward: mean, result). What is longer is read from memory once
// more and needs each exponential twice. Bound by exp, then by memory, which is asked for the next
// rows of a strip while there are exponentials to compute: 0.7 to 0.8 of the time in f32.
//
// Where o was rounded to bf16 or f16, it no longer adds up to one, and backward divides by its sum.
// d_o - mean is then a sum of o (d_o - d_o of the others) and as good as o is, also where one entry
// has nearly all the weight and both are nearly the same.
#include "axis_plan.h"
#include "online_columns.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/ops/act_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// Elements of a tile: 128 KiB.
template <class T>
constexpr std::int64_t room = 131072 / static_cast<std::int64_t>(sizeof(T));
constexpr std::int64_t task = 16384;  // entries that are worth a task of their own

/// How many lines side by side.
template <class T>
std::int64_t strip_width(std::int64_t length) {
  const std::int64_t fits = room<T> / std::max<std::int64_t>(length, 1);
  return fits >= 32 ? std::min(fits, widest_strip) : 128;
}

/// Calls f(begin, end) for ranges of groups.
template <int N, class F>
void for_each_task(const AxisPlan<N>& plan, std::int64_t widest, F f) {
  const std::int64_t work = plan.length * (plan.softmax_over_sequence() ? widest : 1);
  parallel_for(plan.groups(), std::max<std::int64_t>(1, task / work), f);
}

template <class T>
class Forward {
 public:
  Forward(const View& x, const View& o, int axis)
      : x_(x),
        o_(Target::write_to(o)),
        width_(strip_width<T>(x.size(axis))),
        plan_({&x, &o}, axis, width_) {}

  void run() const {
    for_each_task(plan_, width_, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) T tile[room<T>];
      if (plan_.softmax_over_sequence()) {
        plan_.each(begin, end, [&](const Group& g) { columns(g, tile); });
      } else if (plan_.length <= room<T> / few_rows) {
        plan_.template each_few<few_rows>(
            begin, end, [&](const Group* g, int count) { lines(g, count, tile); });
      } else {
        plan_.each(begin, end, [&](const Group& g) {
          plan_.length <= room<T> ? lines(&g, 1, tile) : long_line(g, tile);
        });
      }
    });
  }

 private:
  using Group = typename AxisPlan<2>::Group;

  void lines(const Group* g, int count, T* tile) const {
    const std::int64_t n = plan_.length, stride = plan_.axis_stride[1];
    const T* x[few_rows];
    T* y[few_rows];
    for (int i = 0; i < count; ++i) {
      x[i] = read_row(tile + i * n, x_, g[i].offsets[0], plan_.axis_stride[0], n);
      y[i] = place_of_row(tile + i * n, o_, g[i].offsets[1], stride, n);
    }
    softmax_rows(x, y, count, n);
    for (int i = 0; i < count; ++i) finish_row(o_, g[i].offsets[1], stride, y[i], n);
  }

  void long_line(const Group& g, T* tile) const {
    const auto each_piece = [&](auto f) {
      for (std::int64_t k = 0; k < plan_.length; k += room<T>) {
        const std::int64_t n = std::min(room<T>, plan_.length - k), stride = plan_.axis_stride[0];
        f(k, read_row(tile, x_, g.offsets[0] + k * stride, stride, n), n);
      }
    };
    T largest = -std::numeric_limits<T>::infinity(), sum = 0;
    each_piece([&](std::int64_t, const T* x, std::int64_t n) {
      const T next = row_maximum(x, n);
      largest = next > largest ? next : largest;
    });
    const auto exponentials = [&](const T* x, T factor, std::int64_t n) {
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i) tile[i] = math::exp_below(x[i] - largest) * factor;
    };
    each_piece([&](std::int64_t, const T* x, std::int64_t n) {
      exponentials(x, T(1), n);
      sum += row_sum(tile, n);
    });
    each_piece([&](std::int64_t k, const T* x, std::int64_t n) {
      exponentials(x, T(1) / sum, n);
      finish_row(o_, g.offsets[1] + k * plan_.axis_stride[1], plan_.axis_stride[1], tile, n);
    });
  }

  void columns(const Group& g, T* tile) const {
    T largest[widest_strip], inverse[widest_strip];
    const OnlineColumns<T> state{largest, inverse};
    state.start(g.width);
    const std::int64_t n = plan_.length, block = std::min(n, room<T> / g.width);
    for (std::int64_t k = 0; k < n; k += block) {
      const auto place = [&](std::int64_t i) { return tile + i * g.width; };
      // What comes next is asked for while there are exponentials to compute: the next block, or
      // the next lines, which follow where there is one strip of them.
      const auto place_and_ask = [&](std::int64_t i) {
        ask_for(x_, g.offsets[0] + (k + i + block) * plan_.axis_stride[0], plan_.column_stride[0],
                g.width);
        return place(i);
      };
      state.add_converted(
          std::min(block, n - k), g.width, [&](std::int64_t i) { return row(g, place(i), k + i); },
          place_and_ask);
    }
    state.finish(g.width);

    T buffer[widest_strip];
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t offset = g.offsets[1] + k * plan_.axis_stride[1];
      T* result = place_of_row(buffer, o_, offset, plan_.column_stride[1], g.width);
      if (block == n) {
        const T* e = tile + k * g.width;
        for (std::int64_t j = 0; j < g.width; ++j) result[j] = e[j] * inverse[j];
      } else {
        const T* x = row(g, buffer, k);
        QUIPU_VECTORIZE
        for (std::int64_t j = 0; j < g.width; ++j)
          result[j] = math::exp_below(x[j] - largest[j]) * inverse[j];
      }
      finish_row(o_, offset, plan_.column_stride[1], result, g.width);
    }
  }

  const T* row(const Group& g, T* buffer, std::int64_t k) const {
    return read_row(buffer, x_, g.offsets[0] + k * plan_.axis_stride[0], plan_.column_stride[0],
                    g.width);
  }

  const View& x_;
  Grad o_;
  std::int64_t width_;
  AxisPlan<2> plan_;
};

template <class T>
class Backward {
 public:
  Backward(const View& o, const View& d_o, const Grad& d_x, int axis)
      : o_(o),
        d_o_(d_o),
        d_x_(d_x),
        is_rounded_(is_reduced(o.dtype)),
        width_(strip_width<T>(o.size(axis))),
        plan_({&o, &d_o, &d_x_.view}, axis, width_) {}

  void run() const {
    for_each_task(plan_, width_, [&](std::int64_t begin, std::int64_t end) {
      Buffers b;
      if (plan_.softmax_over_sequence()) {
        plan_.each(begin, end, [&](const Group& g) { columns(g, b); });
      } else if (plan_.length <= longest / few_rows) {
        plan_.template each_few<few_rows>(begin, end,
                                          [&](const Group* g, int count) { lines(g, count, b); });
      } else {
        plan_.each(begin, end, [&](const Group& g) { long_line(g, b); });
      }
    });
  }

 private:
  using Group = typename AxisPlan<3>::Group;
  static constexpr std::int64_t longest = 4096;  // piece of a line
  struct Buffers {
    alignas(64) T o[longest], d_o[longest], d_x[longest];
  };

  /// Where so many entries share the weight that all of it was rounded to 0, the gradient is 0.
  T mean_of(T product, T sum) const {
    if (!is_rounded_) return product;
    return sum == T(0) ? T(0) : product / sum;
  }

  void lines(const Group* g, int count, Buffers& b) const {
    const std::int64_t n = plan_.length;
    const Offsets<3>& stride = plan_.axis_stride;
    const T *o[few_rows], *d_o[few_rows];
    T mean[few_rows];
    for (int i = 0; i < count; ++i) {
      o[i] = read_row(b.o + i * n, o_, g[i].offsets[0], stride[0], n);
      d_o[i] = read_row(b.d_o + i * n, d_o_, g[i].offsets[1], stride[1], n);
    }
    for (int i = 0; i < count; ++i) {
      mean[i] = mean_of(row_product(o[i], d_o[i], n), is_rounded_ ? row_sum(o[i], n) : T(1));
    }
    for (int i = 0; i < count; ++i) {
      write_gradient(g[i].offsets[2], o[i], d_o[i], mean[i], n, b.d_x + i * n);
    }
  }

  /// n entries of a line, from an offset on.
  void write_gradient(std::int64_t offset, const T* o, const T* d_o, T mean, std::int64_t n,
                      T* buffer) const {
    const std::int64_t stride = plan_.axis_stride[2];
    T* d_x = place_of_row(buffer, d_x_, offset, stride, n);
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) d_x[i] = o[i] * (d_o[i] - mean);
    finish_row(d_x_, offset, stride, d_x, n);
  }

  void long_line(const Group& g, Buffers& b) const {
    const Offsets<3>& stride = plan_.axis_stride;
    const std::int64_t n = plan_.length;
    T product = 0, sum = 0;
    const T *o = nullptr, *d_o = nullptr;
    const auto read = [&](std::int64_t k, std::int64_t count) {
      o = read_row(b.o, o_, g.offsets[0] + k * stride[0], stride[0], count);
      d_o = read_row(b.d_o, d_o_, g.offsets[1] + k * stride[1], stride[1], count);
    };
    for (std::int64_t k = 0; k < n; k += longest) {
      const std::int64_t count = std::min(longest, n - k);
      read(k, count);
      product += row_product(o, d_o, count);
      if (is_rounded_) sum += row_sum(o, count);
    }
    const T mean = mean_of(product, sum);
    for (std::int64_t k = 0; k < n; k += longest) {
      const std::int64_t count = std::min(longest, n - k);
      if (n > longest) read(k, count);
      write_gradient(g.offsets[2] + k * stride[2], o, d_o, mean, count, b.d_x);
    }
  }

  void columns(const Group& g, Buffers& b) const {
    constexpr std::int64_t block = 256;  // rows that are summed before they are added to the rest
    T mean[widest_strip] = {}, sum[widest_strip] = {}, part[widest_strip], sum_part[widest_strip];
    const T *o = nullptr, *d_o = nullptr;
    const auto read = [&](std::int64_t k) {
      const auto at_row = [&](std::size_t v) { return g.offsets[v] + k * plan_.axis_stride[v]; };
      o = read_row(b.o, o_, at_row(0), plan_.column_stride[0], g.width);
      d_o = read_row(b.d_o, d_o_, at_row(1), plan_.column_stride[1], g.width);
      return at_row(2);
    };
    for (std::int64_t first = 0; first < plan_.length; first += block) {
      std::fill_n(part, g.width, T(0));
      std::fill_n(sum_part, g.width, T(0));
      for (std::int64_t k = first; k < std::min(first + block, plan_.length); ++k) {
        read(k);
        QUIPU_VECTORIZE
        for (std::int64_t j = 0; j < g.width; ++j) part[j] += o[j] * d_o[j];
        if (!is_rounded_) continue;
        for (std::int64_t j = 0; j < g.width; ++j) sum_part[j] += o[j];
      }
      for (std::int64_t j = 0; j < g.width; ++j) {
        mean[j] += part[j];
        sum[j] += sum_part[j];
      }
    }
    for (std::int64_t j = 0; j < g.width; ++j) mean[j] = mean_of(mean[j], sum[j]);
    for (std::int64_t k = 0; k < plan_.length; ++k) {
      const std::int64_t offset = read(k);
      T* d_x = place_of_row(b.d_x, d_x_, offset, plan_.column_stride[2], g.width);
      QUIPU_VECTORIZE
      for (std::int64_t j = 0; j < g.width; ++j) d_x[j] = o[j] * (d_o[j] - mean[j]);
      finish_row(d_x_, offset, plan_.column_stride[2], d_x, g.width);
    }
  }

  const View& o_;
  const View& d_o_;
  const Grad& d_x_;
  bool is_rounded_;
  std::int64_t width_;
  AxisPlan<3> plan_;
};

void forward(View x, View o, View, int axis) {
  if (x.numel() == 0) return;
  x.dtype == f64 ? Forward<double>(x, o, axis).run() : Forward<float>(x, o, axis).run();
}

void backward(View o, View d_o, Grad d_x, View, int axis) {
  if (o.numel() == 0) return;
  o.dtype == f64 ? Backward<double>(o, d_o, d_x, axis).run()
                 : Backward<float>(o, d_o, d_x, axis).run();
}

}  // namespace
}  // namespace on_cpu

void register_cpu_softmax() {
  softmax_forward_kernel.provide(Variant::cpu, on_cpu::forward);
  softmax_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
