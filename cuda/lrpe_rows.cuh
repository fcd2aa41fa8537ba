#pragma once
// What the kernels of position encodings share: where rows lie, how work is cut, and the encoding
// of a few features and the way back.
//
// A thread has one chunk of angles (16 bytes of features where rows lie on such borders, else one)
// of a line (head, token), and goes through the batch with cos and sin in registers. A rotated pair
// is a chunk of the first half of the row and one of the second; a cosine makes two chunks of one.
// Neighbouring threads have neighbouring chunks, then neighbouring lines.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "activation.cuh"
#include "angles.cuh"
#include "rows.cuh"
#include "runtime/run.h"

namespace quipu::on_cuda {

/// Where (b, h, t, d) lies.
struct RowView {
  RowView() = default;
  explicit RowView(const View& v)
      : data(v.data),
        dtype(v.dtype),
        batch_step(v.stride(0)),
        head_step(v.stride(1)),
        token_step(v.stride(2)),
        feature_step(v.size(3) == 1 ? 1 : v.stride(3)) {}

  __device__ __forceinline__ std::int64_t line(std::uint32_t head, std::uint32_t token) const {
    return head * head_step + token * token_step;
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_step = 0, head_step = 0, token_step = 0, feature_step = 0;
};

/// Numbers that move together where they can.
template <class T, int count>
inline constexpr int vector_length = count * sizeof(T) < 16 ? 1 : static_cast<int>(16 / sizeof(T));

template <int length, class T>
__device__ __forceinline__ void load_vector(const T* data, std::int64_t i, T* values) {
  if constexpr (length == 1) {
    values[0] = data[i];
  } else {
    struct Numbers {
      T values[length];
    };
    const auto pack = std::bit_cast<Numbers>(reinterpret_cast<const uint4*>(data)[i / length]);
    for (int j = 0; j < length; ++j) values[j] = pack.values[j];
  }
}
template <int length, class T>
__device__ __forceinline__ void store_vector(T* data, std::int64_t i, const T* values) {
  if constexpr (length == 1) {
    data[i] = values[0];
  } else {
    struct Numbers {
      T values[length];
    };
    Numbers pack;
    for (int j = 0; j < length; ++j) pack.values[j] = values[j];
    reinterpret_cast<uint4*>(data)[i / length] = std::bit_cast<uint4>(pack);
  }
}

/// Chunks of a row that belong together: of x, or of an encoded row.
template <LrpeKind kind>
inline constexpr int halves_of = kind == LrpeKind::rotate ? 2 : 1;

/// Calls f(half, place) for chunks of a row, `apart` features from each other.
template <int halves, class F>
__device__ __forceinline__ void for_each_half(const RowView& v, std::int64_t start, std::uint32_t i,
                                              std::uint32_t apart, F f) {
#pragma unroll
  for (int half = 0; half < halves; ++half) {
    const std::int64_t feature = static_cast<std::int64_t>(i) + half * std::int64_t{apart};
    f(half, start + feature * v.feature_step);
  }
}
/// Chunks as they wait in registers.
template <class Chunk, int halves>
__device__ __forceinline__ void fetch_chunks(const RowView& v, std::int64_t start, std::uint32_t i,
                                             std::uint32_t apart,
                                             typename Chunk::Raw (&raw)[halves]) {
  for_each_half<halves>(v, start, i, apart, [&](int half, std::int64_t place) {
    raw[half] = Chunk::fetch(v.data, v.dtype, place / Chunk::count);
  });
}
template <class Chunk, int halves, class T>
__device__ __forceinline__ void unpack_chunks(const typename Chunk::Raw (&raw)[halves],
                                              T (&values)[halves][Chunk::count]) {
#pragma unroll
  for (int half = 0; half < halves; ++half) Chunk::unpack(raw[half], values[half]);
}
template <class Chunk, int halves, class T>
__device__ __forceinline__ void load_chunks(const RowView& v, std::int64_t start, std::uint32_t i,
                                            std::uint32_t apart,
                                            T (&values)[halves][Chunk::count]) {
  for_each_half<halves>(v, start, i, apart, [&](int half, std::int64_t place) {
    Chunk::load(v.data, v.dtype, place, values[half]);
  });
}
/// Packed chunks are of the view's own type.
template <class Chunk, int halves, class T>
__device__ __forceinline__ void put_chunks(const RowView& v, std::int64_t start, std::uint32_t i,
                                           std::uint32_t apart,
                                           const T (&values)[halves][Chunk::count], bool add) {
  for_each_half<halves>(v, start, i, apart, [&](int half, std::int64_t place) {
    if constexpr (Chunk::count == 1) {
      Chunk::put(v.data, v.dtype, place, values[half], add);
    } else {
      T sums[Chunk::count] = {};
      if (add) Chunk::load(v.data, v.dtype, place, sums);
#pragma unroll
      for (int j = 0; j < Chunk::count; ++j) {
        sums[j] = add ? sums[j] + values[half][j] : values[half][j];
      }
      static_cast<uint4*>(v.data)[place / Chunk::count] = Chunk::packed(sums);
    }
  });
}

/// cos and sin of a chunk of angles.
template <class T, int count>
struct Turns {
  T cos[count], sin[count];

