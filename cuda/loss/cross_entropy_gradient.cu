// The gradient of cross entropy, from the log-sum-exp of each row: logits are read once and the
// gradient is written or added to once, 16 bytes a thread where rows are dense, wherever they
// begin. A warp has a row, or a block where rows are long. Bound by memory. The gradient may
// overwrite the logits.
//
// sass gradient_rows<float,[^,<]*Packed: need LDG.E.128 STG.E.128; forbid STL LDL LD.E$
//   ST.E$; registers 96
// sass gradient_rows: forbid STL LDL LD.E$ ST.E$; registers 96
#include <cmath>

#include "cross_entropy.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
struct Gradient {
  LossRows<T> rows;  // its lse is read
  const T* scale;
  const void* d_o;
  DType d_o_type;
  void* d_logits;
  DType d_type;
  std::int64_t d_step;
  bool add;
};

template <class T, class Chunk, unsigned team>
__global__ void __launch_bounds__(block_threads, 1) gradient_rows(Gradient<T> g) {
  const Team<team> self;
  if (self.line >= g.rows.count) return;
  std::int64_t at[4];
  g.rows.walk.find(self.line, at);
  const LossTargets& targets = g.rows.targets;
  const std::int64_t target = targets.at(at[from_targets]);
  const bool counts = targets.count(target);
  if (!counts && g.add) return;
  const T up = load_element<T>(g.d_o, g.d_o_type, at[from_d_o]);
  const T factor = up * (g.scale != nullptr ? *g.scale : T(1));
  const T* const own = g.rows.lse + g.rows.first + self.line;
  const T log_sum = counts ? *own : T(0);
  // The rest of the log-sum-exp is in the factor of the weights, which saves a register.
  const T of_weight = counts ? factor * std::exp(-own[g.rows.rests]) : T(0);
  const T smoothing = static_cast<T>(targets.smoothing);
  const T of_all = factor * (smoothing / static_cast<T>(targets.classes));
  const T of_target = factor * (T(1) - smoothing);
  const auto logits = g.rows.template row<Chunk>(at[from_logits]);
  const ChunkedRow<Chunk> d_logits(g.d_logits, g.d_type, at[from_d_logits], g.d_step,
                                   targets.classes);
  for (std::int64_t k = logits.first(self.thread); k < targets.classes; k += team * Chunk::count) {
    T z[Chunk::count] = {};
    if (counts) {
      logits.load(k, z);
      for (int j = 0; j < Chunk::count; ++j) {
        z[j] = of_weight * std::exp(z[j] - log_sum) - of_all;
        if (k + j == target) z[j] -= of_target;
      }
    }
    d_logits.put(k, z, g.add);
  }
}

// ---- on the host ----

void gradient_of_rows(View logits, View targets, View lse, View scale, View d_o, Grad d_logits,
                      CrossEntropyTargets options) {
  if (logits.numel() == 0) return;
  const Queue queue(logits);
  const View& d = d_logits.view;
  const int last = logits.dim() - 1;
  const bool packed =
      has_chunked_rows(logits, last) && has_chunked_rows(d, last) && begin_alike(logits, d, last);
  const Layout<4> layout = row_layout(logits, targets, d, d_o);
  with_chunk(logits.dtype, logits.shape.back(), packed,
             [&]<class T, class Chunk, class Threads>(Chunk, Threads) {
               constexpr unsigned team = Threads::value;
               layout.for_each_part([&](const Layout<4>& part) {
                 const Gradient<T> g{rows_of<T>(part, logits, targets, lse, {}, options),
                                     scale.defined ? scale.as<T>() : nullptr,
                                     address(d_o, part.starts[from_d_o]),
                                     d_o.dtype,
                                     address(d, part.starts[from_d_logits]),
                                     d.dtype,
                                     d.strides.back(),
                                     d_logits.add};
                 run(queue, gradient_rows<T, Chunk, team>,
                     blocks_for(g.rows.count, Team<team>::per_block), block_threads, 0, g);
               });
             });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_cross_entropy_gradient() {
  cross_entropy_gradient_kernel.provide(Variant::cuda, on_cuda::gradient_of_rows);
}

}  // namespace quipu::detail
