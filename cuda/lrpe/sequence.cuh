#pragma once
// Position encodings with softmax over the sequence: how the work is split, forward and backward.
//
// A block has one head, a strip of columns and a few batch entries, and loops over the tokens: a
// thread keeps its chunk of columns (16 bytes, and the partners of a rotation) and batch entry and
// has every n-th token. First the threads find the statistics of their columns by online softmax
// and reduce them; then rows are read again and encoded. Where sequences are long these are two
// launches, split over parts of the sequence: partial statistics go to the workspace and are merged
// in order by each block that needs them. A sin/cos table of a few tokens at a time is computed
// once in shared memory for all batch entries of the block.
#include "quipu/cuda/softmax/column_softmax.cuh"
#include "quipu/cuda/workspace.h"
#include "rows.cuh"

namespace quipu::detail::on_cuda {

// Forward and backward with softmax over the sequence.
void encode_lrpe_sequence(const View& x, const View& o, const View& table,
                          const RowTransform& transform, const View& workspace);
void decode_lrpe_sequence(const View& x, const View& d_o, const Grad& d_x, const View& table,
                          const RowTransform& transform, const View& workspace);

/// What a launch does: everything or, where sequences are split into parts, one of two passes.
enum class SequencePass { whole, statistics, result };

template <class T>
struct SequencePlan {
  static constexpr int at_once = 2;  // tokens of a thread for which cos and sin are found together

  SequencePlan(const RowTransform& transform, const View& x, int chunk, const View& table,
               bool known, const View& workspace)
      : angles(transform, x.size(3), x.size(2), table, known),
        chunks(angles.count / static_cast<std::uint32_t>(chunk)),
        batch(static_cast<std::uint32_t>(x.size(0))),
        heads(static_cast<std::uint32_t>(x.size(1))),
        parts(static_cast<std::uint32_t>(lrpe_parts(x.size(0) * x.size(1) * x.size(3), x.size(2)))),
        statistics(workspace.defined ? workspace.as<T>() : nullptr) {
    check(x.size(0) * x.size(1) < std::int64_t{1} << 31, "there are ", x.size(0),
          " batch entries of ", x.size(1), " heads, but a device takes less than 2^31 of both");
    // Of a row at least 32 bytes, a sector, are read together.
    const std::uint32_t narrowest = chunk == 1 ? 8 : 2;
    strip = std::min<std::uint32_t>(warp_size, std::bit_ceil(chunks));
    group = std::min({std::uint32_t{4}, warp_size / strip, std::bit_floor(batch)});
    while (blocks() < enough_blocks && strip > narrowest) strip /= 2;
    while (blocks() < enough_blocks && group > 2) group /= 2;
  }

  unsigned positions() const { return strip * group; }
  std::uint32_t strips() const { return (chunks + strip - 1) / strip; }
  std::uint32_t groups() const { return (batch + group - 1) / group; }
  std::int64_t blocks() const { return std::int64_t{heads} * strips() * groups() * parts; }
  dim3 grid() const { return dim3(heads * strips() * groups(), parts); }
  /// For the sin/cos table of a few tokens and, at other times, for folds of `columns` numbers a
  /// thread.
  std::size_t shared_bytes(int chunk, int columns) const {
    const auto sincos =
        std::size_t{2 * at_once} * block_threads / group * static_cast<unsigned>(chunk);
    const std::size_t folds = 2 * LineTeam::fold_size(block_threads, positions(), columns);
    return std::max(sincos, folds) * sizeof(T);
  }

  RowAngles<T> angles;
  std::uint32_t chunks, batch, heads;
  std::uint32_t strip = 1, group = 1;  // chunks and batch entries of a block: powers of two
  std::uint32_t parts;
  T* statistics;
  SequencePass pass = SequencePass::whole;

