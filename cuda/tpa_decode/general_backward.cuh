#pragma once
// Parts of the general backward kernel of tensor product attention: the layout of shared memory,
// and products of tiles.
#include <algorithm>
#include <cmath>

#include "tpa_decode.cuh"

namespace quipu::detail::on_cuda::tpa_backward {

inline constexpr int panel_columns = 128, most_rows = 16;

/// Sizes of a call and the layout of shared memory. Pitches are odd, so that neither rows nor
/// columns have bank conflicts.
struct Plan {
  Plan(const TpaInputs& in, const View& d_o, std::size_t element)
      : heads(static_cast<int>(d_o.size(1))),
        r(static_cast<int>(in.aq.size(2))),
        d(static_cast<int>(in.bq.size(2))),
        e(static_cast<int>(d_o.size(2))),
        key_rank(static_cast<int>(in.ak.size(2))),
        value_rank(static_cast<int>((in.av.defined ? in.av : in.bv).size(2))),
        key_columns(std::min(d, panel_columns)),
        value_columns(std::min(e, panel_columns)) {
    // Together no more than lets two blocks share a multiprocessor of an A100 (164 KiB), and less
    // than the 99 KiB that a block can have on every card.
    constexpr std::size_t most_held = 56 << 10, most_tiles = 24 << 10;
    std::size_t held = element * static_cast<std::size_t>(3 * heads);
    const auto fits = [&](std::int64_t n) {
      const std::size_t bytes = static_cast<std::size_t>(n) * element;
      if (held + bytes > most_held) return false;
      held += bytes;
      return true;
    };
    query_columns = d;
    constexpr std::size_t most_queries = most_held / 2;
    if (static_cast<std::size_t>(heads * odd(d)) * element > most_queries) {
      const auto most = most_queries / element / static_cast<std::size_t>(heads);
      query_columns = static_cast<int>(std::clamp<std::size_t>(most, 2, panel_columns + 1)) - 1;
    }
    held += element * static_cast<std::size_t>(heads * odd(query_columns));
    holds_factors = fits(std::int64_t{heads} * odd(r) + std::int64_t{r} * odd(d));
    holds_d_o = fits(std::int64_t{heads} * odd(e));
    holds_sums = fits(std::int64_t{r} * (heads + d));
    rows = static_cast<int>(std::clamp<std::size_t>(
        most_tiles / (element * static_cast<std::size_t>(row_elements())), 1, most_rows));
  }
  static __host__ __device__ constexpr int odd(int n) { return n | 1; }
  int row_elements() const {
    return 4 * odd(heads) + 2 * odd(r) + odd(key_columns) + odd(value_columns);
  }
  std::size_t elements() const {
    std::size_t n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(row_elements());
    n += static_cast<std::size_t>(heads * (3 + odd(query_columns)));
    if (holds_factors) n += static_cast<std::size_t>(heads * odd(r) + r * odd(d));
    if (holds_d_o) n += static_cast<std::size_t>(heads * odd(e));
    if (holds_sums) n += static_cast<std::size_t>(r * (heads + d));
    return n;
  }
  int heads, r, d, e, key_rank, value_rank;
  int key_columns, value_columns;  // of a tile of bk and bv
  int rows;                        // of a tile
  int query_columns;               // d, or as many columns of the queries as are made at a time
  bool holds_factors, holds_d_o, holds_sums;
};

template <class T>
struct Backward : TpaBackward<T> {
  Plan plan;
  bool of_scores, of_aq, of_bq;
};

/// A matrix of one batch entry: a copy in shared memory if it fits there, else global memory.
template <class T>
struct Operand {
  __device__ __forceinline__ T operator()(int row, int column) const {
    if (held != nullptr) return held[row * pitch + column];
    return from.template at<T>(from.row(b, row), column);
  }
  __device__ __forceinline__ void hold(T* to, int rows, int columns) {
    for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += block_threads) {
      to[i / columns * Plan::odd(columns) + i % columns] =
          from.template at<T>(from.row(b, i / columns), i % columns);
    }
    held = to;
    pitch = Plan::odd(columns);
  }
  const Factor& from;
  std::int64_t b;
  T* held = nullptr;
  int pitch = 0;
};

/// A tile in shared memory.
template <class T>
struct Rows {
  __device__ __forceinline__ T& operator()(int row, int column) const {
    return data[row * pitch + column];
  }
  T* data;
  int pitch;
};

/// Calls out(i, j, start(i, j) plus the sum over k of a(i, k) b(k, j)), added in the order of k. A
/// thread accumulates 2 x 2 results at a time; lanes go along columns.
template <class T, class A, class B, class Start, class Out>
__device__ __forceinline__ void multiply_from(Start start, int rows, int columns, int depth, A a,
                                              B b, Out out) {
  const int half_rows = (rows + 1) / 2, half_columns = (columns + 1) / 2;
  for (int p = static_cast<int>(threadIdx.x); p < half_rows * half_columns; p += block_threads) {
    const int i = p / half_columns, j = p % half_columns;
    const bool has_row = i + half_rows < rows, has_column = j + half_columns < columns;
    const int second_row = has_row ? i + half_rows : i, second = has_column ? j + half_columns : j;
    T sum[2][2] = {{start(i, j), start(i, second)},
                   {start(second_row, j), start(second_row, second)}};
    for (int k = 0; k < depth; ++k) {
      const T left[2] = {a(i, k), a(second_row, k)}, right[2] = {b(k, j), b(k, second)};
#pragma unroll
      for (int x = 0; x < 2; ++x) {
#pragma unroll
        for (int y = 0; y < 2; ++y) sum[x][y] = std::fma(left[x], right[y], sum[x][y]);
      }
    }
    out(i, j, sum[0][0]);
    if (has_column) out(i, second, sum[0][1]);
    if (has_row) out(second_row, j, sum[1][0]);
    if (has_row && has_column) out(second_row, second, sum[1][1]);
  }
}
template <class T, class A, class B, class Out>
__device__ __forceinline__ void multiply(int rows, int columns, int depth, A a, B b, Out out) {
  multiply_from<T>([](int, int) { return T(0); }, rows, columns, depth, a, b, out);
}

}  // namespace quipu::detail::on_cuda::tpa_backward
