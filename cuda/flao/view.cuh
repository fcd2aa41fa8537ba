#pragma once
// Strided views of q, k, v, g and their gradients in device memory, of any type and layout. A lane
// loads or stores a vector of neighbouring features: 16 bytes of the compute type.
#include <bit>

#include "flao.h"
#include "quipu/cuda/tile/rows.cuh"

namespace quipu::detail::on_cuda::gated {

/// Features of a vector.
template <class T>
inline constexpr unsigned vector_width = 16 / sizeof(T);

template <class T>
struct alignas(16) Vector {
  T values[vector_width<T>];
  __device__ __forceinline__ T& operator[](unsigned i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](unsigned i) const { return values[i]; }
};

/// Vectors move as uint4, which every compiler makes a 128-bit access of.
template <class T>
__device__ __forceinline__ Vector<T> load_vector(const T* base, unsigned i) {
  return std::bit_cast<Vector<T>>(reinterpret_cast<const uint4*>(base)[i / vector_width<T>]);
}
template <class T>
__device__ __forceinline__ void store_vector(T* base, unsigned i, const Vector<T>& v) {
  reinterpret_cast<uint4*>(base)[i / vector_width<T>] = std::bit_cast<uint4>(v);
}

__host__ __device__ constexpr unsigned rounded_up(unsigned n, unsigned step) {
  return (n + step - 1) / step * step;
}
/// Elements from row to row of a tile; one vector of padding avoids bank conflicts.
template <class T>
__host__ __device__ constexpr unsigned pitch_of(unsigned features) {
  return rounded_up(features, vector_width<T>) + vector_width<T>;
}

/// A unit is a (batch entry, head) pair.
struct FlaoUnit {
  __device__ __forceinline__ FlaoUnit(std::uint32_t unit, std::uint32_t heads)
      : index(unit), entry(unit / heads), head(unit - entry * heads) {}
  std::uint32_t index, entry, head;
};

/// A view (b, h, tokens, features) as a kernel gets it.
struct FlaoView {
  FlaoView() = default;
  explicit FlaoView(const View& v) {
    if (!v.defined) return;
    data = v.data;
    dtype = v.dtype;
    features = static_cast<std::uint32_t>(v.size(3));
    entry_step = v.stride(0);
    head_step = v.stride(1);
    token_step = v.stride(2);
    feature_step = v.size(3) > 1 ? v.stride(3) : 1;
    packed = has_packed_rows(v, 3);
  }
  __device__ __forceinline__ std::int64_t start(const FlaoUnit& unit, std::uint32_t token) const {
    return unit.entry * entry_step + unit.head * head_step + token * token_step;
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  bool packed = false;  // rows are dense and aligned to 16 bytes
  std::uint32_t features = 0;
  std::int64_t entry_step = 0, head_step = 0, token_step = 0, feature_step = 1;

  /// The vector of features from c on of the row that begins at `row`; zeros behind the last
  /// feature.
  template <class T>
  __device__ __forceinline__ Vector<T> load(std::int64_t row, unsigned c) const {
    constexpr unsigned width = vector_width<T>;
    if (packed) {
      if (dtype == dtype_of<T>) {
        return std::bit_cast<Vector<T>>(static_cast<const uint4*>(data)[(row + c) / width]);
      }
      if constexpr (std::is_same_v<T, float>) {
        if (dtype == DType::bf16) return load_reduced<__nv_bfloat16>(row + c);
        if (dtype == DType::f16) return load_reduced<__half>(row + c);
      }
    }
    if constexpr (std::is_same_v<T, float>) {
      if (dtype == DType::bf16) return gather<T, __nv_bfloat16>(row, c);
      if (dtype == DType::f16) return gather<T, __half>(row, c);
    }
    return gather<T, T>(row, c);
  }

  template <class T>
  __device__ __forceinline__ void put(std::int64_t row, unsigned c, const Vector<T>& v,
                                      bool add) const {
    constexpr unsigned width = vector_width<T>;
    const bool same = compute_type(dtype) == dtype_of<T>;
    if (packed && same) {
      Vector<T> sum = v;
      if (add) {
        const Vector<T> before = load<T>(row, c);
#pragma unroll
        for (unsigned j = 0; j < width; ++j) sum[j] += before[j];
      }
      return put_packed(row + c, sum);
    }
    switch (dtype) {
      case DType::bf16: return scatter<T, __nv_bfloat16>(row, c, v, add);
      case DType::f16: return scatter<T, __half>(row, c, v, add);
      case DType::f32: return scatter<T, float>(row, c, v, add);
      default: return scatter<T, double>(row, c, v, add);
    }
  }

 private:
  template <class T, class E>
  __device__ __forceinline__ Vector<T> gather(std::int64_t row, unsigned c) const {
    Vector<T> v;
#pragma unroll
    for (unsigned j = 0; j < vector_width<T>; ++j) {
      const std::int64_t i = row + (c + j) * feature_step;
      v[j] = c + j < features ? converted<T>(static_cast<const E*>(data)[i]) : T(0);
    }
    return v;
  }
  /// Adds in the wider of both types and rounds once.
  template <class T, class E>
  __device__ __forceinline__ void scatter(std::int64_t row, unsigned c, const Vector<T>& v,
                                          bool add) const {
    using Sum = std::conditional_t<std::is_same_v<E, double>, double, T>;
    E* const to = static_cast<E*>(data);
#pragma unroll
    for (unsigned j = 0; j < vector_width<T>; ++j) {
      const std::int64_t i = row + (c + j) * feature_step;
      if (c + j >= features) continue;
      to[i] = converted<E>(add ? converted<Sum>(to[i]) + v[j] : Sum(v[j]));
    }
  }
  template <class E>
  struct alignas(8) Four {
    E elements[4];
  };
  template <class E>
  __device__ __forceinline__ Vector<float> load_reduced(std::int64_t i) const {
    const auto four = std::bit_cast<Four<E>>(static_cast<const uint2*>(data)[i / 4]);
    Vector<float> v;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) v[j] = converted<float>(four.elements[j]);
    return v;
  }
  template <class E>
  __device__ __forceinline__ void put_reduced(std::int64_t i, const Vector<float>& v) const {
    Four<E> four;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) four.elements[j] = converted<E>(v[j]);
    static_cast<uint2*>(data)[i / 4] = std::bit_cast<uint2>(four);
  }
  template <class T>
  __device__ __forceinline__ void put_packed(std::int64_t i, const Vector<T>& v) const {
    if constexpr (std::is_same_v<T, float>) {
      if (dtype == DType::bf16) return put_reduced<__nv_bfloat16>(i, v);
      if (dtype == DType::f16) return put_reduced<__half>(i, v);
    }
    static_cast<uint4*>(data)[i / vector_width<T>] = std::bit_cast<uint4>(v);
  }
};

}  // namespace quipu::detail::on_cuda::gated