  template <int halves>
  __device__ __forceinline__ void encode(const T (&y)[halves][count], T (&o)[2][count]) const {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const T a = y[0][j];
      if constexpr (halves == 2) {
        const T b = y[1][j];
        o[0][j] = a * cos[j] - b * sin[j];
        o[1][j] = a * sin[j] + b * cos[j];
      } else {
        o[0][j] = a * cos[j];
        o[1][j] = a * sin[j];
      }
    }
  }
  template <int halves>
  __device__ __forceinline__ void encode_back(const T (&d_o)[2][count],
                                              T (&d_y)[halves][count]) const {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const T a = d_o[0][j], b = d_o[1][j];
      d_y[0][j] = a * cos[j] + b * sin[j];
      if constexpr (halves == 2) d_y[1][j] = b * cos[j] - a * sin[j];
    }
  }
};

/// A chunk of angles, or of theta, in memory. Where it takes two vectors, neighbouring lanes move
/// the first vectors of both, then the second ones, and exchange them: so that whole sectors move.
template <class T, int count>
class AngleChunk {
 public:
  /// `paired`: what neighbouring lanes have lies side by side.
  __device__ __forceinline__ AngleChunk(std::int64_t place, bool paired)
      : paired_(vectors == 2 && paired), odd_(paired_ && threadIdx.x % 2 != 0) {
    first_ = odd_ ? place - count + length : place;
    step_ = paired_ ? count : length;
  }

  __device__ __forceinline__ void load(const T* table, bool works, T (&angles)[count]) const {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (works) load_vector<length>(table, first_ + v * step_, angles + v * length);
    }
    exchange(angles);
  }
  __device__ __forceinline__ void store(T* table, bool works, const T (&angles)[count]) const {
    T moved[count];
#pragma unroll
    for (int j = 0; j < count; ++j) moved[j] = angles[j];
    exchange(moved);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (works) store_vector<length>(table, first_ + v * step_, moved + v * length);
    }
  }

 private:
  static constexpr int length = vector_length<T, count>, vectors = count / length;

  /// The second vector of even lanes for the first one of odd lanes.
  __device__ __forceinline__ void exchange(T (&angles)[count]) const {
    if constexpr (vectors == 2) {
      if (!paired_) return;
#pragma unroll
      for (int j = 0; j < length; ++j) {
        const T given = odd_ ? angles[j] : angles[length + j];
        const T got = __shfl_xor_sync(all_lanes, given, 1);
        angles[j] = odd_ ? got : angles[j];
        angles[length + j] = odd_ ? angles[length + j] : got;
      }
    }
  }

  bool paired_, odd_;
  std::int64_t first_, step_;
};

/// How lines and chunks are given to threads.
template <class T>
struct RowPlan {
  /// For x-like rows (b, h, t, features); `order` tells how lines follow each other in memory. With
  /// softmax over the features, threads of a row make a power of two, so that they can fold.
  RowPlan(const RowEncoding& encoding, const View& order, std::int64_t features, int chunk,
          const View& table, bool known)
      : angles(encoding, features, order.size(2), table, known),
        act(encoding.act),
        chunks(angles.count / static_cast<std::uint32_t>(chunk)),
        batch(order.size(0)) {
    const std::int64_t heads = order.size(1), tokens = order.size(2);
    check(heads * tokens * std::bit_ceil(angles.count) < std::int64_t{1} << 31, "there are ", heads,
          " heads of ", tokens, " tokens with ", angles.count,
          " angles, but a device takes less than 2^31 angles at once");
    lines = static_cast<std::uint32_t>(heads * tokens);
    heads_inside = std::abs(order.stride(1)) < std::abs(order.stride(2));
    inside = Divider(static_cast<std::uint32_t>(heads_inside ? heads : tokens));
    team = Divider(act == Act::softmax ? std::bit_ceil(chunks) : chunks);
    if (angles.in_table) return;
    theta = find_theta(encoding.theta, order.dtype, chunk, angles.axes, angles.count);
  }

  bool folds_in_warp() const { return act != Act::softmax || team.divisor <= warp_size; }

  /// Blocks for all lines times parts of the batch: where lines are few, the batch is cut.
  dim3 grid() const {
    constexpr std::int64_t wanted = 128 * 8;  // multiprocessors and blocks that each of them holds
    const unsigned blocks = blocks_for(static_cast<std::int64_t>(lines) * team.divisor);
    const std::int64_t parts = std::clamp<std::int64_t>(wanted / blocks, 1, batch);
    return dim3(blocks, static_cast<unsigned>(parts));
  }

  struct Place {
    std::uint32_t head, token;
    std::uint32_t first;  // angle of the chunk
    bool has_work;

