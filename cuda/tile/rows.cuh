#pragma once
// Rows that a team of threads (a thread, a warp or a block) reads and writes together, one element
// or 16 bytes a thread at a time.
#include <cstdint>

#include "block.cuh"
#include "element.cuh"
#include "geometry.h"
#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cuda {

/// A chunk of one element, of a type known when the kernel runs.
template <class T>
struct Loose {
  static constexpr int count = 1;
  using Element = T;
  using Number = T;
  using Raw = T;  // loaded, not converted yet
  __device__ __forceinline__ static Raw fetch(const void* data, DType dtype, std::int64_t i) {
    return load_element<T>(data, dtype, i);
  }
  __device__ __forceinline__ static void unpack(const Raw& raw, T (&values)[1]) { values[0] = raw; }
  __device__ __forceinline__ static Raw packed(const T (&values)[1]) { return values[0]; }

  __device__ __forceinline__ static void load(const void* data, DType dtype, std::int64_t i,
                                              T (&values)[1]) {
    values[0] = load_element<T>(data, dtype, i);
  }
  __device__ __forceinline__ static void put(void* data, DType dtype, std::int64_t i,
                                             const T (&values)[1], bool add) {
    put_element(data, dtype, i, values[0], add);
  }
};

/// A chunk of 16 bytes, a pack, of elements of type E; i counts elements and is a multiple of
/// `count`.
template <class T, class E>
struct Packed {
  static constexpr int count = 16 / static_cast<int>(sizeof(E));
  struct Elements {
    E elements[count];
  };
  using Element = E;
  using Number = T;
  using Raw = uint4;  // loaded, not converted yet
  /// Here i counts packs.
  __device__ __forceinline__ static Raw fetch(const void* data, DType, std::int64_t i) {
    return static_cast<const uint4*>(data)[i];
  }
  __device__ __forceinline__ static void unpack(const Raw& raw, T (&values)[count]) {
    const auto pack = std::bit_cast<Elements>(raw);
    for (int j = 0; j < count; ++j) values[j] = converted<T>(pack.elements[j]);
  }
  __device__ __forceinline__ static Raw packed(const T (&values)[count]) {
    Elements pack;
    for (int j = 0; j < count; ++j) pack.elements[j] = converted<E>(values[j]);
    return std::bit_cast<uint4>(pack);
  }

  __device__ __forceinline__ static void load(const void* data, DType dtype, std::int64_t i,
                                              T (&values)[count]) {
    unpack(fetch(data, dtype, i / count), values);
  }
  /// Elements of another type (a wider gradient) go one by one.
  __device__ __forceinline__ static void put(void* data, DType dtype, std::int64_t i,
                                             const T (&values)[count], bool add) {
    if (dtype != element_dtype<E>) {
      for (int j = 0; j < count; ++j) put_element(data, dtype, i + j, values[j], add);
      return;
    }
    T sums[count] = {};
    if (add) load(data, dtype, i, sums);
    for (int j = 0; j < count; ++j) sums[j] = add ? sums[j] + values[j] : values[j];
    static_cast<uint4*>(data)[i / count] = packed(sums);
  }
};

/// A row in chunks. Packs are those of memory, aligned to 16 bytes: a row may begin and end inside
/// of one, of which only its own entries move, one by one. Entries of chunk k are k, k + 1, ... A
/// wider gradient, whose chunks lie elsewhere, takes those of a row that begins with a whole pack.
template <class Chunk>
class ChunkedRow {
 public:
  using T = typename Chunk::Number;
  static constexpr int count = Chunk::count;
  static constexpr std::int64_t no_end = std::numeric_limits<std::int64_t>::max();

  /// Packed rows have step 1.
  __device__ __forceinline__ ChunkedRow(void* data, DType dtype, std::int64_t start,
                                        std::int64_t step, std::int64_t length)
      : data_(data), dtype_(dtype), start_(start), step_(step), length_(length) {
    if constexpr (count > 1) {
      if (dtype != element_dtype<typename Chunk::Element>) return;  // put() stores one by one
      auto* const row = static_cast<typename Chunk::Element*>(data) + start;
      start_ = reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof *row;
      data_ = row - start_;
    }
  }
  /// A thread's first chunk, at or before 0; others of the thread follow a team's chunks later.
  __device__ __forceinline__ std::int64_t first(unsigned thread) const {
    return std::int64_t{thread} * count - (count > 1 ? start_ : 0);
  }
  /// How many chunks hold entries of the row.
  __device__ __forceinline__ std::int64_t chunks() const {
    return (length_ - first(0) + count - 1) / count;
  }
  __device__ __forceinline__ bool has(std::int64_t k) const {
    return count == 1 || (k >= 0 && k < length_);
  }
  /// Calls f(k, values) for the chunks of a thread of a team of `team` threads. Values of entries
  /// outside the row are `outside`. Of a row that is cut into pieces, a multiple of `count` long,
  /// the team has the entries of the chunks in [begin, end), counted from the first chunk.
  template <unsigned team, class F>
  __device__ __forceinline__ void each_chunk(unsigned thread, T outside, F f,
                                             std::int64_t begin = 0,
                                             std::int64_t end = no_end) const {
    end = min(length_, end == no_end ? end : first(0) + end);
    for (std::int64_t k = first(thread) + begin; k < end; k += team * count) {
      T values[count];
      for (T& value : values) value = outside;
      load(k, values);
      f(k, values);
    }
  }
  /// Calls f(value, k) for the entries of those chunks.
  template <unsigned team, class F>
  __device__ __forceinline__ void each_entry(unsigned thread, F f, std::int64_t begin = 0,
                                             std::int64_t end = no_end) const {
    const auto each = [&](std::int64_t k, const T(&values)[count]) {
      const bool whole = is_whole(k);
      for (int j = 0; j < count; ++j) {
        if (whole || has(k + j)) f(values[j], k + j);
      }
    };
    each_chunk<team>(thread, T(0), each, begin, end);
  }
  /// Values of entries outside the row stay as they are.
  __device__ __forceinline__ void load(std::int64_t k, T (&values)[count]) const {
    if (is_whole(k)) return Chunk::load(data_, dtype_, at(k), values);
    for (int j = 0; j < count; ++j) {
      const auto* const elements = static_cast<const typename Chunk::Element*>(data_);
      if (has(k + j)) values[j] = converted<T>(elements[at(k) + j]);
    }
  }
  __device__ __forceinline__ void put(std::int64_t k, const T (&values)[count], bool add) const {
    if (is_whole(k)) return Chunk::put(data_, dtype_, at(k), values, add);
    for (int j = 0; j < count; ++j) {
      if (has(k + j)) put_element(data_, dtype_, at(k) + j, values[j], add);
    }
  }

