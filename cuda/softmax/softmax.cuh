#pragma once
// How softmax is split among threads, forward and backward. All dimensions but the axis make
// positions, each a line or, where 16 bytes hold several columns, a pack of lines. Lines that fit
// are held in registers between the one read and the one write; longer ones are read twice, and
// split into parts where there are few of them. A row that begins or ends inside of 16 bytes has
// its packs peeled: of the entries before and behind them, less than two packs, each thread has at
// most one.
#include <algorithm>
#include <array>

#include "column_softmax.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/act_kernels.h"

namespace quipu::detail::on_cuda {

/// Packs of rows that begin anywhere, those of all views as far from a boundary of 16 bytes.
template <class Chunk>
struct Peeled : Chunk {};
template <class Chunk>
inline constexpr bool is_peeled = false;
template <class Chunk>
inline constexpr bool is_peeled<Peeled<Chunk>> = true;

/// The lines of N views, as a kernel gets them. Units are packs of 16 bytes where those move, else
/// elements, as in peeled rows.
template <int N>
struct Lines {
  Walk<N> walk;
  std::uint32_t positions;
  std::int64_t length;  // steps along a line
  std::int64_t step[N];
  bool rows;          // packs lie along the lines
  unsigned together;  // rows: threads on a row; columns: positions side by side
  std::int64_t skew;  // peeled rows: elements from a boundary of 16 bytes to those of walk

  __device__ __forceinline__ LineTeam team() const {
    return rows ? LineTeam::rows(together) : LineTeam::columns(together);
  }
};

/// A thread's line, and where it begins in each view, in packs or single elements.
template <int N, class Chunk>
struct ThreadLine {
  static constexpr bool peeled = is_peeled<Chunk>;
  __device__ __forceinline__ ThreadLine(const Lines<N>& lines, const LineTeam& team)
      : position(blockIdx.x * team.lines + team.line),
        active(position < lines.positions),
        length(lines.length) {
    for (int v = 0; v < N; ++v) at[v] = 0;
    if (active) lines.walk.find(position, at);
    if constexpr (peeled) peel(lines, team.member);
  }
  /// Where this thread's single element lies, if it has one.
  __device__ __forceinline__ std::int64_t edge_at(int v) const {
    return at[v] * Chunk::count + edge;
  }
  std::uint32_t position;
  bool active, has_edge = false;
  std::int64_t length;  // steps
  std::int64_t at[N];
  std::int64_t edge = 0;  // from the first pack

 private:
  __device__ __forceinline__ void peel(const Lines<N>& lines, unsigned member) {
    constexpr int count = Chunk::count;
    const std::int64_t head = -(lines.skew + at[0]) & (count - 1);
    for (int v = 0; v < N; ++v) at[v] = (lines.skew + at[v] + head) / count;
    length = (lines.length - head) / count;
    edge = member < head ? member - head : length * count + member - head;
    has_edge = active && edge < lines.length - head;
  }
};

/// What a launch for long lines does: everything or, where lines are split into parts, one of two
/// passes.
enum class Pass { whole, statistics, result };

/// Parts of long lines; blockIdx.y is the number of the part.
template <class T>
struct LineParts {
  Pass pass = Pass::whole;
  std::int64_t count = 1;
  T* statistics = nullptr;  // [part][quantity][line]

  __device__ __forceinline__ std::int64_t begin(std::int64_t length) const {
    return length * blockIdx.y / count;
  }
  __device__ __forceinline__ std::int64_t end(std::int64_t length) const {
    return length * (blockIdx.y + 1) / count;
  }
};

// ---- on the host ----

/// N views of one shape, seen along an axis.
template <int N>
class SoftmaxPlan {
 public:
  SoftmaxPlan(const std::array<const View*, N>& views, int axis) : length_(views[0]->size(axis)) {
    layout_.shape = views[0]->shape;
    layout_.shape.erase(axis);
    for (std::size_t v = 0; v < N; ++v) {
      layout_.strides[v] = views[v]->strides;
      layout_.strides[v].erase(axis);
      step_[v] = views[v]->stride(axis);
    }
    lines_ = numel(layout_.shape);
    layout_ = layout_.merged();
    rows_ = step_[0] == 1;
    packed_ = seen_in_packs(views);
    peeled_ = !packed_ && can_be_peeled(views, axis);
    if (!peeled_) return;
    width_ = static_cast<std::int64_t>(16 / size_of(views[0]->dtype));
    data_ = reinterpret_cast<std::uintptr_t>(views[0]->data);
  }

  bool packed() const { return packed_; }
  bool peeled() const { return peeled_; }
  bool rows() const { return rows_; }
  std::int64_t lines() const { return lines_; }

  /// Calls f(lines, layout) for as many positions as a launch takes, usually all; `starts` of the
  /// layout are in units.
  template <class F>
  void each(unsigned together, F f) const {
    layout_.for_each_part([&](const Layout<N>& part) {
      Lines<N> lines{Walk<N>(part), static_cast<std::uint32_t>(numel(part.shape)),
                     length_,       {},
                     rows_,         together,
                     skew(part)};
      std::copy(step_.begin(), step_.end(), lines.step);
      f(lines, part);
    });
  }

