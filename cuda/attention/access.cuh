#pragma once
// Loads and stores of the general attention kernels: rows of any type and strides to tiles in
// shared memory and back, in vectors of 16 bytes of the tile.
#include "attention.cuh"

namespace quipu::detail::on_cuda::attention_tiles {

inline constexpr int side = 64;  // rows of a tile

/// 16 bytes of numbers.
template <class T>
struct alignas(16) Vector {
  static constexpr int count = 16 / static_cast<int>(sizeof(T));
  T values[count];
};

template <class T>
__device__ __forceinline__ const Vector<T>& vector_at(const T* tile, int i) {
  return reinterpret_cast<const Vector<T>*>(tile)[i / Vector<T>::count];
}
template <class T>
__device__ __forceinline__ void put_vector(T* tile, int i, const Vector<T>& v) {
  reinterpret_cast<Vector<T>*>(tile)[i / Vector<T>::count] = v;
}

/// Which part of a matrix a tile holds. Elements beyond its end are zeros.
struct TileBounds {
  int first, end;        // rows
  int column, features;  // the first of the tile, and how many there are in all
  int wanted;            // columns of the tile that are read
};

/// A vector of a dense row of elements of type E: one access of 16 bytes, or 8 where E has 16 bits.
template <class T, class E>
struct DenseAccess {
  static constexpr int count = Vector<T>::count;
  struct alignas(count * sizeof(E)) Elements {
    E elements[count];
  };
  __device__ __forceinline__ static Vector<T> load(const AttentionView& x, std::int64_t at, int) {
    const Elements pack = static_cast<const Elements*>(x.data)[at / count];
    Vector<T> v;
#pragma unroll
    for (int j = 0; j < count; ++j) v.values[j] = converted<T>(pack.elements[j]);
    return v;
  }
  __device__ __forceinline__ static void put(const AttentionView& x, std::int64_t at, int,
                                             const Vector<T>& v, bool add) {
    Elements& target = static_cast<Elements*>(x.data)[at / count];
    Vector<T> old = {};
    if (add) old = load(x, at, count);
    Elements pack;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      pack.elements[j] = converted<E>(add ? old.values[j] + v.values[j] : v.values[j]);
    }
    target = pack;
  }
};

/// A vector of a row with any stride, element by element, `left` of them at most.
template <class T>
struct StridedAccess {
  static constexpr int count = Vector<T>::count;
  __device__ __forceinline__ static Vector<T> load(const AttentionView& x, std::int64_t at,
                                                   int left) {
    Vector<T> v = {};
#pragma unroll
    for (int j = 0; j < count; ++j) {
      if (j < left) v.values[j] = load_element(x, at + j * x.step);
    }
    return v;
  }
  __device__ __forceinline__ static void put(const AttentionView& x, std::int64_t at, int left,
                                             const Vector<T>& v, bool add) {
    for (int j = 0; j < min(count, left); ++j) {
      T value = v.values[0];
#pragma unroll
      for (int l = 1; l < count; ++l) value = l == j ? v.values[l] : value;
      put_element(x.data, x.dtype, at + j * x.step, value, add);
    }
  }

 private:
  __device__ __forceinline__ static T load_element(const AttentionView& x, std::int64_t at) {
    if constexpr (std::is_same_v<T, double>) {
      return static_cast<const double*>(x.data)[at];
    } else {
      switch (x.dtype) {
        case DType::f32: return static_cast<const float*>(x.data)[at];
        case DType::bf16: return converted<T>(static_cast<const __nv_bfloat16*>(x.data)[at]);
        default: return converted<T>(static_cast<const __half*>(x.data)[at]);
      }
    }
  }
};

/// Calls f with the access of a view. The branch is uniform.
template <class T, class F>
__device__ __forceinline__ void with_access(const AttentionView& x, F f) {
  if (!x.packed || compute_type(x.dtype) != dtype_of<T>) return f(StridedAccess<T>{});
  if constexpr (std::is_same_v<T, double>) {
    f(DenseAccess<T, double>{});
  } else {
    switch (x.dtype) {
      case DType::f32: return f(DenseAccess<T, float>{});
      case DType::bf16: return f(DenseAccess<T, __nv_bfloat16>{});
      default: return f(DenseAccess<T, __half>{});
    }
  }
}

/// Loads up to `width` columns of 64 rows. With `zero_nonfinite`, infinity and NaN become 0;
/// returns whether this thread met any.
template <bool of_queries, int width, class T>
__device__ __forceinline__ bool load_tile(T* tile, int pitch, const Attention<T>& a,
                                          const HeadOffsets& offsets, const AttentionView& x,
                                          const TileBounds& w, bool zero_nonfinite = false) {
  constexpr int lanes = Vector<T>::count, chunks = width / lanes;
  bool found = false;
  with_access<T>(x, [&](auto access) {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < side * chunks; i += block_threads) {
      const int row = w.first + i / chunks, column = i % chunks * lanes;
      if (column >= w.wanted) continue;
      Vector<T> v = {};
      const int left = w.features - w.column - column;
      if (row < w.end && left > 0) {
        v = access.load(x, offsets.start<of_queries>(a, x, row) + (w.column + column) * x.step,
                        left);
      }
#pragma unroll
      for (int j = 0; j < lanes; ++j) {
        if (!zero_nonfinite || !is_nonfinite(v.values[j])) continue;
        v.values[j] = T(0);
        found = true;
      }
      put_vector(tile, i / chunks * pitch + column, v);
    }
  });
  return found;
}

/// Stores a tile of `width` columns to the output (=|+=).
template <bool of_queries, int width, class T>
__device__ __forceinline__ void put_tile(const T* tile, const Attention<T>& a,
                                         const HeadOffsets& offsets, const TileBounds& w) {
  constexpr int lanes = Vector<T>::count, chunks = width / lanes;
  with_access<T>(a.out, [&](auto access) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < side * chunks; i += block_threads) {
      const int row = w.first + i / chunks, column = i % chunks * lanes;
      if (row >= w.end || column >= w.wanted) continue;
      access.put(a.out, offsets.start<of_queries>(a, a.out, row) + (w.column + column) * a.out.step,
                 w.wanted - column, vector_at(tile, i / chunks * width + column), a.add);
    }
  });
}

}  // namespace quipu::detail::on_cuda::attention_tiles
