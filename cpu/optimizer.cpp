// Updates of parameters, and the norm of all gradients. The elements of a list are cut into chunks
// of fixed size, whatever tensors they belong to, so that one large and many small ones are shared
// out alike. A tile of each operand is in the first cache while it is updated; dense operands of
// the compute type are read and written where they lie. Every operand moves once: 28 bytes an
// element for adamw in f32, 20 for lion and for sgd with momentum. Bound by memory.
#include <cmath>
#include <limits>
#include <type_traits>

#include "quipu/core/threads/parallel.h"
#include "quipu/ops/optimizer_kernels.h"
#include "rows.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t tile = 1024;
constexpr std::int64_t chunk = 32768;

/// Calls f(item, first, last) for the items, and the elements of them, that positions [begin, end)
/// of a list fall into.
template <class Item, class F>
void for_each_item(const std::vector<Item>& items, std::int64_t begin, std::int64_t end, F f) {
  const auto behind = std::upper_bound(
      items.begin(), items.end(), begin,
      [](std::int64_t position, const Item& item) { return position < item.begin; });
  for (auto item = behind - 1; item != items.end() && item->begin < end; ++item) {
    f(*item, std::max<std::int64_t>(begin - item->begin, 0),
      std::min(end - item->begin, item->numel));
  }
}

/// Calls f(offsets, strides, n) for stretches of at most a tile of N views of one shape.
template <int N, class F>
void for_each_stretch(const std::array<const View*, N>& views, std::int64_t first,
                      std::int64_t last, F f) {
  const View& shape_of = *views[0];
  bool dense = true;
  for (const View* v : views) dense = dense && (!v->defined || v->is_contiguous());
  Offsets<N> offsets, strides;
  if (dense) {
    strides.fill(1);
    for (std::int64_t i = first; i < last; i += tile) {
      offsets.fill(i);
      f(offsets, strides, std::min(tile, last - i));
    }
    return;
  }
  Layout<N> all;
  all.shape = shape_of.shape;
  for (int v = 0; v < N; ++v) {
    const View& view = *views[static_cast<std::size_t>(v)];
    all[v] = view.defined ? view.strides : shape_of.strides;
  }
  const Layout<N> layout = all.merged();
  for (int v = 0; v < N; ++v) strides[static_cast<std::size_t>(v)] = layout[v].back();
  for_each_run(layout, first, last, tile,
               [&](std::int64_t, std::int64_t n, const Offsets<N>& at) { f(at, strides, n); });
}

/// A tile of an operand that is read, changed and written back.
template <class T>
class Place {
 public:
  T* open(const View& v, std::int64_t offset, std::int64_t stride, std::int64_t n) {
    view_ = &v;
    offset_ = offset;
    stride_ = stride;
    n_ = n;
    return values_ = const_cast<T*>(read_row<T>(buffer_, v, offset, stride, n));
  }
  void close() const { finish_row(Grad::write_to(*view_), offset_, stride_, values_, n_); }

 private:
  const View* view_ = nullptr;
  std::int64_t offset_ = 0, stride_ = 1, n_ = 0;
  T* values_ = nullptr;
  alignas(64) T buffer_[tile];
};

/// change(p, g, first, second) on elements [begin, end) of one parameter; `states` of the last two
/// exist.
template <class T, int states, class Change>
void update_part(const UpdateItem& item, std::int64_t begin, std::int64_t end, T scale,
                 Change change) {
  const View& target = item.master.defined ? item.master : item.parameter;
  Place<T> p_place, first_place, second_place;
  alignas(64) T g_tile[tile];
  const auto stretch = [&](const Offsets<5>& at, const Offsets<5>& stride, std::int64_t n) {
    T* p = p_place.open(target, at[0], stride[0], n);
    const T* g = read_row<T>(g_tile, item.gradient, at[1], stride[1], n);
    T *first = nullptr, *second = nullptr;
    if constexpr (states > 0) first = first_place.open(item.first, at[2], stride[2], n);
    if constexpr (states > 1) second = second_place.open(item.second, at[3], stride[3], n);
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) {
      if constexpr (states == 0) change(p[i], g[i] * scale);
      if constexpr (states == 1) change(p[i], g[i] * scale, first[i]);
      if constexpr (states == 2) change(p[i], g[i] * scale, first[i], second[i]);
    }
    p_place.close();
    if constexpr (states > 0) first_place.close();
    if constexpr (states > 1) second_place.close();
    if (!item.master.defined) return;
    store_run(on_cpu::at(item.parameter, at[4]), item.parameter.dtype, stride[4], p, n);
  };
  for_each_stretch<5>({&target, &item.gradient, &item.first, &item.second, &item.parameter}, begin,
                      end, stretch);
}

double number_in(const View& v) {
  double value;
  load_run(&value, v.data, v.dtype, 1, 1);
  return value;
}

