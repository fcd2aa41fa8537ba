#pragma once
// lrpe: linearized relative positional encoding (Qin et al. 2023, arXiv:2307.09270), which works on
// q and k before they meet, so that linear attention can use it. With y = act(x), position t and
// angle a = theta t, one angle a feature:
//   lrpe_rotate     (y1, y2) -> (y1 cos a - y2 sin a, y1 sin a + y2 cos a), where y1 and y2 are the
//                   two halves of a row: rotary encoding (Su et al. 2021, arXiv:2104.09864)
//   lrpe_cosine     y -> (y cos a, y sin a): a row becomes its cosine and its sine half, so
//                   features double (cosFormer's re-weighting with learned or any angles; Qin et
//                   al. 2022, arXiv:2202.08791)
//   lrpe_cosine_md  the same for tokens on a grid of m dimensions, each with a share of the
//                   features
//
// In all of them y = act(x) is computed and encoded in one pass, in f32 (f64 for f64), and rounded
// once. theta has the type of x or is f32, with x in f64 it is f64. A row has at most 8192
// features, 4096 in f64. For backward they keep theta, x only if there is an activation, and with
// `keep_angles` the angles in the compute type instead of theta.
//
// theta gets a gradient if it wants one: t y1 (d_o2 cos a - d_o1 sin a) - t y2 (d_o1 cos a +
// d_o2 sin a), without y2 for a cosine, summed in f64 over all rows and features that share an
// entry of it. Then x is kept in any case, and backward runs one kernel more, with a few partial
// sums and, if there is a softmax, its result in the compute type as workspace.
#include <optional>

#include "quipu/core/tensor.h"
#include "quipu/ops/act.h"

namespace quipu {

/// Activation, position and memory of lrpe_rotate and lrpe_cosine.
struct LrpeOptions {
  Act act = Act::none;          // of x, before it is encoded
  std::optional<int> dim = {};  // of softmax: -1 the features, 1 the sequence
  std::int64_t offset = 0;      // position of the first token
  bool keep_angles = false;     // keep a table of the angles, (h, n, angles of a row), for backward
};

/// x (b, n, h, d) or (b, n, d), d even, -> the same shape. theta (h, d/2), (1, d/2), (h, 1) or with
/// fewer columns, where the missing ones are angle 0. With y = act(x) and
/// angle = theta[h, i] (offset + n):
/// o[i] = y[i] cos - y[i + d/2] sin, o[i + d/2] = y[i] sin + y[i + d/2] cos.
Tensor lrpe_rotate(const Tensor& x, const Tensor& theta, const LrpeOptions& options = {});

/// x (b, n, h, d) or (b, n, d) -> (b, n, h, 2d) or (b, n, 2d): y cos, then y sin. theta (h, d),
/// (1, d), (h, 1) or with fewer columns, where the missing ones are angle 0.
Tensor lrpe_cosine(const Tensor& x, const Tensor& theta, const LrpeOptions& options = {});

/// Activation, leading tokens and memory of lrpe_cosine_md.
struct LrpeMdOptions {
  std::int64_t l = 0;           // leading tokens, at angle 0
  Act act = Act::none;          // of x, before it is encoded
  std::optional<int> dim = {};  // of softmax: -1 the features, -2 all tokens
  bool keep_angles = false;     // keep a table of the angles, (h, tokens, d), for backward
};

/// Tokens on a grid of `shape`, its last axis running fastest: x (b, h, l + prod(shape), d) ->
/// (b, h, l + prod(shape), 2d). theta (h, e) or (1, e) with e * shape.size() >= d: feature j
/// belongs to grid axis j / e, its angle is theta[h, j % e] times the token's index along that
/// axis.
Tensor lrpe_cosine_md(const Tensor& x, const Tensor& theta, const Shape& shape,
                      const LrpeMdOptions& options = {});

namespace detail {

// The same from smaller operators: the oracle of the tests and the baseline of the benchmarks.
// keep_angles has no effect.
Tensor lrpe_rotate_composed(const Tensor& x, const Tensor& theta, const LrpeOptions& options = {});
Tensor lrpe_cosine_composed(const Tensor& x, const Tensor& theta, const LrpeOptions& options = {});
Tensor lrpe_cosine_md_composed(const Tensor& x, const Tensor& theta, const Shape& shape,
                               const LrpeMdOptions& options = {});

// Without any tape: d_x (=|+=) gradient, none of theta. Without an activation, the values of x are
// not read.
void lrpe_rotate_backward(const Tensor& x, const Tensor& theta, const Tensor& d_o, const Grad& d_x,
                          const LrpeOptions& options = {});
void lrpe_cosine_backward(const Tensor& x, const Tensor& theta, const Tensor& d_o, const Grad& d_x,
                          const LrpeOptions& options = {});
void lrpe_cosine_md_backward(const Tensor& x, const Tensor& theta, const Tensor& d_o,
                             const Grad& d_x, const Shape& shape,
                             const LrpeMdOptions& options = {});

}  // namespace detail
}  // namespace quipu
