#pragma once
// Feeds tiles to pointwise loops: dense stretches of a compute type, whatever the operands' strides
// and element types. An operand that is dense already is passed as it lies; anything else is
// gathered and converted into a tile that stays in the first-level cache.
#include <algorithm>
#include <cstdlib>

#include "layout.h"
#include "quipu/cpu/simd/convert.h"

namespace quipu::detail::on_cpu {

/// Elements of a tile: 4 KiB. Small tiles read several operands nearly side by side, which the
/// prefetchers of the memory follow better.
template <class T>
inline constexpr std::int64_t tile_size = 4096 / static_cast<std::int64_t>(sizeof(T));

/// Elements that a thread takes at a time.
inline constexpr std::int64_t chunk_size = 32768;

/// Gathers the positions [begin, begin + n) of a layout into a dense tile, n at most `tile_size`.
/// load(out, offset, stride, count) reads a strided run. Where rows are short, or lie across
/// memory, whole blocks of them are read column by column, because a column is then the longer or
/// the denser run.
template <class T, class Load>
void gather_tile(const Layout<1>& layout, T* out, std::int64_t begin, std::int64_t n, Load load) {
  constexpr std::int64_t short_row = 16;
  const int last = layout.shape.size() - 1;
  const std::int64_t row = layout.shape[last], stride = layout[0][last];
  const std::int64_t down = last > 0 ? layout[0][last - 1] : 0;
  const bool across = down != 0 && std::abs(down) < std::abs(stride);
  const bool by_columns = last > 0 && (row < short_row || across);

  T column[tile_size<T>];
  Odometer<1> place(layout);
  place.seek(begin);
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t offset = place.offsets()[0], rest = n - done;
    const std::int64_t rows =
        by_columns && place.index()[last] == 0
            ? std::min(rest / row, layout.shape[last - 1] - place.index()[last - 1])
            : 0;
    if (rows > 1) {
      for (std::int64_t c = 0; c < row; ++c) {
        load(column, offset + c * stride, down, rows);
        for (std::int64_t r = 0; r < rows; ++r) out[done + r * row + c] = column[r];
      }
      for (std::int64_t r = 0; r < rows; ++r) place.advance(row);
      done += rows * row;
    } else {
      const std::int64_t length = std::min(rest, row - place.index()[last]);
      load(out + done, offset, stride, length);
      place.advance(length);
      done += length;
    }
  }
}

/// One operand's elements in the row-major order of a loop.
class Path {
 public:
  Path() = default;
  /// The elements of `view` in the order of the given strides, from the element at `start`.
  Path(const View& view, const Shape& shape, const Strides& strides, std::int64_t start)
      : layout_(Layout<1>{shape, {strides}}.merged()),
        data_(on_cpu::at(view, start)),
        dtype_(view.dtype) {}

  /// True when all positions are one element.
  bool repeats_one() const { return layout_.shape.size() == 1 && stride() == 0; }

  /// The elements [begin, begin + n) where they are, or null if they are not dense or not of type
  /// T.
  template <class T>
  T* dense(std::int64_t begin, std::int64_t n) const {
    if (dtype_ != dtype_of<T> || stride() != 1) return nullptr;
    if (layout_.shape.size() == 1) return static_cast<T*>(at(begin));
    if (begin % layout_.shape.back() + n > layout_.shape.back()) return nullptr;
    Odometer<1> place(layout_);
    place.seek(begin);
    return static_cast<T*>(at(place.offsets()[0]));
  }

  /// out = the elements [begin, begin + n), n at most `tile_size`.
  template <class T>
  void read(T* out, std::int64_t begin, std::int64_t n) const {
    gather_tile(layout_, out, begin, n,
                [&](T* to, std::int64_t offset, std::int64_t step, std::int64_t count) {
                  load_run(to, at(offset), dtype_, step, count);
                });
  }

  /// Writes the elements [begin, begin + n), or adds to them.
  template <class T>
  void write(const T* in, std::int64_t begin, std::int64_t n, bool add) const {
    const auto put = add ? add_run<T> : store_run<T>;
    for_each_run(layout_, begin, begin + n, n,
                 [&](std::int64_t position, std::int64_t length, const Offsets<1>& o) {
                   put(at(o[0]), dtype_, stride(), in + (position - begin), length);
                 });
  }

 private:
  std::int64_t stride() const { return layout_[0].back(); }
  void* at(std::int64_t offset) const {
    return data_ + offset * static_cast<std::int64_t>(size_of(dtype_));
  }

  Layout<1> layout_;
  char* data_ = nullptr;
  DType dtype_ = DType::f32;
};

/// What a loop reads as one of its operands: the elements of a path, or one value throughout.
template <class T>
struct Source {
  Source() = default;
  explicit Source(T v) : value(v) {}
  explicit Source(const Path& p) : path(p), constant(p.repeats_one()) {
    if (constant) path.read(&value, 0, 1);
  }
  Path path;
  T value{};
  bool constant = true;
};

/// Reads a source tile by tile; one for each thread.
template <class T>
class Reader {
 public:
  explicit Reader(const Source<T>& source) : source_(source) {}

  /// The elements [begin, begin + n), n at most `tile_size`; valid until the next call.
  const T* read(std::int64_t begin, std::int64_t n) {
    if (source_.constant) {
      for (; filled_ < n; ++filled_) tile_[filled_] = source_.value;
      return tile_;
    }
    if (const T* dense = source_.path.template dense<T>(begin, n)) return dense;
    source_.path.read(tile_, begin, n);
    return tile_;
  }

 private:
  const Source<T>& source_;
  std::int64_t filled_ = 0;
  alignas(64) T tile_[tile_size<T>];
};

}  // namespace quipu::detail::on_cpu
