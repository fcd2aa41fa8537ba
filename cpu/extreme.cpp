// The largest or smallest entry along an axis. x is read once, which bounds it. A line that lies
// densely is scanned in blocks that stay in the first cache: the best of a block comes from vector
// instructions, and only a block that beats all before it is searched for its index. Lines side by
// side are compared row by row instead. Few long lines are cut into pieces by their length alone;
// pieces are compared in order, so the first of equal entries wins.
#include <cmath>
#include <type_traits>

#include "axis_plan.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/ops/reduce/kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t widest = 1024;        // lines side by side
constexpr std::int64_t block = 4096;         // entries of a line at a time
constexpr std::int64_t piece = 65536;        // entries that are worth a task of their own
constexpr std::int64_t most_results = 8192;  // of all pieces together

template <class T>
bool is_nan(T x) {
  return x != x;
}

/// Whether x replaces the best entry so far.
template <bool largest, class T>
bool beats(T x, T best) {
  return (largest ? x > best : x < best) || (is_nan(x) && !is_nan(best));
}

template <bool largest, class T>
T best_of(const T* values, std::int64_t n) {
  constexpr std::int64_t lanes = 256 / sizeof(T);  // some vector registers
  T best[lanes];
  const auto compare = [&](const T* next, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      best[i] = beats<largest>(next[i], best[i]) ? next[i] : best[i];
  };
  std::int64_t used = std::min(n, lanes), k = used;
  std::copy_n(values, used, best);
  for (; k + lanes <= n; k += lanes) compare(values + k, lanes);
  compare(values + k, n - k);
  for (; used > 1; used = (used + 1) / 2) compare(best + (used + 1) / 2, used / 2);
  return best[0];
}

/// Where the first entry stands that equals `value`, or is NaN as well; there is one.
template <class T>
std::int64_t first_of(T value, const T* values, std::int64_t n) {
  constexpr std::int64_t stretch = 64;
  const auto matches = [&](std::int64_t i) { return values[i] == value || is_nan(values[i]); };
  std::int64_t i = 0;
  for (; i + stretch <= n; i += stretch) {
    int any = 0;
    for (std::int64_t j = i; j < i + stretch; ++j) any |= matches(j) ? 1 : 0;
    if (any) break;
  }
  while (!matches(i)) ++i;
  return i;
}

/// n entries as T: where they are if they lie densely in that type, else converted into `buffer`.
template <class T>
const T* read(T* buffer, const View& x, std::int64_t offset, std::int64_t stride, std::int64_t n) {
  if (x.dtype == dtype_of<T> && (stride == 1 || n == 1))
    return reinterpret_cast<const T*>(at(x, offset));
  load_run(buffer, at(x, offset), x.dtype, stride, n);
  return buffer;
}

template <class T, bool largest>
class Search {
 public:
  Search(const View& x, const View& values, const View& index, int axis)
      : x_(x), values_(values), index_(index), plan_({&x_, &values_, &index_}, axis, widest) {}

  void run() const {
    const std::int64_t groups = plan_.groups();
    const std::int64_t work = plan_.length * (plan_.softmax_over_sequence() ? widest : 1);
    const bool few = groups < 8 && work > piece;
    const std::int64_t grain = few ? groups : std::max<std::int64_t>(1, piece / 4 / work);
    if (few) return plan_.each(0, groups, [&](const Group& g) { search_in_pieces(g); });
    parallel_for(groups, grain, [&](std::int64_t begin, std::int64_t end) {
      plan_.each(begin, end, [&](const Group& g) { search(g); });
    });
  }

 private:
  using Group = typename AxisPlan<3>::Group;

  void search(const Group& g) const {
    T best[widest];
    std::int64_t where[widest];
    scan(g, 0, plan_.length, best, where);
    store(g, best, where);
  }