 private:
  __device__ __forceinline__ bool is_whole(std::int64_t k) const {
    return count == 1 || (k >= 0 && k + count <= length_);
  }
  __device__ __forceinline__ std::int64_t at(std::int64_t k) const {
    return count > 1 ? start_ + k : start_ + k * step_;
  }
  void* data_;
  DType dtype_;
  std::int64_t start_, step_, length_;  // start_ of packs: from a boundary of 16 bytes
};

/// A gradient that is written or added to (=|+=). Packs have the type of Chunk, single elements
/// any.
template <class Chunk>
struct GradTarget {
  static constexpr bool in_packs = Chunk::count > 1;
  void* data;
  DType dtype;
  bool add;

  /// Loads the old gradient, if it is to be added to; called early for several i, so that the loads
  /// are in flight together.
  __device__ __forceinline__ typename Chunk::Raw before(std::int64_t i) const {
    if constexpr (in_packs) {
      if (add) return Chunk::fetch(data, dtype, i);
    }
    return {};
  }
  __device__ __forceinline__ void put(std::int64_t i,
                                      typename Chunk::Number (&values)[Chunk::count],
                                      const typename Chunk::Raw& before) const {
    if constexpr (in_packs) {
      typename Chunk::Number old[Chunk::count];
      Chunk::unpack(before, old);
      for (int j = 0; j < Chunk::count; ++j) values[j] += old[j];
      static_cast<uint4*>(data)[i] = Chunk::packed(values);
    } else {
      put_element(data, dtype, i, values[0], add);
    }
  }
};

/// Calls f with an empty Packed of a real type.
template <class F>
void with_packed(DType dtype, F f) {
  switch (dtype) {
    case DType::f64: return f(Packed<double, double>{});
    case DType::f32: return f(Packed<float, float>{});
    case DType::bf16: return f(Packed<float, __nv_bfloat16>{});
    default: return f(Packed<float, __half>{});
  }
}

/// Calls f(Chunk, team) for rows of `length` that are streamed: the team is a warp or, for long
/// rows, a block.
template <class F>
void with_chunk(DType dtype, std::int64_t length, bool packed, F f) {
  constexpr std::int64_t warp_length = 1024;
  const auto with_team = [&]<class T, class Chunk>(T, Chunk chunk) {
    length <= warp_length
        ? f.template operator()<T>(chunk, std::integral_constant<unsigned, warp_size>{})
        : f.template operator()<T>(chunk, std::integral_constant<unsigned, block_threads>{});
  };
  if (packed) {
    return with_packed(dtype, [&]<class T, class E>(Packed<T, E> chunk) { with_team(T(), chunk); });
  }
  dtype == f64 ? with_team(0.0, Loose<double>{}) : with_team(0.0f, Loose<float>{});
}

/// Whether rows of real numbers along a dimension are dense, aligned to 16 bytes and whole packs.
inline bool has_packed_rows(const View& v, int axis) {
  if (!is_floating(v.dtype) || (v.size(axis) > 1 && v.stride(axis) != 1)) return false;
  const auto width = static_cast<std::int64_t>(16 / size_of(v.dtype));
  bool fits = v.size(axis) % width == 0 && reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
  for (int d = 0; d < v.dim() && fits; ++d) {
    fits = d == axis || v.size(d) == 1 || v.stride(d) % width == 0;
  }
  return fits;
}

/// Whether rows along a dimension can be seen as ChunkedRow of packs: dense, and long where they
/// are not packed.
inline bool has_chunked_rows(const View& v, int axis) {
  constexpr std::int64_t shortest = 128;
  return has_packed_rows(v, axis) ||
         (is_floating(v.dtype) && v.size(axis) >= shortest && v.stride(axis) == 1);
}
/// Whether all rows of two views of one shape begin as far from a boundary of 16 bytes.
inline bool begin_alike(const View& v, const View& w, int axis) {
  const auto behind = [](const View& x) { return reinterpret_cast<std::uintptr_t>(x.data) % 16; };
  const auto width = static_cast<std::int64_t>(16 / size_of(v.dtype));
  bool alike = v.dtype == w.dtype && behind(v) == behind(w);
  for (int d = 0; d < v.dim() && alike; ++d) {
    alike = d == axis || v.size(d) == 1 || (v.stride(d) - w.stride(d)) % width == 0;
  }
  return alike;
}

/// A team in a grid of blocks of `block_threads`: its line, and the thread's number in the team.
template <unsigned team>
struct Team {
  static constexpr unsigned per_block = block_threads / team;
  std::uint32_t line = blockIdx.x * per_block + threadIdx.x / team;
  unsigned thread = threadIdx.x % team;
};

}  // namespace quipu::detail::on_cuda
