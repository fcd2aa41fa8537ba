// The gradient of theta. Of an angle a = theta p at position p it is
//   d_a = y1 (d_o2 cos a - d_o1 sin a) - y2 (d_o1 cos a + d_o2 sin a),
// where a cosine has no y2, and theta gets p d_a, summed over batch entries, tokens, the heads and
// the features that share it. A block has one head, a strip of angles and a part of the tokens; a
// thread keeps its chunk of angles (16 bytes of features where x and d_o are so aligned, else one),
// has every n-th token of the part, and loops over the batch with sin and cos in registers. x and
// d_o are read once; bound by memory. The threads of a block and then, in a second kernel, what
// shares an entry of theta are added in an order that the shape alone decides.
//
// Terms grow with the position and mostly cancel, while the sum runs over all rows of a batch: in
// f32 its rounding would show. The sums are in f64: one conversion and one multiply-add an angle,
// which even cards with few f64 units do faster than the loads.
//
// On sm_120 a thread of 8 angles takes all 255 registers (128 would spill), which leaves one block
// a multiprocessor: 16 KiB in flight, still more than the product of latency and bandwidth.
//
// sass sum_theta<.*Packed: need LDG.E.128; forbid STL LDL LD.E$ ST.E$; registers 128 256@120;
// blocks 2@80,86,89,90 1@120
// sass sum_theta<.*Loose: forbid STL LDL LD.E$ ST.E$; registers 80; blocks 3
// sass finish_theta: forbid STL LDL LD.E$ ST.E$; registers 48
#include "quipu/cuda/workspace.h"
#include "rows.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
struct ThetaPlan {
  ThetaPlan(const View& x, const View& d_o, const RowTransform& transform, const View& table,
            int chunk)
      : angles(transform, x.size(3), x.size(2)),
        x(x),
        d_o(d_o),
        act(transform.act),
        chunks(angles.count / static_cast<std::uint32_t>(chunk)),
        strip(std::min<std::uint32_t>(warp_size, std::bit_ceil(chunks))),
        heads(static_cast<std::uint32_t>(x.size(1))),
        parts(static_cast<std::uint32_t>(lrpe_theta_parts(x.size(1), angles.count, x.size(2)))),
        batch(x.size(0)) {
    check(x.size(1) * ((chunks + strip - 1) / strip) < std::int64_t{1} << 31, "there are ",
          x.size(1), " heads with ", angles.count,
          " angles, but a device takes less than 2^31 of both at once");
    // Positions are needed beside a table of angles, too.
    angles.table = table.defined ? table.as<T>() : nullptr;
    angles.in_table = table.defined;
  }
  dim3 grid() const { return dim3(heads * ((chunks + strip - 1) / strip), parts); }

  RowAngles<T> angles;
  RowView x, d_o;
  Act act;
  std::uint32_t chunks, strip;  // of a row; of a block: a power of two
  std::uint32_t heads, parts;
  std::int64_t batch;
};

/// d_a of a chunk of angles.
template <int halves, class T, int count>
__device__ __forceinline__ void angle_gradient(const SinCosChunk<T, count>& sincos,
                                               const T (&y)[halves][count], T (&d_o)[2][count],
                                               T (&d)[count]) {
#pragma unroll
  for (int j = 0; j < count; ++j) {
    const T a = d_o[0][j], b = d_o[1][j];
    d[j] = y[0][j] * (b * sincos.cos[j] - a * sincos.sin[j]);
    if constexpr (halves == 2) d[j] -= y[1][j] * (a * sincos.cos[j] + b * sincos.sin[j]);
  }
}

/// Blocks that share a multiprocessor, by the angles of a thread: as many as registers allow.
template <int count>
inline constexpr int blocks_at_once = count > 1 ? 2 : 3;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
template <>
inline constexpr int blocks_at_once<8> = 1;
#endif

/// Sums (heads, parts, angles).
template <class T, class Chunk, LrpeKind kind>
__global__ void __launch_bounds__(block_threads, blocks_at_once<Chunk::count>)
    sum_theta(ThetaPlan<T> plan, double* sums) {
  constexpr int halves = halves_of<kind>, count = Chunk::count;
  const std::uint32_t lane = threadIdx.x & (plan.strip - 1), member = threadIdx.x / plan.strip;
  const std::uint32_t members = block_threads / plan.strip, n = plan.angles.count;
  const std::uint32_t head = blockIdx.x % plan.heads, first = blockIdx.x / plan.heads * plan.strip;
  const std::uint32_t i = (first + lane) * count;
  const auto part_start = [&](std::uint32_t part) {
    return static_cast<std::uint32_t>(std::uint64_t{plan.angles.tokens} * part / plan.parts);
  };
  const std::uint32_t end = first + lane < plan.chunks ? part_start(blockIdx.y + 1) : 0;
  double own[count] = {};
  for (std::uint32_t token = part_start(blockIdx.y) + member; token < end; token += members) {
    if (plan.angles.is_lead(token)) continue;
    T angle[count], position[count];
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const std::uint32_t k = i + static_cast<std::uint32_t>(j);
      angle[j] = plan.angles.angle(head, token, k);
      position[j] =
          plan.angles.position(token, plan.angles.axes == 0 ? 0u : plan.angles.columns.quotient(k));
    }
    SinCosChunk<T, count> sincos;
    math::sincos(angle, sincos.sin, sincos.cos);
    for (std::int64_t b = 0; b < plan.batch; ++b) {
      T y[halves][count], d_o[2][count], d[count];
      load_chunks<Chunk>(plan.x, plan.x.line(head, token) + b * plan.x.batch_step, i, n, y);
      load_chunks<Chunk>(plan.d_o, plan.d_o.line(head, token) + b * plan.d_o.batch_step, i, n, d_o);
#pragma unroll
      for (int half = 0; half < halves; ++half) activate(plan.act, y[half]);
      angle_gradient(sincos, y, d_o, d);
#pragma unroll
      for (int j = 0; j < count; ++j) {
        own[j] += static_cast<double>(position[j]) * static_cast<double>(d[j]);
      }
    }
  }
  double* const shared = dynamic_shared<double>();