 private:
  static constexpr std::int64_t enough_blocks = 256;
};

/// A thread's head, chunk of columns, batch entry and tokens.
struct SequenceThread {
  template <class T>
  __device__ __forceinline__ explicit SequenceThread(const SequencePlan<T>& plan)
      : team(LineTeam::columns(plan.strip * plan.group)) {
    const std::uint32_t strips = (plan.chunks + plan.strip - 1) / plan.strip;
    const std::uint32_t rest = blockIdx.x / plan.heads;
    head = blockIdx.x % plan.heads;
    first_chunk = rest % strips * plan.strip;
    first_entry = rest / strips * plan.group;
    lane = team.line & (plan.strip - 1);
    chunk = first_chunk + lane;
    entry = first_entry + team.line / plan.strip;
    has_work = chunk < plan.chunks && entry < plan.batch;
    begin = part_start(plan, blockIdx.y);
    end = part_start(plan, blockIdx.y + 1);
  }
  template <class T>
  __device__ __forceinline__ static std::uint32_t part_start(const SequencePlan<T>& plan,
                                                             std::uint32_t part) {
    return static_cast<std::uint32_t>(std::uint64_t{plan.angles.tokens} * part / plan.parts);
  }

  LineTeam team;
  std::uint32_t head, first_chunk, first_entry;
  std::uint32_t lane, chunk, entry;
  bool has_work;
  std::uint32_t begin, end;  // tokens
};

/// A sin/cos table of a few tokens in shared memory. Vectors of neighbouring chunks are neighbours.
template <class T, int count>
class SinCosTile {
 public:
  __device__ __forceinline__ SinCosTile(const SequencePlan<T>& plan, const SequenceThread& at,
                                        T* shared)
      : cos_(shared),
        sin_(shared + SequencePlan<T>::at_once * at.team.members * plan.strip * count),
        strip_(plan.strip) {}

  /// Computes those of the tokens from `first` on; all threads call it. `fill_table` also stores
  /// the angles to the table of the call, if there is one.
  __device__ __forceinline__ void fill(const SequencePlan<T>& plan, const SequenceThread& at,
                                       std::uint32_t first, bool fill_table) {
    const std::uint32_t width = strip_ * count;
    const std::uint32_t total = SequencePlan<T>::at_once * at.team.members * width;
    for (std::uint32_t k = threadIdx.x; k < total; k += blockDim.x) {
      const std::uint32_t row = k / width, own = k & (width - 1), token = first + row;
      const std::uint32_t i = at.first_chunk * count + own;
      if (token >= at.end || i >= plan.angles.count) continue;
      const T angle = plan.angles.angle(at.head, token, i);
      if (fill_table && plan.angles.table != nullptr) {
        plan.angles.table[plan.angles.entry(at.head, token) + i] = angle;
      }
      const math::SinCos<T> sc = math::sincos(angle);
      const std::uint32_t word = index(row, own / count, own % count / length) + own % length;
      cos_[word] = sc.cos;
      sin_[word] = sc.sin;
    }
  }

  __device__ __forceinline__ SinCosChunk<T, count> get(std::uint32_t row,
                                                       std::uint32_t lane) const {
    SinCosChunk<T, count> sincos;
    for (std::uint32_t v = 0; v < count / length; ++v) {
      load_vector<length>(cos_, index(row, lane, v), sincos.cos + v * length);
      load_vector<length>(sin_, index(row, lane, v), sincos.sin + v * length);
    }
    return sincos;
  }

 private:
  static constexpr std::uint32_t length = vector_length<T, count>;

  __device__ __forceinline__ std::uint32_t index(std::uint32_t row, std::uint32_t lane,
                                                 std::uint32_t v) const {
    return ((row * (count / length) + v) * strip_ + lane) * length;
  }

  T *cos_, *sin_;
  std::uint32_t strip_;
};

/// Partial statistics of columns in the workspace: [part][quantity][batch entry][head][column],
/// where vectors of neighbouring chunks are neighbours.
template <class E, int halves, int count, bool has_weights>
struct SequenceParts {
  using T = ComputeOf<E>;
  using State = OnlineLines<E, halves * count, has_weights>;

