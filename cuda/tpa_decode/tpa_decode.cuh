#pragma once
// What the kernels of tensor product attention (Zhang et al. 2025, arXiv:2501.06425) share: the
// factors, how many entries of a cache are valid, how blocks split them, and where results go.
#include <limits>

#include "quipu/cuda/index/index_check.cuh"
#include "quipu/cuda/tile/block.cuh"
#include "quipu/cuda/tile/element.cuh"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/cuda/workspace.h"
#include "quipu/ops/tpa_decode/kernels.h"

namespace quipu::detail::on_cuda {

/// ak, bk, av, bv as (b, m, rank, column), or aq, bq, o as (b, row, column); any strides.
struct Factor {
  Factor() = default;
  explicit Factor(const View& v) {
    if (!v.defined || v.numel() == 0) return;
    data = v.data;
    dtype = v.dtype;
    packed = has_packed_rows(v, v.dim() - 1);
    const bool ranked = v.dim() == 4;
    for (int d = 0; d < 2; ++d) step[d] = v.stride(d);
    step[2] = ranked ? v.stride(2) : 0;
    step[3] = v.stride(v.dim() - 1);
  }
  /// Where a row begins, in elements.
  __device__ __forceinline__ std::int64_t row(std::int64_t b, std::int64_t m, int rank = 0) const {
    return b * step[0] + m * step[1] + rank * step[2];
  }
  template <class T>
  __device__ __forceinline__ T at(std::int64_t start, std::int64_t column) const {
    return load_element<T>(data, dtype, start + column * step[3]);
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  bool packed = false;  // rows are dense and aligned to 16 bytes
  std::int64_t step[4] = {};
};

/// A gradient to store to; without data it is not wanted.
struct FactorGrad : Factor {
  FactorGrad() = default;
  explicit FactorGrad(const Grad& g) : Factor(g.view), add(g.add) {}

  __device__ __forceinline__ bool wanted() const { return data != nullptr; }
  template <class T>
  __device__ __forceinline__ void put(std::int64_t start, std::int64_t column, T value) const {
    put_element(data, dtype, start + column * step[3], value, add);
  }
  bool add = false;
};

/// How many entries of the cache of each batch entry are valid.
struct EntryCounts {
  EntryCounts(const TpaInputs& in) : all(in.ak.size(1)) {
    if (!in.lengths.defined) return;
    data = in.lengths.as<std::int64_t>();
    step = in.lengths.stride(0);
  }
  /// A length that is not in [0, m] counts as 0.
  __device__ __forceinline__ std::int64_t operator[](std::int64_t b) const {
    if (data == nullptr) return all;
    const std::int64_t length = data[b * step];
    return length < 0 || length > all ? 0 : length;
  }
  /// Reports such a length; to be called by one thread.
  __device__ __forceinline__ void check(IndexGuard guard, std::int64_t b) const {
    if (data != nullptr) index_is_valid(guard, data[b * step], all + 1, b);
  }
  const std::int64_t* data = nullptr;
  std::int64_t step = 0, all;
};

/// What kernels get of every call: the factors, sizes, and how entries are split.
struct TpaCall {
  TpaCall(const TpaInputs& in, const TpaBlocks& split)
      : aq(in.aq),
        bq(in.bq),
        ak(in.ak),
        bk(in.bk),
        av(in.av),
        bv(in.bv),
        counts(in),
        blocks(split),
        heads(static_cast<int>(in.aq.size(1))),
        r(static_cast<int>(in.aq.size(2))),
        d(static_cast<int>(in.bq.size(2))),
        key_rank(static_cast<int>(in.ak.size(2))),
        value_rank(static_cast<int>((in.av.defined ? in.av : in.bv).size(2))) {}
  Factor aq, bq, ak, bk, av, bv;
  EntryCounts counts;
  TpaBlocks blocks;
  int heads, r, d, key_rank, value_rank;
};

/// The range of entries that a thread block works on: blockIdx.x = batch entry * ranges + range.
struct EntryBlock {
  __device__ __forceinline__ explicit EntryBlock(const TpaCall& call)
      : b(blockIdx.x / call.blocks.count), index(blockIdx.x % call.blocks.count) {
    const TpaBlocks& blocks = call.blocks;
    const EntryCounts& counts = call.counts;
    begin = index * blocks.length;
    last = begin + blocks.length < counts.all ? begin + blocks.length : counts.all;
    const std::int64_t count = counts[b];
    end = count < begin ? begin : count < last ? count : last;
  }
  std::int64_t b, index;
  std::int64_t begin, end, last;  // entries [begin, end) are valid, [end, last) are not
};

template <class T>
inline constexpr T minus_infinity = -std::numeric_limits<T>::infinity();

/// Where forward stores its results: o and lse or, with split-K, the block's partial ones.
template <class T>
struct ForwardTarget {
  ForwardTarget(const View& o_view, const LogSums& kept, const View& partial,
                const TpaBlocks& blocks, double scale)
      : o(o_view), heads(o_view.size(1)), e(o_view.size(2)), value_scale(static_cast<T>(scale)) {
    if (kept.lse.defined) {
      lse = kept.lse.as<T>();
      rest = kept.rest.as<T>();
      lse_step[0] = kept.lse.stride(0);
      lse_step[1] = kept.lse.stride(1);
    }
    if (blocks.count == 1) return;
    outputs = partial.as<T>();
    sums = outputs + o_view.size(0) * blocks.count * heads * e;
    rests = sums + o_view.size(0) * blocks.count * heads;
  }
  /// What a head's accumulators are multiplied with; 0 without entries.
  __device__ __forceinline__ T factor(T sum) const {
    return sum == T(0) ? T(0) : value_scale / sum;
  }
  __device__ __forceinline__ void put_lse(std::int64_t b, std::int64_t head,
                                          const LogSum<T>& value) const {
    if (lse == nullptr) return;
    const std::int64_t to = b * lse_step[0] + head * lse_step[1];
    lse[to] = value.lse;
    rest[to] = value.rest;
  }
  /// The log-sum-exp of a head from its largest score and the sum of exponentials.
  __device__ __forceinline__ void put_sum(std::int64_t b, std::int64_t head, T largest,
                                          T sum) const {
    const LogSum<T> value = log_sum_of(largest, std::log(sum));
    if (sums == nullptr) return put_lse(b, head, value);
    sums[blockIdx.x * heads + head] = value.lse;
    rests[blockIdx.x * heads + head] = value.rest;
  }

