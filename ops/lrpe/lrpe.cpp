#include "quipu/ops/lrpe/lrpe.h"

#include <utility>

#include "quipu/ops/checks.h"
#include "quipu/ops/lrpe/kernels.h"
#include "quipu/ops/lrpe/support.h"
#include "quipu/ops/lrpe/theta_support.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/view_support.h"

namespace quipu {
using namespace detail;
namespace {

enum class Layout { tokens_heads, heads_tokens };  // (b, n, h, d) or (b, n, d); (b, h, t, d)

/// Everything about one call but its tensors.
struct Call {
  RowTransform transform;  // without theta
  Layout layout = Layout::tokens_heads;
};

/// As the kernels see it: (b, h, t, d).
View heads_first(View v, Layout layout) {
  if (layout == Layout::heads_tokens) return v;
  if (v.dim() == 3) {
    v.shape.insert(1, 1);
    v.strides.insert(1, 0);
    return v;
  }
  std::swap(v.shape[1], v.shape[2]);
  std::swap(v.strides[1], v.strides[2]);
  return v;
}

void check_tensors(const Tensor& x, const Tensor& theta, std::int64_t heads) {
  check_floating("x", x.dtype());
  check_same_device("x", x, "theta", theta);
  check(theta.dtype() == x.dtype() || (theta.dtype() == f32 && x.dtype() != f64), "theta is ",
        theta.dtype(), ", but with x in ", x.dtype(), " it must be ", x.dtype(),
        x.dtype() == f64 || x.dtype() == f32 ? "" : " or f32");
  check(x.size(-1) <= most_features(x.dtype()), "x has ", x.size(-1), " features, but at most ",
        most_features(x.dtype()), " can be encoded in ", x.dtype());
  check(theta.dim() == 2, "theta has shape ", theta.shape(),
        ", but two dimensions are wanted: heads and angles");
  check(theta.size(0) == heads || theta.size(0) == 1, "theta has shape ", theta.shape(),
        ", but x has ", heads, " heads (theta needs as many rows, or one)");
}

/// Whether softmax goes over the sequence.
bool check_act(const Tensor& x, Act act, std::optional<int> dim, int sequence) {
  check_enum("act", act, Act::softmax);
  if (act != Act::softmax) {
    check(!dim.has_value(), act, " was given dim ", dim.value_or(0),
          ", but only softmax takes one");
    return false;
  }
  check(dim.has_value(), "softmax needs a dim: -1 for the features, ", sequence,
        " for the sequence");
  const int axis = wrap_dim(*dim, x.dim());
  check(axis == x.dim() - 1 || axis == wrap_dim(sequence, x.dim()), "softmax over dim ", *dim,
        " of x ", x.shape(), " is not possible, only over the features (-1) or the sequence (",
        sequence, ")");
  return axis != x.dim() - 1;
}

Call check_1d(LrpeKind kind, const Tensor& x, const Tensor& theta, const LrpeOptions& options) {
  constexpr std::int64_t exact = std::int64_t{1} << 53;
  check(x.dim() == 4 || x.dim() == 3, "x has shape ", x.shape(),
        ", but (b, n, h, d) or (b, n, d) is wanted");
  check_tensors(x, theta, x.dim() == 4 ? x.size(2) : 1);
  const std::int64_t d = x.size(-1), angles = angles_of(kind, d);
  check(kind != LrpeKind::rotate || d % 2 == 0, "x has ", d,
        " features, but rotating pairs them and needs an even number");
  check(theta.size(1) <= angles, "theta has shape ", theta.shape(), ", but ", d,
        " features have no more than ", angles, " angles");
  check(options.offset >= -exact && options.offset <= exact, "offset is ", options.offset,
        ", which is beyond 2^53");
  const bool over_sequence = check_act(x, options.act, options.dim, 1);
  return {{kind, options.act, over_sequence, {}, options.offset, {}, 0}, Layout::tokens_heads};
}

Call check_md(const Tensor& x, const Tensor& theta, const Shape& shape,
              const LrpeMdOptions& options) {
  check(x.dim() == 4, "x has shape ", x.shape(), ", but (b, h, l + prod(shape), d) is wanted");
  check_tensors(x, theta, x.size(1));
  check(!shape.empty(), "shape is empty, but a grid has at least one axis");
  check(options.l >= 0, "l is ", options.l, ", but a number of tokens is not negative");
  const std::int64_t tokens = numel(shape);
  check(x.size(2) - tokens == options.l, "x has ", x.size(2), " tokens, but l = ", options.l,
        " and a grid of ", shape, " make ", options.l, " + ", tokens);
  const std::int64_t d = x.size(3), e = theta.size(1), axes = shape.size();
  const std::int64_t least = d / axes + (d % axes != 0);
  check(e >= least, "theta has shape ", theta.shape(), ", but ", d, " features on ", axes,
        " grid axes need at least ", least, " columns");
  const bool over_sequence = check_act(x, options.act, options.dim, -2);
  return {{LrpeKind::cosine, options.act, over_sequence, {}, 0, shape, options.l},
          Layout::heads_tokens};
}

/// For kernels on x or its gradient; undefined where they need none.
Tensor space_for(const View& x, const RowTransform& transform, bool backward) {
  const std::int64_t numbers = lrpe_workspace(x.device.kind(), transform, x.shape, backward);
  return numbers > 0 ? workspace({numbers}, compute_type(x.dtype), x.device) : Tensor();
}

/// Theta is not needed where there are angles, nor x without an activation.
void decode(const View& x, const View& theta, const View& angles, const View& d_o, const Grad& d_x,
            const Call& call) {
  RowTransform transform = call.transform;
  const Grad to{heads_first(d_x.view, call.layout), d_x.add};
  transform.theta = columns_for(theta, to.view.size(3));
  const View in = x.defined ? heads_first(x, call.layout) : View();
  const Tensor space = x.defined ? space_for(in, transform, true) : Tensor();
  lrpe_backward_kernel(in, heads_first(d_o, call.layout), to, angles, transform,
                       optional_view(space));
}

struct LrpeRule {
  Saved x, theta, angles;
  Call call;
  void backward(const Tensor& d_o, Grads& d) const {
    const bool has_act = call.transform.act != Act::none;
    d.with(0, [&](const Grad& g) {
      decode(has_act ? optional_view(x) : View(), optional_view(theta), optional_view(angles), d_o,
             g, call);
    });
    d.with(1, [&](const Grad& g) {
      const View in = heads_first(x, call.layout);
      RowTransform transform = call.transform;
      transform.theta = columns_for(optional_view(theta), in.size(3));
      differentiate_theta(in, heads_first(d_o, call.layout), g, optional_view(angles), transform);
    });
  }
};

Tensor encode(const Tensor& x, const Tensor& theta, const Call& call, bool keep_angles) {
  RowTransform transform = call.transform;
  const View in = heads_first(x, call.layout);
  transform.theta = columns_for(theta, in.size(3));
  const bool to_theta = theta.requires_grad(), wanted = x.requires_grad() || to_theta;
  Tensor angles;
  if (keep_angles && wanted && recording()) {
    angles = empty({in.size(1), in.size(2), angles_of(transform.kind, in.size(3))},
                   compute_type(x.dtype()), x.device(), Category::saved);
  }
  Shape shape = x.shape();
  shape[shape.size() - 1] = encoded_features(transform.kind, in.size(3));
  const Tensor o = empty(shape, x.dtype(), x.device());
  const Tensor space = space_for(in, transform, false);
  lrpe_forward_kernel(in, heads_first(o, call.layout), optional_view(angles), transform,
                      optional_view(space));
  return tie(o, {x, theta},
             LrpeRule{save_if(to_theta || (wanted && transform.act != Act::none), x),
                      save_if(wanted && !angles.defined(), theta), save(angles), call});
}

void backward_checked(const Tensor& x, const Tensor& theta, const Tensor& d_o, const Grad& d_x,
                      const Call& call) {
  Shape shape = x.shape();
  shape[shape.size() - 1] = encoded_features(call.transform.kind, x.size(-1));
  check_same_dtype("x", x, "d_o", d_o);
  check_same_device("x", x, "d_o", d_o);
  check(d_o.shape() == shape, "d_o has shape ", d_o.shape(), ", but the output has shape ", shape);
  check_grad("d_x", d_x, x.shape(), x.device());
  decode(call.transform.act != Act::none ? x.view() : View(), theta, View(), d_o, d_x, call);
}

}  // namespace

void detail::check_lrpe(LrpeKind kind, const Tensor& x, const Tensor& theta,
                        const LrpeOptions& options) {
  static_cast<void>(check_1d(kind, x, theta, options));
}

void detail::check_lrpe_md(const Tensor& x, const Tensor& theta, const Shape& shape,
                           const LrpeMdOptions& options) {
  static_cast<void>(check_md(x, theta, shape, options));
}

Tensor lrpe_rotate(const Tensor& x, const Tensor& theta, const LrpeOptions& options) {
  const OpScope op("lrpe_rotate");
  return encode(x, theta, check_1d(LrpeKind::rotate, x, theta, options), options.keep_angles);
}

Tensor lrpe_cosine(const Tensor& x, const Tensor& theta, const LrpeOptions& options) {
  const OpScope op("lrpe_cosine");
  return encode(x, theta, check_1d(LrpeKind::cosine, x, theta, options), options.keep_angles);
}

Tensor lrpe_cosine_md(const Tensor& x, const Tensor& theta, const Shape& shape,
                      const LrpeMdOptions& options) {
  const OpScope op("lrpe_cosine_md");
  return encode(x, theta, check_md(x, theta, shape, options), options.keep_angles);
}

void detail::lrpe_rotate_backward(const Tensor& x, const Tensor& theta, const Tensor& d_o,
                                  const Grad& d_x, const LrpeOptions& options) {
  const OpScope op("lrpe_rotate_backward");
  backward_checked(x, theta, d_o, d_x, check_1d(LrpeKind::rotate, x, theta, options));
}

void detail::lrpe_cosine_backward(const Tensor& x, const Tensor& theta, const Tensor& d_o,
                                  const Grad& d_x, const LrpeOptions& options) {
  const OpScope op("lrpe_cosine_backward");
  backward_checked(x, theta, d_o, d_x, check_1d(LrpeKind::cosine, x, theta, options));
}

void detail::lrpe_cosine_md_backward(const Tensor& x, const Tensor& theta, const Tensor& d_o,
                                     const Grad& d_x, const Shape& shape,
                                     const LrpeMdOptions& options) {
  const OpScope op("lrpe_cosine_md_backward");
  backward_checked(x, theta, d_o, d_x, check_md(x, theta, shape, options));
}

}  // namespace quipu