  __device__ __forceinline__ SequenceParts(const SequencePlan<T>& plan, const SequenceThread& at)
      : data_(plan.statistics),
        vectors_(plan.chunks),
        quantity_step_(std::int64_t{plan.batch} * plan.heads * plan.chunks * (halves * count)),
        start_((std::int64_t{at.entry} * plan.heads + at.head) * plan.chunks * (halves * count) +
               at.chunk * length) {}

  __device__ __forceinline__ void store(std::uint32_t part, const State& state) const {
    each(part, [&](std::int64_t i, int s) {
      store_vector<length>(data_, i, state.largest + s);
      store_vector<length>(data_, i + quantity_step_, state.sum + s);
      if constexpr (has_weights) {
        store_vector<length>(data_, i + 2 * quantity_step_, state.weighted + s);
      }
    });
  }
  /// Merges a part, vector by vector, which takes few registers.
  __device__ __forceinline__ void merge(std::uint32_t part, State& state) const {
    each(part, [&](std::int64_t i, int s) {
      OnlineLines<E, length, has_weights> own, next;
      load_vector<length>(data_, i, next.largest);
      load_vector<length>(data_, i + quantity_step_, next.sum);
      if constexpr (has_weights) load_vector<length>(data_, i + 2 * quantity_step_, next.weighted);
#pragma unroll
      for (int j = 0; j < length; ++j) {
        own.largest[j] = state.largest[s + j];
        own.sum[j] = state.sum[s + j];
        if constexpr (has_weights) own.weighted[j] = state.weighted[s + j];
      }
      own.merge(next);
#pragma unroll
      for (int j = 0; j < length; ++j) {
        state.largest[s + j] = own.largest[j];
        state.sum[s + j] = own.sum[j];
        if constexpr (has_weights) state.weighted[s + j] = own.weighted[j];
      }
    });
  }

 private:
  static constexpr int length = vector_length<T, count>;

  /// Calls f(offset of the first quantity, column of the thread) for each vector.
  template <class F>
  __device__ __forceinline__ void each(std::uint32_t part, F f) const {
    const std::int64_t own = start_ + part * State::quantities * quantity_step_;
#pragma unroll
    for (int v = 0; v < halves * count / length; ++v) {
      f(own + v * std::int64_t{vectors_} * length, v * length);
    }
  }

  T* data_;
  std::uint32_t vectors_;  // of a row, side by side
  std::int64_t quantity_step_, start_;
};

/// Reduces the statistics of columns over the threads, or over the parts of the sequence, and
/// finishes them. Returns false in the first of two passes, which only stores them.
template <int halves, int count, class E, bool has_weights, class T>
__device__ __forceinline__ bool finish_statistics(
    const SequencePlan<T>& plan, const SequenceThread& at,
    OnlineLines<E, halves * count, has_weights>& state, T* shared) {
  const SequenceParts<E, halves, count, has_weights> parts(plan, at);
  if (plan.pass == SequencePass::result && at.has_work) {
    for (std::uint32_t part = at.team.member; part < plan.parts; part += at.team.members) {
      parts.merge(part, state);
    }
  }
  state.join(at.team, shared);
  if (plan.pass == SequencePass::statistics) {
    if (at.has_work && at.team.member == 0) parts.store(blockIdx.y, state);
    return false;
  }
  state.finish();
  __syncthreads();
  return true;
}

/// Launches once where a block has whole columns, else once for the statistics and once for the
/// result.
template <class T, class Kernel, class... Arguments>
void run_sequence(const Queue& queue, Kernel kernel, SequencePlan<T> plan, int chunk, int columns,
                  const Arguments&... arguments) {
  const auto run_pass = [&](SequencePass pass) {
    plan.pass = pass;
    run(queue, kernel, plan.grid(), block_threads, plan.shared_bytes(chunk, columns), plan,
        arguments...);
  };
  if (plan.parts == 1) return run_pass(SequencePass::whole);
  run_pass(SequencePass::statistics);
  run_pass(SequencePass::result);
}

}  // namespace quipu::detail::on_cuda
