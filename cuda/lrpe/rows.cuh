#pragma once
// What the kernels of position encodings share: views of rows, how work is split, and the encoding
// of a few features and its gradient. Rotation: RoPE (Su et al. 2021, arXiv:2104.09864) and LRPE
// (Qin et al. 2023, arXiv:2307.09270).
//
// A thread has one chunk of angles (16 bytes of features where rows are so aligned, else one) of a
// line (head, token), and loops over the batch with sin and cos in registers. A rotated pair is a
// chunk of the first half of the row and one of the second; a cosine makes two chunks of one.
// Neighbouring threads have neighbouring chunks, then neighbouring lines.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/activation.cuh"
#include "quipu/cuda/tile/angles.cuh"
#include "quipu/cuda/tile/rows.cuh"

namespace quipu::detail::on_cuda {

// Forward and backward without softmax over the sequence; `table` is filled by forward and read by
// backward, if it is defined.
void encode_lrpe_rows(const View& x, const View& o, const View& table,
                      const RowTransform& transform);
void decode_lrpe_rows(const View& x, const View& d_o, const Grad& d_x, const View& table,
                      const RowTransform& transform);

/// A view (b, h, t, d) as a kernel gets it.
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

/// Numbers of one access: 16 bytes where a chunk is that long, else one number.
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

/// Chunks of a row of x that one chunk of angles encodes.
template <LrpeKind kind>
inline constexpr int halves_of = kind == LrpeKind::rotate ? 2 : 1;

/// Calls f(half, offset) for the chunks of a row, `apart` features from each other.
template <int halves, class F>
__device__ __forceinline__ void for_each_half(const RowView& v, std::int64_t start, std::uint32_t i,
                                              std::uint32_t apart, F f) {
#pragma unroll
  for (int half = 0; half < halves; ++half) {
    const std::int64_t feature = static_cast<std::int64_t>(i) + half * std::int64_t{apart};
    f(half, start + feature * v.feature_step);
  }
}
/// Loads chunks without converting them.
template <class Chunk, int halves>
__device__ __forceinline__ void fetch_chunks(const RowView& v, std::int64_t start, std::uint32_t i,
                                             std::uint32_t apart,
                                             typename Chunk::Raw (&raw)[halves]) {
  for_each_half<halves>(v, start, i, apart, [&](int half, std::int64_t offset) {
    raw[half] = Chunk::fetch(v.data, v.dtype, offset / Chunk::count);
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
  for_each_half<halves>(v, start, i, apart, [&](int half, std::int64_t offset) {
    Chunk::load(v.data, v.dtype, offset, values[half]);
  });
}
/// Packed chunks are of the view's own type.
template <class Chunk, int halves, class T>
__device__ __forceinline__ void put_chunks(const RowView& v, std::int64_t start, std::uint32_t i,
                                           std::uint32_t apart,
                                           const T (&values)[halves][Chunk::count], bool add) {
  for_each_half<halves>(v, start, i, apart, [&](int half, std::int64_t offset) {
    if constexpr (Chunk::count == 1) {
      Chunk::put(v.data, v.dtype, offset, values[half], add);
    } else {
      T sums[Chunk::count] = {};
      if (add) Chunk::load(v.data, v.dtype, offset, sums);
#pragma unroll
      for (int j = 0; j < Chunk::count; ++j) {
        sums[j] = add ? sums[j] + values[half][j] : values[half][j];
      }
      static_cast<uint4*>(v.data)[offset / Chunk::count] = Chunk::packed(sums);
    }
  });
}

/// sin and cos of a chunk of angles.
template <class T, int count>
struct SinCosChunk {
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
  __device__ __forceinline__ void encode_gradient(const T (&d_o)[2][count],
                                                  T (&d_y)[halves][count]) const {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const T a = d_o[0][j], b = d_o[1][j];
      d_y[0][j] = a * cos[j] + b * sin[j];
      if constexpr (halves == 2) d_y[1][j] = b * cos[j] - a * sin[j];
    }
  }
};

/// A chunk of angles, or of theta, in memory. Where it takes two vectors, neighbouring lanes load
/// the first vectors of both, then the second ones, and exchange them by shuffles, so that accesses
/// cover whole sectors.
template <class T, int count>
class AngleChunk {
 public:
  /// `paired`: the chunks of neighbouring lanes are neighbours in memory.
  __device__ __forceinline__ AngleChunk(std::int64_t offset, bool paired)
      : paired_(vectors == 2 && paired), odd_(paired_ && threadIdx.x % 2 != 0) {
    first_ = odd_ ? offset - count + length : offset;
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

  /// Swaps the second vector of even lanes with the first one of odd lanes.
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

/// Which thread has which line and chunk.
template <class T>
struct RowPlan {
  /// For rows (b, h, t, features) like those of x; `order` is the view whose order of lines threads
  /// follow. With softmax over the features, the threads of a row are a power of two, for shuffles.
  RowPlan(const RowTransform& transform, const View& order, std::int64_t features, int chunk,
          const View& table, bool known)
      : angles(transform, features, order.size(2), table, known),
        act(transform.act),
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
    theta = find_theta(transform.theta, order.dtype, chunk, angles.axes, angles.count);
  }

  bool folds_in_warp() const { return act != Act::softmax || team.divisor <= warp_size; }

  /// Blocks for all lines times parts of the batch: where lines are few, the batch is split.
  dim3 grid() const {
    constexpr std::int64_t wanted = 128 * 8;  // multiprocessors and blocks that each of them holds
    const unsigned blocks = blocks_for(static_cast<std::int64_t>(lines) * team.divisor);
    const std::int64_t parts = std::clamp<std::int64_t>(wanted / blocks, 1, batch);
    return dim3(blocks, static_cast<unsigned>(parts));
  }

  struct Position {
    std::uint32_t head, token;
    std::uint32_t first;  // angle of the chunk
    bool has_work;

    __device__ __forceinline__ Position with(std::uint32_t i) const {
      return {head, token, i, has_work};
    }
  };
  template <int count>
  __device__ __forceinline__ Position chunk_position() const {
    const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
    const std::uint32_t line = team.quotient(position);
    const std::uint32_t chunk = position - line * team.divisor;
    if (line >= lines || chunk >= chunks) return {0, 0, 0, false};
    return line_position(line).with(chunk * count);
  }
  __device__ __forceinline__ Position line_position(std::uint32_t line) const {
    const std::uint32_t outer = inside.quotient(line), inner = line - outer * inside.divisor;
    return heads_inside ? Position{inner, outer, 0, true} : Position{outer, inner, 0, true};
  }
  /// The first batch entry of a part; a block has those from batch_part(blockIdx.y) to
  /// batch_part(blockIdx.y + 1).
  __device__ __forceinline__ std::int64_t batch_part(unsigned part) const {
    return batch * part / gridDim.y;
  }

  /// sin and cos of a chunk; `fill_table` also stores the angles to the table, if there is one. All
  /// threads of the warp call it.
  template <class Chunk, int count = Chunk::count>
  __device__ __forceinline__ SinCosChunk<T, count> sincos(const Position& at,
                                                          bool fill_table) const {
    const AngleChunk<T, count> entry(angles.entry(at.head, at.token) + at.first, chunks % 2 == 0);
    T found[count] = {};
    if (angles.in_table) {
      entry.load(angles.table, at.has_work, found);
    } else if (theta != Theta::anywhere) {
      const std::uint32_t axis = angles.axes == 0 ? 0u : angles.columns.quotient(at.first);
      const std::int64_t k = at.first - axis * angles.columns.divisor;
      const std::int64_t offset = at.head * angles.head_step + k;
      if (theta == Theta::as_elements) {
        if (at.has_work) Chunk::load(angles.theta, angles.dtype, offset, found);
      } else {
        AngleChunk<T, count>(offset, theta == Theta::in_pairs)
            .load(static_cast<const T*>(angles.theta), at.has_work, found);
      }
      const bool unrotated = !at.has_work || angles.is_lead(at.token);
      const T position = unrotated ? T(0) : angles.position(at.token, axis);
#pragma unroll
      for (int j = 0; j < count; ++j) found[j] = unrotated ? T(0) : found[j] * position;
    } else {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        const std::uint32_t i = at.first + static_cast<std::uint32_t>(j);
        if (at.has_work) found[j] = angles.angle(at.head, at.token, i);
      }
    }
    if (fill_table && !angles.in_table && angles.table != nullptr) {
      entry.store(angles.table, at.has_work, found);
    }
    SinCosChunk<T, count> result;
    math::sincos(found, result.sin, result.cos);
    return result;
  }

  /// Reduces over the threads of a row; all threads of the warp call it.
  template <class Combine>
  __device__ __forceinline__ T fold(T value, Combine combine) const {
    for (std::uint32_t lanes = team.divisor / 2; lanes > 0; lanes /= 2) {
      value = combine(value, __shfl_xor_sync(all_lanes, value, static_cast<int>(lanes)));
    }
    return value;
  }

  /// Layout of the theta of a chunk: any; dense, of the type of the rows; dense, of the compute
  /// type; the same, with the chunks of two neighbouring lanes side by side.
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

/// The larger of two; may ignore NaN, which shows in the sum.
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
__device__ __forceinline__ T plus(T a, T b) {
  return a + b;
}

/// Whether both halves of each row consist of aligned 16-byte chunks.
inline bool has_packed_halves(const View& v, std::int64_t angles) {
  return has_packed_rows(v, 3) && angles % static_cast<std::int64_t>(16 / size_of(v.dtype)) == 0;
}

/// Calls f<compute type>(Chunk, kind) with the kind as a constant.
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

}  // namespace quipu::detail::on_cuda