#pragma unroll
  for (int j = 0; j < count; ++j) {
    shared[(member * count + static_cast<std::uint32_t>(j)) * plan.strip + lane] = own[j];
  }
  __syncthreads();
  const std::uint32_t width = plan.strip * count;
  const std::int64_t row = (std::int64_t{head} * plan.parts + blockIdx.y) * n;
  for (std::uint32_t k = threadIdx.x; k < width; k += block_threads) {
    const std::uint32_t to = (first + k % plan.strip) * count + k / plan.strip;
    double sum = 0;
    for (std::uint32_t m = 0; m < members; ++m) sum += shared[m * width + k];
    if (to < n) sums[row + to] = sum;
  }
}

/// Where the gradient goes, and which sums (rows, groups, angles) are those of entry (r, k): the
/// angles k, k + columns, ... of all groups where columns repeat, angle k alone where not.
struct ThetaTarget {
  void* data;
  DType dtype;
  bool add, repeats;
  std::int64_t row_step, column_step, rows, width;
  std::int64_t groups, angles, columns;
};

/// A warp has an entry of theta.
__global__ void __launch_bounds__(block_threads, 1)
    finish_theta(ThetaTarget to, const double* sums) {
  const std::int64_t entry =
      std::int64_t{blockIdx.x} * (block_threads / warp_size) + threadIdx.x / warp_size;
  if (entry >= to.rows * to.width) return;  // a whole warp
  const std::int64_t r = entry / to.width, k = entry % to.width;
  const std::int64_t end = k >= to.columns ? k : to.repeats ? to.angles : k + 1;
  const std::int64_t each = (end - k + to.columns - 1) / to.columns, total = to.groups * each;
  double sum = 0;
  for (std::int64_t s = threadIdx.x % warp_size; s < total; s += warp_size) {
    const std::int64_t group = s / each;
    sum += sums[(r * to.groups + group) * to.angles + k + (s - group * each) * to.columns];
  }
  sum = fold_warp(sum, plus<double>);
  if (threadIdx.x % warp_size != 0) return;
  put_element(to.data, to.dtype, r * to.row_step + k * to.column_step, sum, to.add);
}

// ---- on the host ----

void theta(View x, View d_o, Grad d_theta, View table, const RowTransform& transform, View sums) {
  if (!any_elements(d_theta)) return;
  const View& to = d_theta.view;
  const std::int64_t n = angles_of(transform.kind, x.size(3));
  const bool is_empty = x.numel() == 0 || n == 0;
  RowTransform own = transform;
  if (!own.theta.defined) own.theta = to;  // beside a table, only its sizes count
  own.theta = columns_for(own.theta, x.size(3));
  const Queue queue(x);
  std::int64_t groups = 0;
  const bool packed = has_packed_halves(x, n) && has_packed_halves(d_o, n) && x.dtype == d_o.dtype;
  if (!is_empty) {
    with_chunk_and_kind(
        x.dtype, packed, transform.kind, [&]<class T, class Chunk, class Kind>(Chunk, Kind) {
          const ThetaPlan<T> plan(x, d_o, own, table, Chunk::count);
          groups = x.size(1) * plan.parts / to.size(0);
          run(queue, sum_theta<T, Chunk, Kind::value>, plan.grid(), block_threads,
              block_threads * Chunk::count * sizeof(double), plan, sums.as<double>());
        });
  }
  const std::int64_t columns = own.theta.size(1);
  const bool repeats = !transform.grid.empty() || columns == 1;
  const ThetaTarget target{to.data,    to.dtype,   d_theta.add, repeats, to.stride(0), to.stride(1),
                           to.size(0), to.size(1), groups,      n,       columns};
  run(queue, finish_theta, blocks_for(to.numel(), block_threads / warp_size), block_threads, 0,
      target, sums.as<double>());
}

}  // namespace
}  // namespace on_cuda

void register_cuda_lrpe_theta() {
  lrpe_theta_kernel.provide(Variant::cuda, on_cuda::theta);
}

}  // namespace quipu::detail