    __device__ __forceinline__ Place with(std::uint32_t i) const {
      return {head, token, i, has_work};
    }
  };
  template <int count>
  __device__ __forceinline__ Place place() const {
    const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
    const std::uint32_t line = team.quotient(position);
    const std::uint32_t chunk = position - line * team.divisor;
    if (line >= lines || chunk >= chunks) return {0, 0, 0, false};
    return place_of_line(line).with(chunk * count);
  }
  __device__ __forceinline__ Place place_of_line(std::uint32_t line) const {
    const std::uint32_t outer = inside.quotient(line), inner = line - outer * inside.divisor;
    return heads_inside ? Place{inner, outer, 0, true} : Place{outer, inner, 0, true};
  }
  /// The batch entries of this block are those from here on, below that of the next part.
  __device__ __forceinline__ std::int64_t batch_part(unsigned part) const {
    return batch * part / gridDim.y;
  }

  /// cos and sin of a chunk; `enter` fills the table if there is one. All threads of the warp come
  /// here together.
  template <class Chunk, int count = Chunk::count>
  __device__ __forceinline__ Turns<T, count> turns(const Place& at, bool enter) const {
    const AngleChunk<T, count> entry(angles.entry(at.head, at.token) + at.first, chunks % 2 == 0);
    T found[count] = {};
    if (angles.in_table) {
      entry.load(angles.table, at.has_work, found);
    } else if (theta != Theta::anywhere) {
      const std::uint32_t axis = angles.axes == 0 ? 0u : angles.columns.quotient(at.first);
      const std::int64_t k = at.first - axis * angles.columns.divisor;
      const std::int64_t place = at.head * angles.head_step + k;
      if (theta == Theta::as_elements) {
        if (at.has_work) Chunk::load(angles.theta, angles.dtype, place, found);
      } else {
        AngleChunk<T, count>(place, theta == Theta::in_pairs)
            .load(static_cast<const T*>(angles.theta), at.has_work, found);
      }
      const bool still = !at.has_work || angles.is_lead(at.token);
      const T position = still ? T(0) : angles.position(at.token, axis);
#pragma unroll
      for (int j = 0; j < count; ++j) found[j] = still ? T(0) : found[j] * position;
    } else {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        const std::uint32_t i = at.first + static_cast<std::uint32_t>(j);
        if (at.has_work) found[j] = angles.angle(at.head, at.token, i);
      }
    }
    if (enter && !angles.in_table && angles.table != nullptr) {
      entry.store(angles.table, at.has_work, found);
    }
    Turns<T, count> turns;
    math::sincos(found, turns.sin, turns.cos);
    return turns;
  }

  /// The fold of a value of each thread of a row; all threads of the warp come here.
  template <class Combine>
  __device__ __forceinline__ T fold(T value, Combine combine) const {
    for (std::uint32_t lanes = team.divisor / 2; lanes > 0; lanes /= 2) {
      value = combine(value, __shfl_xor_sync(all_lanes, value, static_cast<int>(lanes)));
    }
    return value;
  }

  /// How the theta of a chunk lies: somehow; side by side, like elements of the rows or as numbers
  /// of the compute type; the same, and that of two neighbours too.
  enum class Theta : std::uint8_t { anywhere, as_elements, in_vectors, in_pairs };

  static Theta find_theta(const View& v, DType element, int chunk, std::uint32_t axes,
                          std::int64_t all) {
    const std::int64_t e = v.size(1);
    const bool in_chunks = chunk > 1 && e % chunk == 0 && (axes > 0 || e == all);
    if (!in_chunks || !has_packed_rows(v, 1)) return Theta::anywhere;
    if (v.dtype == element) return Theta::as_elements;
    if (v.dtype != dtype_of<T>) return Theta::anywhere;
    return e % (2 * chunk) == 0 ? Theta::in_pairs : Theta::in_vectors;
  }

  RowAngles<T> angles;
  Act act;
  Theta theta = Theta::anywhere;
  std::uint32_t chunks, lines = 0;  // chunks of a row; one of each half
  std::int64_t batch;
  bool heads_inside = false;
  Divider inside, team;
};

/// The largest of two; NaN may be passed over: it will show in the sum.
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
__device__ __forceinline__ T plus(T a, T b) {
  return a + b;
}

/// Whether rows of this view can be cut into 16-byte chunks, each half by itself.
inline bool has_packed_halves(const View& v, std::int64_t angles) {
  return has_packed_rows(v, 3) && angles % static_cast<std::int64_t>(16 / size_of(v.dtype)) == 0;
}

/// Calls f(Chunk, kind) with the compute type, all as constants.
template <class F>
void with_chunk_and_kind(DType dtype, bool packed, LrpeKind kind, F f) {
  const auto with_kind = [&]<class T, class Chunk>(T, Chunk chunk) {
    using enum LrpeKind;
    kind == rotate ? f.template operator()<T>(chunk, std::integral_constant<LrpeKind, rotate>{})
                   : f.template operator()<T>(chunk, std::integral_constant<LrpeKind, cosine>{});
  };
  if (packed) {
    return with_packed(dtype, [&]<class T, class E>(Packed<T, E> chunk) { with_kind(T(), chunk); });
  }
  dtype == DType::f64 ? with_kind(0.0, Loose<double>{}) : with_kind(0.0f, Loose<float>{});
}

}  // namespace quipu::on_cuda
