// Cross entropy. Rows are independent: chunks of them go to the threads. A row is read once, in
// pieces that stay in the first cache, with a running maximum and a running sum; backward reads it
// once and writes its gradient once. Bound by exp, then by memory. Targets are checked and counted
// beforehand, on one thread: they are few beside the logits.
#include <cmath>

#include "quipu/core/error.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/simd/vector_math.h"
#include "quipu/cpu/simd/whole_numbers.h"
#include "quipu/ops/loss/cross_entropy_kernels.h"
#include "quipu/ops/reduce/log_sum_kernels.h"
#include "rows.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t piece = 2048;
constexpr std::int64_t task = 16384;  // entries that are worth a task of their own

[[noreturn]] void fail_at(const View& targets, std::int64_t position, std::int64_t value,
                          std::int64_t classes, const CrossEntropyTargets& options) {
  if (options.ignored) {
    fail("targets at ", index_of(targets.shape, position), " is ", value, ", but there are ",
         classes, " classes (and ", *options.ignored, " is ignored)");
  }
  fail("targets at ", index_of(targets.shape, position), " is ", value, ", but there are ", classes,
       " classes");
}

void check_targets(View targets, View scale, std::int64_t classes, CrossEntropyTargets options) {
  std::int64_t count = 0;
  for_each_stretch(targets, [&](std::int64_t position, const std::int64_t* values, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (options.ignores(values[i])) continue;
      if (values[i] < 0 || values[i] >= classes) {
        fail_at(targets, position + i, values[i], classes, options);
      }
      ++count;
    }
  });
  if (!scale.defined) return;
  const double value = count > 0 ? 1 / static_cast<double>(count) : 0.0;
  store_run(scale.data, scale.dtype, 1, &value, 1);
}

/// Strides of views of the leading dimensions, one position a row.
struct RowLayout : Layout<4> {
  enum { logits, targets, d_logits, d_o };
  std::int64_t rows, classes, stride;  // the stride of the logits within a row

  RowLayout(const View& z, const View& target, const View& d_z, const View& up) {
    const int last = z.dim() - 1;
    rows = target.numel();
    classes = z.size(last);
    stride = z.stride(last);
    shape = target.shape;
    const Strides none = Dims::filled(shape.size(), 0);
    const auto leading = [&](const View& v) {
      Strides result = v.defined ? v.strides : none;
      if (result.size() > shape.size()) result.erase(last);
      return result.size() < shape.size() ? none : result;
    };
    (*this)[logits] = leading(z);
    (*this)[targets] = target.strides;
    (*this)[d_logits] = leading(d_z);
    (*this)[d_o] = leading(up);
  }

  /// Calls f(row, offsets) for all rows.
  template <class F>
  void each(F f) const {
    const Layout<4> layout = merged();
    const std::int64_t grain = std::max<std::int64_t>(1, task / std::max(classes, task / 256));
    parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
      Odometer<4> place(layout);
      place.seek(begin);
      for (std::int64_t row = begin; row < end; ++row, place.next()) f(row, place.offsets());
    });
  }
};

template <class F>
void for_each_piece(std::int64_t length, F f) {
  for (std::int64_t begin = 0; begin < length; begin += piece) {
    f(begin, std::min(piece, length - begin));
  }
}

/// What is known of a row after a part of it.
template <class T>
struct Running {
  T largest = -std::numeric_limits<T>::infinity();
  double sum = 0;    // of exp(z - largest)
  double total = 0;  // of z

  void add(const T* z, std::int64_t n, bool needs_total) {
    if (needs_total) total += static_cast<double>(row_sum(z, n));
    const T next = row_maximum(z, n);
    if (next > largest) {
      sum *= static_cast<double>(math::exp_below(largest - next));
      largest = next;
    }
    // Nothing but -infinity so far, or NaN.
    const T shift = largest == -std::numeric_limits<T>::infinity() ? T(0) : largest;
    sum += static_cast<double>(reduce_row(
        n, T(0), [=](std::int64_t i) { return math::exp_below(z[i] - shift); },
        [](T a, T b) { return a + b; }));
  }
};

/// With differences first: a log-sum-exp can be far larger than the loss.
template <class T>
double loss_of(const Running<T>& row, T wanted, double smoothing, std::int64_t classes) {
  const auto largest = static_cast<double>(row.largest);
  double loss = math::log(row.sum);
  if (smoothing < 1) loss += (1 - smoothing) * (largest - static_cast<double>(wanted));
  if (smoothing > 0) loss += smoothing * (largest - row.total / static_cast<double>(classes));
  return loss;
}

