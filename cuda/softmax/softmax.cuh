#pragma once
// How softmax is split among threads, forward and backward. All dimensions but the axis make
// positions, each a line or, where 16 bytes hold several columns, a pack of lines. Lines that fit
// are held in registers between the one read and the one write; longer ones are read twice, and
// split into parts where there are few of them.
#include <algorithm>
#include <array>

#include "column_softmax.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/act_kernels.h"

namespace quipu::detail::on_cuda {

/// The lines of N views, as a kernel gets them. Units are packs of 16 bytes where those move, else
/// elements.
template <int N>
struct Lines {
  Walk<N> walk;
  std::uint32_t positions;
  std::int64_t length;  // steps along a line
  std::int64_t step[N];
  bool rows;          // packs lie along the lines
  unsigned together;  // rows: threads on a row; columns: positions side by side

  __device__ __forceinline__ LineTeam team() const {
    return rows ? LineTeam::rows(together) : LineTeam::columns(together);
  }
};

/// A thread's line, and where it begins in each view.
template <int N>
struct ThreadLine {
  __device__ __forceinline__ ThreadLine(const Lines<N>& lines, const LineTeam& team)
      : position(blockIdx.x * team.lines + team.line), active(position < lines.positions) {
    for (int v = 0; v < N; ++v) at[v] = 0;
    if (active) lines.walk.find(position, at);
  }
  std::uint32_t position;
  bool active;
  std::int64_t at[N];
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
  }

  bool packed() const { return packed_; }
  bool rows() const { return rows_; }
  std::int64_t length() const { return length_; }  // in steps
  std::int64_t lines() const { return lines_; }

  /// Calls f(lines, layout) for as many positions as a launch takes, usually all; `starts` of the
  /// layout are in units.
  template <class F>
  void each(unsigned together, F f) const {
    layout_.for_each_part([&](const Layout<N>& part) {
      Lines<N> lines{Walk<N>(part), static_cast<std::uint32_t>(numel(part.shape)),
                     length_,       {},
                     rows_,         together};
      std::copy(step_.begin(), step_.end(), lines.step);
      f(lines, part);
    });
  }

  /// Lines of which each thread holds at most `most` steps. Columns are side by side in strips of
  /// 32 bytes at least.
  LineCut held(std::int64_t most) const {
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
    if (rows_ && length_ <= a_warps) return {block_threads, warp_size, true};
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
    if (rows_) count = std::min({count, length_ / shortest_row, enough_blocks / lines_});
    if (count <= 1) return f(LineParts<T>{});
    f(LineParts<T>{Pass::statistics, count, workspace.as<T>()});
    f(LineParts<T>{Pass::result, count, workspace.as<T>()});
  }
  /// Bytes of shared memory for two folds of `values` numbers of type T a thread.
  template <class T>
  std::size_t fold_bytes(const LineCut& cut, int values) const {
    return 2 * sizeof(T) * LineTeam::fold_size(cut.threads, rows_ ? 1 : cut.together, values);
  }

 private:
  std::int64_t positions() const { return numel(layout_.shape); }

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
  bool rows_ = false, packed_ = false;
};

/// Where a view begins in a part of a layout whose units have `width` elements.
inline char* part_address(const View& v, std::int64_t start, bool packed) {
  return v.as<char>() + start * static_cast<std::int64_t>(packed ? 16 : size_of(v.dtype));
}

}  // namespace quipu::detail::on_cuda
