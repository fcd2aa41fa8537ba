#pragma once
// Products of tiles in shared memory by ordinary multiply-adds. Rows times a matrix: the matrix
// passes through shared memory in slabs of 16 of its rows, the next one prefetched in registers; a
// thread accumulates a few rows and one or two vectors of each. Columns times columns: a thread
// accumulates a square of a^T b over all tiles.
#include "transform.cuh"

namespace quipu::detail::on_cuda::gated {

/// Columns of a product that a block computes at a time.
template <class T>
inline constexpr unsigned slice_width = warp_size* vector_width<T>;
/// Rows (k) of a matrix that are in shared memory at a time.
inline constexpr unsigned slab_depth = 16;
template <class T>
inline constexpr unsigned slab_pitch = slice_width<T> + vector_width<T>;
template <class T>
inline constexpr unsigned slab_size = slab_depth* slab_pitch<T>;

/// Thread layout of a product of rows: `row_threads` threads along rows, `thread_rows` rows each.
template <class Real, unsigned thread_rows, unsigned row_threads>
struct RowShape {
  using T = Real;
  static constexpr unsigned rows = thread_rows * row_threads, per_thread = thread_rows;
  static constexpr unsigned down = row_threads, across = block_threads / row_threads;
  static constexpr unsigned groups = warp_size / across;  // vectors of a thread in each row
  static constexpr unsigned columns = groups * vector_width<T>;
};

/// A thread's accumulators: rows y + i * down, and of each the vectors x + g * across.
template <class Shape>
struct RowProduct {
  using T = typename Shape::T;
  T sums[Shape::per_thread][Shape::columns];
  unsigned x = threadIdx.x % Shape::across, y = threadIdx.x / Shape::across;

  __device__ __forceinline__ static constexpr unsigned column(unsigned x, unsigned g) {
    return (x + g * Shape::across) * vector_width<T>;
  }
  /// Stores to columns from `first` on of a tile that has `columns`.
  __device__ __forceinline__ void store(const Tile<T>& tile, unsigned first,
                                        unsigned columns) const {
    constexpr unsigned width = vector_width<T>;
#pragma unroll
    for (unsigned i = 0; i < Shape::per_thread; ++i) {
#pragma unroll
      for (unsigned g = 0; g < Shape::groups; ++g) {
        const unsigned c = first + column(x, g);
        Vector<T> v;
        for (unsigned j = 0; j < width; ++j) v[j] = sums[i][g * width + j];
        if (c < columns) store_vector(tile.row(y + i * Shape::down), c, v);
      }
    }
  }
};

/// (rows, columns), dense; seen as its transpose where `transposed`.
template <class T>
struct FlaoMatrix {
  const T* data;
  unsigned rows, columns;  // as seen
  bool transposed;

  static constexpr unsigned width = vector_width<T>, column_vectors = slab_depth / width;

  /// Loads vector i of the slab that begins at (k, c). Neighbouring i are neighbours in memory.
  __device__ __forceinline__ Vector<T> fetch(unsigned k, unsigned c, unsigned i) const {
    const unsigned line = transposed ? c + i / column_vectors : k + i / warp_size;
    const unsigned at = width * (transposed ? i % column_vectors : i % warp_size);
    const unsigned first = (transposed ? k : c) + at;
    const unsigned lines = transposed ? columns : rows, length = transposed ? rows : columns;
    const std::int64_t start = static_cast<std::int64_t>(line) * length + first;
    if (line < lines && first < length && length % width == 0) {
      return std::bit_cast<Vector<T>>(reinterpret_cast<const uint4*>(data)[start / width]);
    }
    Vector<T> v;
#pragma unroll
    for (unsigned j = 0; j < width; ++j) {
      v[j] = line < lines && first + j < length ? data[start + j] : T(0);
    }
    return v;
  }
  __device__ __forceinline__ void keep(T* slab, unsigned i, const Vector<T>& v) const {
    if (!transposed) {
      return store_vector(slab + i / warp_size * slab_pitch<T>, i % warp_size * width, v);
    }
    const unsigned row = i % column_vectors * width, column = i / column_vectors;
#pragma unroll
    for (unsigned j = 0; j < width; ++j) slab[(row + j) * slab_pitch<T> + column] = v[j];
  }
};

/// product = rows of a tile times columns from `first` on of a matrix. All threads call it; its
/// first barrier makes the tile visible. Rows without a token are zeros.
template <class Shape, class T>
__device__ __forceinline__ void multiply_rows(const Tile<T>& tile, const FlaoMatrix<T>& matrix,
                                              unsigned first, T* slab, RowProduct<Shape>& product) {
  constexpr unsigned width = vector_width<T>;
  constexpr unsigned fetches = slab_depth * warp_size / block_threads;
#pragma unroll
  for (unsigned i = 0; i < Shape::per_thread; ++i) {
#pragma unroll
    for (unsigned j = 0; j < Shape::columns; ++j) product.sums[i][j] = T(0);
  }
  const bool active = product.y < tile.valid && first + product.x * width < matrix.columns;
  Vector<T> next[fetches];
#pragma unroll
  for (unsigned f = 0; f < fetches; ++f) {
    next[f] = matrix.fetch(0, first, threadIdx.x + f * block_threads);
  }
  for (unsigned k0 = 0; k0 < matrix.rows; k0 += slab_depth) {
    __syncthreads();
#pragma unroll
    for (unsigned f = 0; f < fetches; ++f) {
      matrix.keep(slab, threadIdx.x + f * block_threads, next[f]);
    }
    __syncthreads();
    if (k0 + slab_depth < matrix.rows) {
#pragma unroll
      for (unsigned f = 0; f < fetches; ++f) {
        next[f] = matrix.fetch(k0 + slab_depth, first, threadIdx.x + f * block_threads);
      }
    }
    if (!active) continue;
    const unsigned depth = min(slab_depth, matrix.rows - k0);
#pragma unroll 1
    for (unsigned k = 0; k < depth; k += width) {
      Vector<T> a[Shape::per_thread];
#pragma unroll
      for (unsigned i = 0; i < Shape::per_thread; ++i) {
        a[i] = load_vector(tile.row(product.y + i * Shape::down), k0 + k);
      }
#pragma unroll
      for (unsigned kk = 0; kk < width; ++kk) {
#pragma unroll
        for (unsigned g = 0; g < Shape::groups; ++g) {
          const Vector<T> b =
              load_vector(slab + (k + kk) * slab_pitch<T>, product.column(product.x, g));
#pragma unroll
          for (unsigned i = 0; i < Shape::per_thread; ++i) {
#pragma unroll
            for (unsigned j = 0; j < width; ++j) {
              product.sums[i][g * width + j] += a[i][kk] * b[j];
            }
          }
        }
      }
    }
  }
}

/// Accumulators of the slice of a^T b (rows, columns) that begins at (first_row, first_column),
/// summed over tokens. Threads form a square; each has two vectors along either side.
template <class T>
struct ColumnProduct {
  static constexpr unsigned side = 16, width = vector_width<T>;
  T sums[2 * width][2 * width] = {};
  unsigned first_row, first_column, rows, columns;