template <class T>
void rows_as(const View& logits, const View& targets, const View& lse, const View& losses,
             const CrossEntropyTargets& options) {
  const RowLayout layout(logits, targets, {}, {});
  layout.each([&](std::int64_t r, const Offsets<4>& at_row) {
    const std::int64_t start = at_row[RowLayout::logits];
    const std::int64_t target = whole_at(targets, at_row[RowLayout::targets]);
    const bool counts = !options.ignores(target);
    if (!counts && losses.defined) losses.as<T>()[r] = 0;
    if (!counts) return;  // nobody asks for its log-sum-exp
    alignas(64) T tile[piece];
    Running<T> row;
    for_each_piece(layout.classes, [&](std::int64_t begin, std::int64_t n) {
      const T* z = read_row(tile, logits, start + begin * layout.stride, layout.stride, n);
      row.add(z, n, losses.defined && options.smoothing > 0);
    });
    if (lse.defined) {
      const LogSum<T> whole = log_sum_of(row.largest, math::log(row.sum));
      lse.as<T>()[r] = whole.lse;
      lse.as<T>()[lse.stride(0) + r] = whole.rest;
    }
    if (!losses.defined) return;
    T wanted;
    load_run(&wanted, at(logits, start + target * layout.stride), logits.dtype, 1, 1);
    losses.as<T>()[r] = static_cast<T>(loss_of(row, wanted, options.smoothing, layout.classes));
  });
}

template <class T>
void gradient_as(const View& logits, const View& targets, const View& lse, const View& scale,
                 const View& d_o, const Grad& d_logits, const CrossEntropyTargets& options) {
  const RowLayout layout(logits, targets, d_logits.view, d_o);
  const std::int64_t d_stride = d_logits.view.strides.back();
  const T share = scale.defined ? *scale.as<T>() : T(1);
  const T smoothing = static_cast<T>(options.smoothing);
  const T spread = smoothing / static_cast<T>(layout.classes);
  layout.each([&](std::int64_t r, const Offsets<4>& at_row) {
    const std::int64_t target = whole_at(targets, at_row[RowLayout::targets]);
    const bool counts = !options.ignores(target);
    if (!counts && d_logits.add) return;
    T up;
    load_run(&up, at(d_o, at_row[RowLayout::d_o]), d_o.dtype, 1, 1);
    const T factor = up * share, log_sum = counts ? lse.as<T>()[r] : T(0),
            rest = counts ? lse.as<T>()[lse.stride(0) + r] : T(0);
    alignas(64) T tile[piece], buffer[piece];
    for_each_piece(layout.classes, [&](std::int64_t begin, std::int64_t n) {
      const std::int64_t place = at_row[RowLayout::d_logits] + begin * d_stride;
      T* out = place_of_row(buffer, d_logits, place, d_stride, n);
      if (counts) {
        const std::int64_t start = at_row[RowLayout::logits] + begin * layout.stride;
        const T* z = read_row(tile, logits, start, layout.stride, n);
        const bool wanted_here = target >= begin && target < begin + n;
        const T wanted = wanted_here ? z[target - begin] : T(0);  // z may be written over
        QUIPU_VECTORIZE
        for (std::int64_t i = 0; i < n; ++i) {
          out[i] = factor * (math::exp_below((z[i] - log_sum) - rest) - spread);
        }
        if (wanted_here) {
          const T difference =
              (math::exp_below((wanted - log_sum) - rest) - spread) - (1 - smoothing);
          out[target - begin] = factor * difference;
        }
      } else {
        std::fill_n(out, n, T(0));
      }
      finish_row(d_logits, place, d_stride, out, n);
    });
  });
}

void rows(View logits, View targets, View lse, View losses, CrossEntropyTargets options) {
  (logits.dtype == f64 ? rows_as<double> : rows_as<float>)(logits, targets, lse, losses, options);
}

void gradient(View logits, View targets, View lse, View scale, View d_o, Grad d_logits,
              CrossEntropyTargets options) {
  (logits.dtype == f64 ? gradient_as<double> : gradient_as<float>)(logits, targets, lse, scale, d_o,
                                                                   d_logits, options);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_cross_entropy() {
  cross_entropy_targets_kernel.provide(Variant::cpu, on_cpu::check_targets);
  cross_entropy_rows_kernel.provide(Variant::cpu, on_cpu::rows);
  cross_entropy_gradient_kernel.provide(Variant::cpu, on_cpu::gradient);
}

}  // namespace quipu::detail
