#pragma once
// What the passes of softmax attention share. The queries of all heads that use one key head count
// as the rows of one matrix. Tiles are dense matrices of the compute type whose rows are padded to
// whole vectors, so that products need neither packing nor a rest.
#include "quipu/cpu/matmul/gemm.h"
#include "quipu/cpu/matmul/register_tiles.h"
#include "quipu/cpu/rows.h"
#include "quipu/ops/attention_kernels.h"

namespace quipu::detail::on_cpu {

/// What widths are padded to: at least one vector, and two of those that sums run in.
template <class T>
inline constexpr std::int64_t granule = 64 / sizeof(T);
template <class T>
std::int64_t padded(std::int64_t n) {
  return round_up(n, granule<T>);
}

/// Folds n entries, a whole number of granules, by `join`.
template <class T, class Join>
QUIPU_INLINE T fold_granules(const T* x, std::int64_t n, T start, Join join) {
  using Whole = typename Lanes<T>::Whole;
  constexpr std::int64_t width = 32 / sizeof(T);
  Whole even = Whole{} + start, odd = even, term;
  for (std::int64_t i = 0; i < n; i += 2 * width) {
    std::memcpy(&term, x + i, sizeof(term));
    join(even, term);
    std::memcpy(&term, x + i + width, sizeof(term));
    join(odd, term);
  }
  join(even, odd);
  return fold_lanes<T>(even, join);
}
/// NaN may be passed over: it will show in the sum.
template <class T>
T granules_maximum(const T* x, std::int64_t n) {
  return fold_granules(x, n, std::numeric_limits<T>::lowest(),
                       [](auto& a, const auto& b) { a = a > b ? a : b; });
}
template <class T>
T granules_sum(const T* x, std::int64_t n) {
  return fold_granules(x, n, T(0), [](auto& a, const auto& b) { a += b; });
}

/// Whether there is neither infinity nor NaN among them, whose product with a weight of 0 is NaN.
template <class T>
bool are_finite(const T* x, std::int64_t n) {
  return fold_granules(x, n, T(0), [](auto& a, const auto& b) { a += b - b; }) == T(0);
}

/// The tiles of a thread, meant for the stack.
template <class T>
class AttentionSpace {
 public:
  static constexpr std::int64_t size = (240 << 10) / sizeof(T);

  T* take(std::int64_t n) {
    T* const part = space_ + taken_;
    taken_ += padded<T>(n);
    return part;
  }

 private:
  alignas(64) T space_[size];
  std::int64_t taken_ = 0;
};

/// Which keys the rows of a key head attend to.
struct AttentionShape {
  AttentionShape(const AttentionInputs& in)
      : b(in.q.size(0)),
        key_heads(in.k.size(1)),
        group(key_heads > 0 ? in.q.size(1) / key_heads : 0),
        n(in.q.size(2)),
        m(in.k.size(2)),
        d(in.q.size(3)),
        causal(in.causal) {}

  std::int64_t rows() const { return group * n; }
  /// The number of keys that a row attends to; they are the first ones.
  std::int64_t limit(std::int64_t row) const {
    return causal ? std::clamp<std::int64_t>(place(row).token + 1 + m - n, 0, m) : m;
  }
  /// The head within its group, and the query of a row. Divisions are slow, and few models group
  /// heads.
  struct Place {
    std::int64_t head, token;
  };
  Place place(std::int64_t row) const { return row < n ? Place{0, row} : Place{row / n, row % n}; }

  std::int64_t b, key_heads, group, n, m, d;
  bool causal;
};

/// One batch entry and key head.
struct AttentionHead {
  std::int64_t b, key_head;

  /// Where a row of q, o or their gradients begins,
  std::int64_t query(const View& v, const AttentionShape& s, std::int64_t row) const {
    const AttentionShape::Place place = s.place(row);
    return b * v.stride(0) + (key_head * s.group + place.head) * v.stride(1) +
           place.token * v.stride(2);
  }
  /// where one of k, v or their gradients does,
  std::int64_t key(const View& v, std::int64_t row) const {
    return b * v.stride(0) + key_head * v.stride(1) + row * v.stride(2);
  }
  /// and the place of a row in what has one number a query.
  std::int64_t statistic(const AttentionShape& s, std::int64_t row) const {
    return (b * s.key_heads + key_head) * s.rows() + row;
  }
};

/// Rows of any view into a tile, padded with zeros; offset(i) says where row i begins. Rows are
/// short and may lie far apart, so those that come are asked for in advance, up to row `end`.
template <class T, class Offset>
void load_tile(T* tile, std::int64_t width, const View& v, std::int64_t rows, std::int64_t end,
               Offset offset) {
  constexpr std::int64_t ahead = 16, line = 64;
  const std::int64_t features = v.size(3);
  const auto bytes = features * static_cast<std::int64_t>(size_of(v.dtype));
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i + ahead < end) {
      const char* const next = at(v, offset(i + ahead));
      for (std::int64_t j = 0; j < bytes; j += line) __builtin_prefetch(next + j);
    }
    T* const row = tile + i * width;
    load_run(row, at(v, offset(i)), v.dtype, v.stride(3), features);
    std::fill(row + features, row + width, T(0));
  }
}