  /// Lines of which each thread holds at most `most` steps. Columns are side by side in strips of
  /// 32 bytes at least.
  LineCut held(std::int64_t most) const {
    if (peeled_) {
      LineCut cut = held_rows(length_ / width_, most);
      cut.together = std::max<unsigned>(cut.together, peeled_members);
      return cut;
    }
    if (rows_) return held_rows(length_, most);
    constexpr std::int64_t usual = 4 * block_threads;  // steps of a block
    std::int64_t together = sector_packs;
    while (together < warp_size && 2 * together * length_ <= usual) together *= 2;
    together = std::min<std::int64_t>(together, power_above(positions()));
    return in_whole_warps(together * ((length_ + most - 1) / most), together);
  }
  /// Lines that are read twice.
  LineCut streamed() const {
    constexpr std::int64_t a_warps = 1024, enough_blocks = 512;
    if (rows_ && length_ <= a_warps * width_) return {block_threads, warp_size, true};
    if (rows_) return {most_threads, most_threads, true};
    std::int64_t together = packed_ ? 2 * sector_packs : std::int64_t{warp_size};
    if (packed_ && positions() < together * enough_blocks) together = sector_packs;
    together = std::min<std::int64_t>(together, power_above(positions()));
    return in_whole_warps(std::min<std::int64_t>(most_threads, together * length_), together);
  }

  /// Blocks for all positions of `lines`.
  unsigned blocks(const Lines<N>& lines, const LineCut& cut) const {
    return blocks_for(lines.positions, rows_ ? cut.threads / cut.together : cut.together);
  }
  /// Calls f(parts) once, or once for the statistics of the parts and once for the result.
  template <class T, class F>
  void each_pass(const View& workspace, F f) const {
    constexpr std::int64_t enough_blocks = 128, shortest_row = 1024;  // steps
    std::int64_t count = workspace.defined ? workspace.size(0) : 1;
    if (rows_) count = std::min({count, length_ / width_ / shortest_row, enough_blocks / lines_});
    if (count <= 1) return f(LineParts<T>{});
    f(LineParts<T>{Pass::statistics, count, workspace.as<T>()});
    f(LineParts<T>{Pass::result, count, workspace.as<T>()});
  }
  /// Bytes of shared memory for two folds of `values` numbers of type T a thread.
  template <class T>
  std::size_t fold_bytes(const LineCut& cut, int values) const {
    return 2 * sizeof(T) * LineTeam::fold_size(cut.threads, rows_ ? 1 : cut.together, values);
  }

  /// Where a view's units are counted from.
  char* address_in(const View& v, const Layout<N>& part, int number) const {
    const std::int64_t start = part.starts[static_cast<std::size_t>(number)];
    char* const first =
        v.as<char>() + start * static_cast<std::int64_t>(packed_ ? 16 : size_of(v.dtype));
    return peeled_ ? first - reinterpret_cast<std::uintptr_t>(first) % 16 : first;
  }

 private:
  static constexpr unsigned peeled_members = 16;  // single elements of a row are fewer

  std::int64_t positions() const { return numel(layout_.shape); }
  std::int64_t skew(const Layout<N>& part) const {
    const std::int64_t size = 16 / width_;
    const auto start = static_cast<std::uintptr_t>(part.starts[0] * size);
    return static_cast<std::int64_t>((data_ + start) % 16) / size;
  }
  bool can_be_peeled(const std::array<const View*, N>& views, int axis) const {
    bool fits = rows_;
    for (const View* v : views) {
      fits = fits && has_chunked_rows(*v, axis) && begin_alike(*views[0], *v, axis);
    }
    return fits;
  }

  /// Changes to units of packs if all views allow it.
  bool seen_in_packs(const std::array<const View*, N>& views) {
    const DType dtype = views[0]->dtype;
    const auto width = static_cast<std::int64_t>(16 / size_of(dtype));
    const int last = layout_.shape.size() - 1;
    bool fits = (rows_ ? length_ : layout_.shape[last]) % width == 0;
    for (std::size_t v = 0; v < N && fits; ++v) {
      const std::int64_t dense = rows_ ? step_[v] : layout_.strides[v][last];
      fits = views[v]->dtype == dtype && dense == 1 && (rows_ || step_[v] % width == 0) &&
             reinterpret_cast<std::uintptr_t>(views[v]->data) % 16 == 0;
      for (int d = 0; d < (rows_ ? last + 1 : last) && fits; ++d) {
        fits = layout_.shape[d] == 1 || layout_.strides[v][d] % width == 0;
      }
    }
    if (!fits) return false;
    (rows_ ? length_ : layout_.shape[last]) /= width;
    for (std::size_t v = 0; v < N; ++v) {
      if (!rows_) step_[v] /= width;
      for (int d = 0; d < (rows_ ? last + 1 : last); ++d) layout_.strides[v][d] /= width;
    }
    return true;
  }

  Layout<N> layout_;
  std::array<std::int64_t, N> step_{};
  std::int64_t length_, lines_ = 0;
  bool rows_ = false, packed_ = false, peeled_ = false;
  std::int64_t width_ = 1;   // peeled rows: elements of a pack; else steps are counted
  std::uintptr_t data_ = 0;  // peeled rows: of the first view
};

}  // namespace quipu::detail::on_cuda