  void search_in_pieces(const Group& g) const {
    const std::int64_t most = std::max<std::int64_t>(1, most_results / g.width);
    const std::int64_t pieces = std::clamp<std::int64_t>(plan_.length * g.width / piece, 1,
                                                         std::min<std::int64_t>(most, 64));
    const std::int64_t length = (plan_.length + pieces - 1) / pieces;
    T best[most_results];
    std::int64_t where[most_results];
    parallel_for(plan_.length, length, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t result = begin / length * g.width;
      scan(g, begin, end, best + result, where + result);
    });
    for (std::int64_t r = g.width; r < (plan_.length + length - 1) / length * g.width; ++r) {
      const std::int64_t i = r % g.width;
      if (!beats<largest>(best[r], best[i])) continue;
      best[i] = best[r];
      where[i] = where[r];
    }
    store(g, best, where);
  }

  void scan(const Group& g, std::int64_t begin, std::int64_t end, T* best,
            std::int64_t* where) const {
    if (plan_.softmax_over_sequence()) {
      scan_columns(g, begin, end, best, where);
    } else {
      scan_line(g, begin, end, best, where);
    }
  }

  void scan_line(const Group& g, std::int64_t begin, std::int64_t end, T* best,
                 std::int64_t* where) const {
    T buffer[block];
    const std::int64_t stride = plan_.axis_stride[0];
    for (std::int64_t k = begin; k < end; k += block) {
      const std::int64_t n = std::min(block, end - k);
      const T* entries = read(buffer, x_, g.offsets[0] + k * stride, stride, n);
      const T candidate = best_of<largest>(entries, n);
      if (k != begin && !beats<largest>(candidate, *best)) continue;
      *best = candidate;
      *where = index_.defined ? k + first_of(candidate, entries, n) : 0;
    }
  }

  void scan_columns(const Group& g, std::int64_t begin, std::int64_t end, T* best,
                    std::int64_t* where) const {
    // Steps as wide as the values, so that one comparison decides on both.
    using Step = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    T buffer[widest];
    Step steps[widest] = {};
    const std::int64_t stride = plan_.column_stride[0];
    const auto row = [&](std::int64_t k) {
      return read(buffer, x_, g.offsets[0] + k * plan_.axis_stride[0], stride, g.width);
    };
    std::copy_n(row(begin), g.width, best);
    for (std::int64_t k = begin + 1; k < end; ++k) {
      const T* entries = row(k);
      const auto step = static_cast<Step>(k - begin);
      for (std::int64_t i = 0; i < g.width; ++i) {
        const bool better = beats<largest>(entries[i], best[i]);
        best[i] = better ? entries[i] : best[i];
        steps[i] = better ? step : steps[i];
      }
    }
    for (std::int64_t i = 0; i < g.width; ++i) where[i] = begin + steps[i];
  }

  void store(const Group& g, const T* best, const std::int64_t* where) const {
    if (values_.defined) {
      store_run(at(values_, g.offsets[1]), values_.dtype, plan_.column_stride[1], best, g.width);
    }
    if (index_.defined)
      store_run(at(index_, g.offsets[2]), index_.dtype, plan_.column_stride[2], where, g.width);
  }

  const View& x_;
  const View& values_;
  const View& index_;
  AxisPlan<3> plan_;
};

template <class T>
void search(const View& x, const View& values, const View& index, int axis, bool largest) {
  if (largest) {
    Search<T, true>(x, values, index, axis).run();
  } else {
    Search<T, false>(x, values, index, axis).run();
  }
}

void extreme(View x, View values, View index, int axis, bool largest) {
  if (x.numel() == 0) return;
  switch (compute_type(x.dtype)) {
    case DType::f64: return search<double>(x, values, index, axis, largest);
    case DType::f32: return search<float>(x, values, index, axis, largest);
    default: return search<std::int64_t>(x, values, index, axis, largest);
  }
}

}  // namespace
}  // namespace on_cpu

void register_cpu_extreme() {
  extreme_kernel.provide(Variant::cpu, on_cpu::extreme);
}

}  // namespace quipu::detail