  __device__ __forceinline__ unsigned row(unsigned g) const {
    return first_row + (threadIdx.x / side + g * side) * width;
  }
  __device__ __forceinline__ unsigned column(unsigned g) const {
    return first_column + (threadIdx.x % side + g * side) * width;
  }

  /// Adds the tokens of two tiles. Columns outside read column 0 instead; store() drops them.
  __device__ __forceinline__ void add(const Tile<T>& a, const Tile<T>& b) {
    if (row(0) >= rows || column(0) >= columns) return;
    const unsigned a_at[2] = {row(0), row(1) < rows ? row(1) : 0};
    const unsigned b_at[2] = {column(0), column(1) < columns ? column(1) : 0};
#pragma unroll 1
    for (unsigned t = 0; t < a.valid; ++t) {
      Vector<T> from_a[2], from_b[2];
#pragma unroll
      for (unsigned g = 0; g < 2; ++g) {
        from_a[g] = load_vector(a.row(t), a_at[g]);
        from_b[g] = load_vector(b.row(t), b_at[g]);
      }
#pragma unroll
      for (unsigned i = 0; i < 2 * width; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 2 * width; ++j) {
          sums[i][j] += from_a[i / width][i % width] * from_b[j / width][j % width];
        }
      }
    }
  }

  /// Stores the slice to a dense matrix (rows, columns).
  __device__ __forceinline__ void store(T* matrix) const {
#pragma unroll
    for (unsigned i = 0; i < 2 * width; ++i) {
      const unsigned r = row(i / width) + i % width;
#pragma unroll
      for (unsigned g = 0; g < 2; ++g) {
        const unsigned c = column(g);
        const std::int64_t start = static_cast<std::int64_t>(r) * columns + c;
        if (r >= rows || c >= columns) continue;
        Vector<T> v;
#pragma unroll
        for (unsigned j = 0; j < width; ++j) v[j] = sums[i][g * width + j];
        if (columns % width == 0) {
          reinterpret_cast<uint4*>(matrix)[start / width] = std::bit_cast<uint4>(v);
          continue;
        }
#pragma unroll
        for (unsigned j = 0; j < width; ++j) {
          if (c + j < columns) matrix[start + j] = v[j];
        }
      }
    }
  }
};

/// Slices of a row of `columns`.
template <class T>
__host__ __device__ constexpr unsigned slices_of(unsigned columns) {
  return (columns + slice_width<T> - 1) / slice_width<T>;
}

// ---- on the host ----

/// A block's shared memory: two tiles of `rows` rows, `first` and `second` features wide, and a
/// slab.
template <class T>
std::size_t flao_shared_bytes(unsigned rows, std::int64_t first, std::int64_t second) {
  const unsigned pitches =
      pitch_of<T>(static_cast<unsigned>(first)) + pitch_of<T>(static_cast<unsigned>(second));
  return sizeof(T) * (rows * pitches + slab_size<T>);
}

/// Calls f(shape) with the tallest tiles, `first` and `second` features wide, that let two blocks
/// share a multiprocessor; f64 has fewer shapes.
template <class T, class F>
void with_row_shape(std::int64_t first, std::int64_t second, F f) {
  constexpr std::size_t half_of_shared = 80 * 1024;
  constexpr unsigned most = vector_width<T>;
  if (flao_shared_bytes<T>(16 * most, first, second) <= half_of_shared)
    return f(RowShape<T, most, 16>{});
  if constexpr (std::is_same_v<T, float>) {
    if (flao_shared_bytes<T>(8 * most, first, second) <= half_of_shared) {
      return f(RowShape<T, most / 2, 16>{});
    }
  }
  f(RowShape<T, 1, 8>{});
}

}  // namespace quipu::detail::on_cuda::gated