/// make(T(), item) gives the change of one element; T is the type that the item is computed in.
template <int states, class Make>
void update_all(const UpdateList& list, Make make) {
  if (list.skip.defined && *list.skip.as<bool>()) return;
  const double scale = list.scale.defined ? number_in(list.scale) : 1.0;
  for (const UpdateItem& item : list.items) {
    if (!item.step.defined) continue;
    auto& step = *item.step.as<std::int64_t>();
    step += step < std::numeric_limits<std::int64_t>::max();
  }
  parallel_for(list.numel, chunk, [&](std::int64_t begin, std::int64_t end) {
    for_each_item(
        list.items, begin, end, [&](const UpdateItem& item, std::int64_t first, std::int64_t last) {
          const auto run = [&]<class T>(T zero) {
            update_part<T, states>(item, first, last, static_cast<T>(scale), make(zero, item));
          };
          item.parameter.dtype == f64 ? run(0.0) : run(0.0f);
        });
  });
}

// In all of them the decay is subtracted together with the step: a factor 1 - lr decay would lose
// most of its digits in f32.

void sgd(const UpdateList& list, const SgdOptions& options) {
  const SgdOptions o = list.with_rate(options);
  const bool coupled = !o.decoupled;
  const auto run = [&]<bool ahead>(std::bool_constant<ahead>) {
    update_all<1>(list, [&]<class T>(T, const UpdateItem&) {
      const T lr = static_cast<T>(o.lr), mu = static_cast<T>(o.momentum);
      const T into = static_cast<T>(coupled ? o.weight_decay : 0);
      const T decay = static_cast<T>(coupled ? 0 : o.lr * o.weight_decay);
      return [=](T& p, T g, T& first) {
        g += into * p;
        first = mu * first + g;
        p -= decay * p + lr * (ahead ? g + mu * first : first);
      };
    });
  };
  if (o.momentum > 0) {
    return o.nesterov ? run(std::true_type()) : run(std::false_type());
  }
  update_all<0>(list, [&]<class T>(T, const UpdateItem&) {
    // Without momentum both kinds of decay are the same.
    const T lr = static_cast<T>(o.lr), decay = static_cast<T>(o.lr * o.weight_decay);
    return [=](T& p, T g) { p -= decay * p + lr * g; };
  });
}

void adamw(const UpdateList& list, const AdamWOptions& options) {
  const AdamWOptions o = list.with_rate(options);
  update_all<2>(list, [&]<class T>(T, const UpdateItem& item) {
    const auto step = static_cast<double>(*item.step.as<std::int64_t>());
    const T rate = static_cast<T>(o.lr / (1 - std::pow(o.beta1, step)));
    const T correction = static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, step)));
    const T decay = static_cast<T>(o.lr * o.weight_decay), eps = static_cast<T>(o.eps);
    const T b1 = static_cast<T>(o.beta1), a1 = static_cast<T>(1 - o.beta1);
    const T b2 = static_cast<T>(o.beta2), a2 = static_cast<T>(1 - o.beta2);
    return [=](T& p, T g, T& first, T& second) {
      first = b1 * first + a1 * g;
      second = b2 * second + a2 * g * g;
      p -= decay * p + rate * first / (std::sqrt(second) * correction + eps);
    };
  });
}

void lion(const UpdateList& list, const LionOptions& options) {
  const LionOptions o = list.with_rate(options);
  update_all<1>(list, [&]<class T>(T, const UpdateItem&) {
    const T lr = static_cast<T>(o.lr), decay = static_cast<T>(o.lr * o.weight_decay);
    const T b1 = static_cast<T>(o.beta1), a1 = static_cast<T>(1 - o.beta1);
    const T b2 = static_cast<T>(o.beta2), a2 = static_cast<T>(1 - o.beta2);
    return [=](T& p, T g, T& first) {
      const T c = b1 * first + a1 * g;
      // NaN is neither and stays, so that it shows.
      const T sign = c > 0 ? T(1) : c < 0 ? T(-1) : c;
      p -= decay * p + lr * sign;
      first = b2 * first + a2 * g;
    };
  });
}

/// The sum of squares of n elements, in f64: squares of large f32 numbers must not overflow.
double squares_of(const View& x, std::int64_t first, std::int64_t last) {
  double sum = 0;
  alignas(64) double values[tile];
  for_each_stretch<1>({&x}, first, last,
                      [&](const Offsets<1>& at, const Offsets<1>& stride, std::int64_t n) {
                        const double* row = read_row<double>(values, x, at[0], stride[0], n);
                        sum += row_product(row, row, n);
                      });
  return sum;
}

void norm_of_list(const NormList& list, View parts, View norm) {
  parallel_for(list.numel, norm_chunk, [&](std::int64_t begin, std::int64_t end) {
    double sum = 0;
    for_each_item(list.items, begin, end,
                  [&](const NormItem& item, std::int64_t first, std::int64_t last) {
                    sum += squares_of(item.x, first, last);
                  });
    parts.as<double>()[begin / norm_chunk] = sum;
  });
  double total = 0;
  for (std::int64_t i = 0; i < parts.numel(); ++i) total += parts.as<double>()[i];
  total = std::sqrt(total);
  store_run(norm.data, norm.dtype, 1, &total, 1);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_optimizer() {
  sgd_kernel.provide(Variant::cpu, on_cpu::sgd);
  adamw_kernel.provide(Variant::cpu, on_cpu::adamw);
  lion_kernel.provide(Variant::cpu, on_cpu::lion);
  global_norm_kernel.provide(Variant::cpu, on_cpu::norm_of_list);
}

}  // namespace quipu::detail
