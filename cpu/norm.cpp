// Normalisation. Rows are independent: chunks of them go to the threads. A row that fits a tile is
// read once, its passes (mean, variance, result; backward: two sums, result) run in the first
// cache; longer ones are read again for each pass. Gradients of weight and bias are summed over a
// fixed number of parts of the rows, in the same pass, and the parts are added up at the end. Bound
// by memory.
#include <cmath>

#include "quipu/core/threads/parallel.h"
#include "quipu/ops/norm_kernels.h"
#include "rows.h"
#include "workspace.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t piece = 4096;
constexpr std::int64_t task = 16384;  // entries that are worth a task of their own

/// (outer, groups, channels, inner)
struct Sizes {
  explicit Sizes(const View& x)
      : outer(x.size(0)), groups(x.size(1)), channels(x.size(2)), inner(x.size(3)) {}
  std::int64_t outer, groups, channels, inner;
  std::int64_t length() const { return channels * inner; }
};

/// Reads one row piece by piece; a row that is one piece is converted only once.
template <class T>
class RowReader {
 public:
  RowReader(const View& v, std::int64_t row, std::int64_t length)
      : view_(v), start_(row * length), whole_(length <= piece) {}
  const T* read(std::int64_t begin, std::int64_t n) {
    if (!whole_ || data_ == nullptr) data_ = read_row(tile_, view_, start_ + begin, 1, n);
    return data_;
  }

 private:
  const View& view_;
  std::int64_t start_;
  bool whole_;
  const T* data_ = nullptr;
  alignas(64) T tile_[piece];
};

template <class F>
void for_each_piece(std::int64_t length, F f) {
  for (std::int64_t begin = 0; begin < length; begin += piece) {
    f(begin, std::min(piece, length - begin));
  }
}

/// Calls f(channel, first, n) for the stretches of [begin, begin + n) that belong to one channel.
template <class F>
void for_each_channel(const Sizes& s, std::int64_t begin, std::int64_t n, F f) {
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t channel = (begin + i) / s.inner;
    const std::int64_t count = std::min(n - i, (channel + 1) * s.inner - (begin + i));
    f(channel, i, count);
    i += count;
  }
}

/// The weight (or bias) of n entries of a row.
template <class T>
const T* spread(T* tile, const View& v, T otherwise, const Sizes& s, std::int64_t group,
                std::int64_t begin, std::int64_t n) {
  if (!v.defined) {
    std::fill_n(tile, n, otherwise);
    return tile;
  }
  const std::int64_t start = group * v.stride(0), step = v.stride(1);
  if (s.inner == 1) return read_row(tile, v, start + begin * step, step, n);
  for_each_channel(s, begin, n, [&](std::int64_t c, std::int64_t first, std::int64_t count) {
    T value;
    load_run(&value, at(v, start + c * step), v.dtype, 1, 1);
    std::fill_n(tile + first, count, value);
  });
  return tile;
}

template <class T>
T sum_of(std::int64_t n, auto term) {
  return reduce_row<T>(n, T(0), term, [](T a, T b) { return a + b; });
}

template <class T>
struct Statistics {
  T mean = 0, inverse = 0;
};

template <class T>
Statistics<T> statistics(RowReader<T>& row, std::int64_t length, bool centered, double eps) {
  Statistics<T> result;
  T squares = 0;
  if (centered) {
    for_each_piece(length, [&](std::int64_t begin, std::int64_t n) {
      result.mean += row_sum(row.read(begin, n), n);
    });
    result.mean /= static_cast<T>(length);
  }
  for_each_piece(length, [&](std::int64_t begin, std::int64_t n) {
    const T* x = row.read(begin, n);
    const T mean = result.mean;
    squares += sum_of<T>(n, [=](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); });
  });
  result.inverse = T(1) / std::sqrt(squares / static_cast<T>(length) + static_cast<T>(eps));
  return result;
}

template <class T>
void forward_as(const View& x, const View& weight, const View& bias, const View& o,
                const View& mean, const View& inverse, bool centered, double eps) {
  const Sizes s(x);
  const std::int64_t length = s.length();
  const auto run_row = [&](std::int64_t r) {
    RowReader<T> row(x, r, length);
    const Statistics<T> stats = statistics(row, length, centered, eps);
    if (mean.defined) mean.as<T>()[r] = stats.mean;
    if (inverse.defined) inverse.as<T>()[r] = stats.inverse;
    if (!o.defined) return;
    const Grad to = Target::write_to(o);
    T w_tile[piece], b_tile[piece], buffer[piece];
    for_each_piece(length, [&](std::int64_t begin, std::int64_t n) {
      const T* in = row.read(begin, n);
      const T* w = spread(w_tile, weight, T(1), s, r % s.groups, begin, n);
      const T* b = spread(b_tile, bias, T(0), s, r % s.groups, begin, n);
      T* out = place_of_row(buffer, to, r * length + begin, 1, n);
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i)
        out[i] = (in[i] - stats.mean) * stats.inverse * w[i] + b[i];
      finish_row(to, r * length + begin, 1, out, n);
    });
  };
  parallel_for(s.outer * s.groups,
               std::max<std::int64_t>(1, task / std::max<std::int64_t>(length, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) run_row(r);
               });
}