/// out (features, rows) = in^T; both are padded, and in has rows of zeros at its end.
template <class T>
void transpose_tile(T* out, std::int64_t out_width, const T* in, std::int64_t in_width,
                    std::int64_t rows, std::int64_t features) {
  constexpr std::int64_t lanes = Simd<T>::lanes;
  for (std::int64_t i = 0; i < rows; i += lanes) {
    for (std::int64_t j = 0; j < features; j += lanes) {
      transpose_square(out + j * out_width + i, out_width, in + i * in_width + j, in_width,
                       features - j);
    }
  }
}

/// A block of keys, or of values, that begins at row `first`, by rows and, if `turned` is there,
/// transposed.
template <class T>
void load_keys(T* tile, std::int64_t width, T* turned, std::int64_t turned_width, const View& v,
               const AttentionHead& head, std::int64_t first, std::int64_t keys) {
  load_tile(tile, width, v, keys, v.size(2) - first,
            [&](std::int64_t i) { return head.key(v, first + i); });
  if (turned == nullptr) return;
  std::fill(tile + keys * width, tile + padded<T>(keys) * width, T(0));
  transpose_tile(turned, turned_width, tile, width, keys, v.size(3));
}

/// Where the elements of a product's factors lie in their tiles.
struct TilePacking {
  std::int64_t row_stride, depth_stride;  // of a
  std::int64_t b_width;

  std::int64_t b_stride(std::int64_t) const { return b_width; }
  void at_step(std::int64_t) const {}
};

/// The part of a product that some rows need.
struct Extent {
  std::int64_t columns, depth;
};

/// c (=|+=) a b, where extent(i) says how much of it the six rows from row i on need.
template <class T, class F>
void multiply_tiles(std::int64_t rows, std::int64_t columns, const T* a, const T* b,
                    const TilePacking& packing, T* c, std::int64_t c_width, bool add, F extent) {
  constexpr std::int64_t lanes = Simd<T>::lanes, panel = panel_width<T>;
  for (std::int64_t j = 0; j < columns; j += panel) {
    for (std::int64_t i = 0; i < rows; i += rows_at_once) {
      const Extent e = extent(i);
      const std::int64_t vectors = (std::min(panel, e.columns - j) + lanes - 1) / lanes;
      if (vectors <= 0) continue;
      in_registers<T, TilePacking>(std::min<std::int64_t>(rows_at_once, rows - i), vectors)(
          packing, e.depth, a + i * packing.row_stride, b + j, c + i * c_width + j, c_width, add);
    }
  }
}

/// Some rows, and how many keys of a block each of them attends to.
class Attending {
 public:
  static constexpr std::int64_t most_rows = 48;

  Attending(const AttentionShape& shape, std::int64_t first_row, std::int64_t rows,
            std::int64_t first_key, std::int64_t keys) {
    for (std::int64_t i = 0; i < rows; ++i) {
      keys_[i] = std::clamp<std::int64_t>(shape.limit(first_row + i) - first_key, 0, keys);
      if (i % rows_at_once == 0) of_group_[i / rows_at_once] = 0;
      std::int64_t& most = of_group_[i / rows_at_once];
      most = std::max(most, keys_[i]);
      most_ = std::max(most_, most);
      least_ = std::min(least_, keys_[i]);
    }
  }
  std::int64_t keys(std::int64_t row) const { return keys_[row]; }
  /// The most of the six rows around one,
  std::int64_t keys_of_group(std::int64_t row) const { return of_group_[row / rows_at_once]; }
  /// and of all.
  std::int64_t most() const { return most_; }
  /// Whether some row does not attend to what another one does: its weight is 0 there, but only in
  /// products with finite numbers does it not count.
  bool is_partial() const { return least_ < most_; }

 private:
  std::int64_t keys_[most_rows], of_group_[most_rows / rows_at_once];
  std::int64_t most_ = 0, least_ = std::numeric_limits<std::int64_t>::max();
};

/// Keys in a block: as many as fill a panel of registers, fewer if a key takes so many elements
/// that they would fill more than `room`.
template <class T>
std::int64_t keys_in_block(std::int64_t elements, std::int64_t room) {
  std::int64_t keys = 64;
  while (keys > granule<T> && keys * elements > room) keys /= 2;
  return keys;
}

/// Rows that fit into `room`, in whole groups.
inline std::int64_t rows_in_room(std::int64_t room, std::int64_t elements, std::int64_t most) {
  const std::int64_t rows = std::min(most, room / std::max<std::int64_t>(elements, 1));
  return std::max<std::int64_t>(rows / rows_at_once, 1) * rows_at_once;
}

/// Rows in a unit of work: few enough for 32 units, but enough to make use of loaded keys.
inline std::int64_t rows_in_unit(const AttentionShape& s, std::int64_t most) {
  const std::int64_t units =
      std::max<std::int64_t>(32 / std::max<std::int64_t>(1, s.b * s.key_heads), 1);
  const std::int64_t wanted = std::max(Attending::most_rows, (s.rows() + units - 1) / units);
  const std::int64_t rows = even_part(s.rows(), std::min(wanted, most));
  return std::clamp<std::int64_t>(round_up(rows, rows_at_once), rows_at_once, most);
}

}  // namespace quipu::detail::on_cpu
