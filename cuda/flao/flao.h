#pragma once
// How gated linear attention is split on a device, and what its kernels share: the general ones,
// which take every type, size, layout and encoding, and those by tensor cores in mma*.cu. Linear
// attention: Katharopoulos et al. 2020, arXiv:2006.16236.
#include "quipu/cuda/workspace.h"
#include "quipu/ops/flao/kernels.h"

namespace quipu::detail::on_cuda {

/// Statistics of softmax over the sequence of one input, a number a column: dense (units, features)
/// of the compute type.
struct FlaoSoftmaxStats {
  View largest, inverse, mean;  // not defined where the encoding does not need them
  View parts;                   // (units, parts of the sequence, 2, features)
};

/// The workspace of a call: split-K partial sums of kv or d_kv as dense (units, parts, width, e),
/// not defined where there is one part, and the statistics of softmax over the sequence, of which
/// `largest` and `inverse` are filled before the functions below are called.
struct FlaoWorkspace {
  FlaoWorkspace(const FlaoSizes& sizes, const FlaoTransforms& transforms, const View& workspace,
                bool over_queries, bool over_keys);
  /// The workspace of forward: partial sums of kv lie in o, which is written later, if they fit.
  static FlaoWorkspace of_forward(const FlaoSizes& sizes, const FlaoTransforms& transforms,
                                  const View& workspace, const View& o);
  View sums;
  FlaoSoftmaxStats q, k, v, g;
};

/// Split-K over tokens: part p has the `length` tokens from p * length on, the last part perhaps
/// fewer.
struct FlaoParts {
  FlaoParts(std::int64_t tokens, std::int64_t units)
      : count(flao_parts(tokens, units)), length(flao_part_length(tokens, units)) {}
  std::int64_t count, length;
};

/// Fills `largest` and `inverse` if the encoding of x has softmax over the sequence.
void find_flao_softmax(const View& x, const RowTransform& transform,
                       const FlaoSoftmaxStats& columns);
/// Reduces the partial sums, which fill the first half of `parts`, to `mean`.
void reduce_flao_means(const FlaoSoftmaxStats& columns);
/// Split-K reduction: to (b, h, width, e) = the sum of (units, parts, width, e) over parts, in
/// order.
void reduce_flao_parts(const View& sums, std::int64_t parts, const View& to);
/// kv = k~^T v~ by the general kernel.
void compute_flao_kv(const View& k, const View& v, const FlaoTransforms& transforms,
                     const FlaoWorkspace& workspace, const FlaoSizes& sizes, const View& kv);

/// flao_forward and flao_backward by tensor cores. They return false, having launched nothing,
/// where types, sizes, layouts or encodings do not allow it.
bool try_flao_forward_mma(const View& q, const View& k, const View& v, const View& g,
                          const View& kv, const View& qkv, const View& o,
                          const FlaoTransforms& transforms, const FlaoWorkspace& workspace,
                          const FlaoSizes& sizes);
bool try_flao_backward_mma(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoTransforms& transforms,
                           const FlaoWorkspace& workspace);

/// The same by general kernels, which take every type, size, layout and encoding.
void flao_forward_general(const View& q, const View& k, const View& v, const View& g,
                          const View& kv, const View& qkv, const View& o,
                          const FlaoTransforms& transforms, const FlaoWorkspace& workspace,
                          const FlaoSizes& sizes);
void flao_backward_general(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                           const FlaoGrads& grads, const FlaoTransforms& transforms,
                           const FlaoWorkspace& workspace);

}  // namespace quipu::detail::on_cuda