template <class T>
class Backward {
 public:
  Backward(const View& x, const View& weight, const View& d_o, const View& mean,
           const View& inverse, const Grad& d_x, const Grad& d_weight, const Grad& d_bias,
           const View& parts)
      : x_(x),
        weight_(weight),
        d_o_(d_o),
        mean_(mean),
        inverse_(inverse),
        d_x_(d_x),
        d_weight_(d_weight),
        d_bias_(d_bias),
        parts_(parts),
        s_(x) {}

  void run() const {
    const std::int64_t count = norm_parts(s_.outer), length = s_.length();
    parallel_for(count * s_.groups, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        const std::int64_t part = t / s_.groups, group = t % s_.groups;
        T* d_w = d_weight_.wanted() ? part_of(part, 0, group) : nullptr;
        T* d_b = d_bias_.wanted() ? part_of(part, d_weight_.wanted(), group) : nullptr;
        if (d_w) std::fill_n(d_w, s_.channels, T(0));
        if (d_b) std::fill_n(d_b, s_.channels, T(0));
        for (std::int64_t i = s_.outer * part / count; i < s_.outer * (part + 1) / count; ++i) {
          run_row(i * s_.groups + group, length, d_w, d_b);
        }
      }
    });
    if (d_weight_.wanted()) add_parts(d_weight_, 0, count);
    if (d_bias_.wanted()) add_parts(d_bias_, d_weight_.wanted(), count);
  }

 private:
  T* part_of(std::int64_t part, std::int64_t which, std::int64_t group) const {
    return parts_.as<T>() + part * parts_.stride(0) + which * parts_.stride(1) +
           group * parts_.stride(2);
  }

  void run_row(std::int64_t r, std::int64_t length, T* d_w, T* d_b) const {
    RowReader<T> x_row(x_, r, length), up_row(d_o_, r, length);
    T w_tile[piece], buffer[piece];
    const std::int64_t group = r % s_.groups;
    const T mean = mean_.defined ? mean_.as<T>()[r] : T(0), inverse = inverse_.as<T>()[r];
    T sum = 0, product = 0;  // of d_o weight, and of that with the normalised x
    for_each_piece(length, [&](std::int64_t begin, std::int64_t n) {
      const T *x = x_row.read(begin, n), *up = up_row.read(begin, n);
      if (d_w) {
        QUIPU_VECTORIZE
        for (std::int64_t i = 0; i < n; ++i) buffer[i] = up[i] * ((x[i] - mean) * inverse);
        add_channels(d_w, buffer, begin, n);
      }
      if (d_b) add_channels(d_b, up, begin, n);
      if (!d_x_.wanted()) return;
      const T* w = spread(w_tile, weight_, T(1), s_, group, begin, n);
      if (mean_.defined) sum += row_product(up, w, n);
      product +=
          inverse * sum_of<T>(n, [=](std::int64_t i) { return up[i] * w[i] * (x[i] - mean); });
    });
    if (!d_x_.wanted()) return;
    const T a = sum / static_cast<T>(length), b = product / static_cast<T>(length) * inverse;
    for_each_piece(length, [&](std::int64_t begin, std::int64_t n) {
      const T *x = x_row.read(begin, n), *up = up_row.read(begin, n);
      const T* w = spread(w_tile, weight_, T(1), s_, group, begin, n);
      T* out = place_of_row(buffer, d_x_, r * length + begin, 1, n);
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i)
        out[i] = inverse * (up[i] * w[i] - a - (x[i] - mean) * b);
      finish_row(d_x_, r * length + begin, 1, out, n);
    });
  }

  /// Adds n entries of a row to the sums of their channels.
  void add_channels(T* sums, const T* values, std::int64_t begin, std::int64_t n) const {
    if (s_.inner == 1) {
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i) sums[begin + i] += values[i];
      return;
    }
    for_each_channel(s_, begin, n, [&](std::int64_t c, std::int64_t first, std::int64_t count) {
      sums[c] += row_sum(values + first, count);
    });
  }

  void add_parts(const Grad& g, std::int64_t which, std::int64_t count) const {
    for (std::int64_t group = 0; group < s_.groups; ++group) {
      for_each_piece(s_.channels, [&](std::int64_t begin, std::int64_t n) {
        T total[piece] = {};
        for (std::int64_t part = 0; part < count; ++part) {
          const T* values = part_of(part, which, group) + begin;
          for (std::int64_t i = 0; i < n; ++i) total[i] += values[i];
        }
        const std::int64_t step = g.view.stride(1);
        finish_row(g, group * g.view.stride(0) + begin * step, step, total, n);
      });
    }
  }

  const View &x_, &weight_, &d_o_, &mean_, &inverse_;
  const Grad &d_x_, &d_weight_, &d_bias_;
  const View& parts_;
  Sizes s_;
};

void forward(View x, View weight, View bias, View o, View mean, View inverse, bool centered,
             double eps) {
  (x.dtype == f64 ? forward_as<double> : forward_as<float>)(x, weight, bias, o, mean, inverse,
                                                            centered, eps);
}

void backward(View x, View weight, View d_o, View mean, View inverse, Grad d_x, Grad d_weight,
              Grad d_bias, View parts) {
  const auto run = [&]<class T>(T) {
    Backward<T>(x, weight, d_o, mean, inverse, d_x, d_weight, d_bias, parts).run();
  };
  x.dtype == f64 ? run(0.0) : run(0.0f);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_norm() {
  norm_forward_kernel.provide(Variant::cpu, on_cpu::forward);
  norm_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