  /// One element of the output, or of the block's partial output.
  __device__ __forceinline__ void put(std::int64_t b, std::int64_t head, std::int64_t column,
                                      T value) const {
    if (outputs == nullptr) return put_output(b, head, column, value);
    outputs[(blockIdx.x * heads + head) * e + column] = value;
  }
  __device__ __forceinline__ void put_output(std::int64_t b, std::int64_t head, std::int64_t column,
                                             T value) const {
    store_element(o.data, o.dtype, o.row(b, head) + column * o.step[3], value);
  }

  Factor o;
  std::int64_t heads, e;
  T value_scale, without_weights = T(0);  // the latter stands for 1 / 0
  T *lse = nullptr, *rest = nullptr;
  std::int64_t lse_step[2] = {};
  T* outputs = nullptr;  // (b, block, h, e); null where there is one block
  T* sums = nullptr;     // (b, block, h): log-sum-exps
  T* rests = nullptr;    // likewise their low parts
};

template <class T>
struct TpaForward : TpaCall {
  TpaForward(const TpaInputs& in, const TpaBlocks& split, IndexGuard lengths_guard,
             const ForwardTarget<T>& target)
      : TpaCall(in, split),
        guard(lengths_guard),
        to(target),
        score_scale(static_cast<T>(in.score_scale)) {}
  IndexGuard guard;
  ForwardTarget<T> to;
  T score_scale;
};

template <class T>
struct TpaBackward : TpaCall {
  TpaBackward(const TpaInputs& in, const View& o_view, const LogSums& sums, const View& d_o_view,
              const TpaInputGrads& d, const View& partial, const TpaBlocks& split)
      : TpaCall(in, split),
        o(o_view),
        d_o(d_o_view),
        d_ak(d.ak),
        d_bk(d.bk),
        d_av(d.av),
        d_bv(d.bv),
        lse(sums.lse.as<T>()),
        rest(sums.rest.as<T>()),
        lse_step{sums.lse.stride(0), sums.lse.stride(1)},
        parts(partial.defined ? partial.as<T>() : nullptr),
        e(static_cast<int>(d_o_view.size(2))),
        score_scale(static_cast<T>(in.score_scale)),
        value_scale(static_cast<T>(in.value_scale)) {}
  Factor o, d_o;
  FactorGrad d_ak, d_bk, d_av, d_bv;
  const T *lse, *rest;
  std::int64_t lse_step[2];
  T* parts;  // (b, block, h r + r d), null where neither aq nor bq wants a gradient
  int e;
  T score_scale, value_scale;
};

/// o and lse from the partial results of several blocks.
template <class T>
void tpa_merge(const ForwardTarget<T>& to, const TpaBlocks& blocks, std::int64_t batch,
               const Queue& queue);
/// The gradient of aq or bq (=|+=) the sum of the partial sums of `count` blocks, which begin at
/// `start` in those of a block.
template <class T>
void tpa_add_blocks(const Grad& g, const View& partial, std::int64_t start, std::int64_t count);

/// Forward by tensor cores, but for tpa_merge. Returns false, having launched nothing, where types,
/// sizes or strides do not allow it.
bool try_tpa_forward_mma(const TpaInputs& in, const View& o, const LogSums& sums,
                         const View& partial, const TpaBlocks& blocks, IndexGuard guard);
/// Backward likewise, but for tpa_add_blocks.
bool try_tpa_backward_mma(const TpaInputs& in, const View& o, const LogSums& sums, const View& d_o,
                          const TpaInputGrads& d, const View& partial, const TpaBlocks& blocks);
/// The same by general kernels, which take every type, rank, size and stride.
template <class T>
void tpa_forward_general(const TpaInputs& in, const ForwardTarget<T>& to, const TpaBlocks& blocks,
                         IndexGuard guard);
template <class T>
void tpa_backward_general(const TpaInputs& in, const View& o, const LogSums& sums, const View& d_o,
                          const TpaInputGrads& d, const View& partial, const TpaBlocks& blocks);

}  // namespace quipu::detail::on_cuda
