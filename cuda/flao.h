#pragma once
// How gated linear attention is cut on a device, and what its kernels share: the general ones in
// flao.cu and flao_backward.cu, which do everything, and those by tensor cores in flao_mma*.cu,
// which are asked first.
#include "quipu/ops/flao_kernels.h"

namespace quipu::on_cuda {

/// What softmax over the sequence knows of the columns of one input, each (units, features) and
/// dense, of the compute type.
struct FlaoColumns {
  View largest, inverse, mean;  // not defined where the encoding does not need them
  View parts;                   // (units, parts of the sequence, 2, features)
};

/// The workspace of a call: room for sums of kv or d_kv as (units, parts, width, e), dense, not
/// defined where the only part is the whole, and the columns. On entry of the functions below
/// `largest` and `inverse` of the inputs that are there are known.
struct FlaoSpace {
  FlaoSpace(const FlaoSizes& sizes, const FlaoEncodings& encodings, const View& space,
            bool over_queries, bool over_keys);
  /// Of forward: sums over keys lie in o if they fit.
  static FlaoSpace of_forward(const FlaoSizes& sizes, const FlaoEncodings& encodings,
                              const View& space, const View& o);
  View sums;
  FlaoColumns q, k, v, g;
};

/// The tokens of part p are those from p * length on, at most `length`.
struct FlaoParts {
  FlaoParts(std::int64_t tokens, std::int64_t units)
      : count(flao_parts(tokens, units)), length(flao_part_length(tokens, units)) {}
  std::int64_t count, length;
};

/// `largest` and `inverse` of an input that softmax goes over the sequence of; nothing otherwise.
void find_flao_columns(const View& x, const RowEncoding& encoding, const FlaoColumns& columns);
/// `mean` from the sums of the parts, which fill the first half of `parts`.
void add_flao_means(const FlaoColumns& columns);
/// to (b, h, width, e) = the sums (units, parts, width, e), added in order.
void add_flao_parts(const View& sums, std::int64_t parts, const View& to);
/// kv = k~^T v~, the general way.
void multiply_flao_keys(const View& k, const View& v, const FlaoEncodings& encodings,
                        const FlaoSpace& space, const FlaoSizes& sizes, const View& kv);

/// The whole of flao_forward and flao_backward. They give false, having queued nothing, where
/// types, sizes, layouts or encodings are not theirs.
bool flao_forward_by_tensor_cores(const View& q, const View& k, const View& v, const View& g,
                                  const View& kv, const View& qkv, const View& o,
                                  const FlaoEncodings& encodings, const FlaoSpace& space);
bool flao_backward_by_tensor_cores(const View& d_o, const FlaoSaved& saved, const View& d_kv,
                                   const FlaoGrads& grads, const FlaoEncodings& encodings,
                                   const FlaoSpace& space);

}  // namespace quipu::on_cuda
