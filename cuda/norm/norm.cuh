#pragma once
// What normalisation and its gradients share: x as rows, weight and bias of channels, and the packs
// of a thread.
#include <cmath>

#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/line_team.cuh"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/norm_kernels.h"

namespace quipu::detail::on_cuda {

/// (outer, groups, channels, inner)
struct NormSizes {
  explicit NormSizes(const View& x)
      : outer(x.size(0)),
        groups(x.size(1)),
        channels(x.size(2)),
        inner(x.size(3)),
        rows(static_cast<std::uint32_t>(outer * groups)),
        length(channels * inner) {
    constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
    check(length <= most && outer * groups <= most, "x is seen as ", outer * groups, " rows of ",
          length, " entries, but a device takes at most ", most, " of either");
    channel_of = Divider(static_cast<std::uint32_t>(std::max<std::int64_t>(inner, 1)));
  }
  __device__ __forceinline__ std::int64_t channel(std::int64_t k) const {
    return channel_of.quotient(static_cast<std::uint32_t>(k));
  }
  std::int64_t outer, groups, channels, inner;
  std::uint32_t rows;
  std::int64_t length;
  Divider channel_of;
};

/// A weight or bias, one number a channel.
struct PerChannel {
  PerChannel(const View& v, const NormSizes& s, double number_otherwise)
      : data(v.defined ? v.data : nullptr),
        dtype(v.dtype),
        group_step(v.defined ? v.stride(0) : 0),
        step(v.defined ? v.stride(1) : 0),
        otherwise(number_otherwise),
        packed(v.defined && s.inner == 1 && has_packed_rows(v, 1)),
        by_packs(!v.defined || packed ||
                 s.inner % static_cast<std::int64_t>(16 / size_of(v.dtype)) == 0) {}

  /// Loads those of the entries of a row from k on, which may begin before the row and end behind
  /// it.
  template <class Chunk, class T>
  __device__ __forceinline__ void load(const NormSizes& s, std::int64_t group, std::int64_t k,
                                       T (&values)[Chunk::count]) const {
    if (data != nullptr && packed && k % Chunk::count == 0) {
      return Chunk::load(data, dtype, group * group_step + k, values);
    }
    for (int j = 0; j < Chunk::count; ++j) {
      values[j] = static_cast<T>(otherwise);
      if (data == nullptr || k + j < 0 || k + j >= s.length) continue;
      values[j] = load_element<T>(data, dtype, group * group_step + s.channel(k + j) * step);
    }
  }
  /// Loads those of a pack of a row; only if by_packs.
  template <class Chunk, class T>
  __device__ __forceinline__ void load_pack(const NormSizes& s, std::int64_t group,
                                            std::int64_t pack, T (&values)[Chunk::count]) const {
    constexpr int count = Chunk::count;
    if (data != nullptr && packed) {
      return Chunk::unpack(Chunk::fetch(data, dtype, group * (group_step / count) + pack), values);
    }
    T number = static_cast<T>(otherwise);
    if (data != nullptr) {
      using Element = typename Chunk::Element;
      const std::int64_t at = group * group_step + s.channel(pack * count) * step;
      number = converted<T>(static_cast<const Element*>(data)[at]);
    }
    for (int j = 0; j < count; ++j) values[j] = number;
  }
  void* data;
  DType dtype;
  std::int64_t group_step, step;
  double otherwise;
  bool packed;
  bool by_packs;  // those of a pack are a pack, too, or one number
};

/// A thread's row and its packs: index(0), index(1), ... as far as they are inside.
struct ThreadRow {
  __device__ __forceinline__ ThreadRow(const NormSizes& s, const LineTeam& team, int count)
      : row(blockIdx.x * team.lines + team.line),
        group(row % static_cast<std::uint32_t>(s.groups)),
        member(team.member),
        members(team.members),
        packs(s.length / count),
        active(row < s.rows) {}
  __device__ __forceinline__ std::int64_t index(int v) const {
    return member + std::int64_t{v} * members;
  }
  __device__ __forceinline__ bool is_inside(int v) const { return active && index(v) < packs; }
  __device__ __forceinline__ std::int64_t at(int v) const { return row * packs + index(v); }

  std::uint32_t row;
  std::int64_t group;
  unsigned member, members;
  std::int64_t packs;
  bool active;
};

// ---- on the host ----

inline bool is_packed(const View& v) {
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 &&
         v.size(2) * v.size(3) % static_cast<std::int64_t>(16 / size_of(v.dtype)) == 0;
}
/// Whether the rows of dense views can be seen as ChunkedRow of packs, those of one view where
/// those of the other are.
inline bool is_chunked(const View& v, const View& w) {
  constexpr std::int64_t shortest = 128;
  return (is_packed(v) && is_packed(w)) ||
         (v.dtype == w.dtype && v.size(2) * v.size(3) >= shortest &&
          (reinterpret_cast<std::uintptr_t>(v.data) - reinterpret_cast<std::uintptr_t>(w.data)) %
                  16 ==
              0);
}

}  // namespace quipu::detail::on_cuda
