#include "quipu/ops/flao/flao.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/flao/kernels.h"
#include "quipu/ops/lrpe/theta_support.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/view_support.h"

namespace quipu {
using namespace detail;
namespace {

/// Which gradients are wanted.
struct Wants {
  bool q, k, v, g, theta;
};

/// What backward needs for them.
struct Needs {
  Needs(const Wants& wants, const FlaoTransforms& transforms, FlaoKeep keep) {
    const auto has_act = [](const RowTransform& transform) { return transform.act != Act::none; };
    d_kv = wants.k || wants.v || wants.theta;
    keep_qkv = wants.g && keep == FlaoKeep::kv_and_qkv;
    const bool make_qkv = wants.g && !keep_qkv;
    kv = wants.q || make_qkv || wants.theta;
    keep_kv = kv && keep != FlaoKeep::nothing;
    const bool make_kv = kv && !keep_kv;
    q = d_kv || make_qkv || (wants.q && has_act(transforms.q));
    k = make_kv || wants.v || wants.theta || (wants.k && has_act(transforms.k));
    v = make_kv || wants.k || wants.theta || (wants.v && has_act(transforms.v));
    g = d_kv || wants.q || (wants.g && has_act(transforms.g));
    theta = transforms.q.kind != LrpeKind::none && (d_kv || kv);
  }
  bool q, k, v, g, theta;
  bool kv, keep_kv, keep_qkv;  // keep: saved instead of computed again
  bool d_kv;
};

void check_axis(const char* a_name, const Tensor& a, int a_dim, const char* b_name, const Tensor& b,
                int b_dim, const char* what) {
  check(a.size(a_dim) == b.size(b_dim), a_name, " has shape ", a.shape(), ", but ", b_name,
        " has shape ", b.shape(), " (", a_name, " and ", b_name, " must agree in ", what, ")");
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g) {
  const auto check_one = [&](const char* name, const Tensor& x, const char* wanted) {
    check(x.dim() == 4, name, " has shape ", x.shape(), ", but ", wanted, " is wanted");
    check_same_dtype("q", q, name, x);
    check_same_device("q", q, name, x);
    check_axis(name, x, 0, "q", q, 0, "the batch");
    check_axis(name, x, 1, "q", q, 1, "the heads");
  };
  check(q.dim() == 4, "q has shape ", q.shape(), ", but (b, h, n, d) is wanted");
  check_floating("q", q.dtype());
  check_one("k", k, "(b, h, m, d)");
  check_one("v", v, "(b, h, m, e)");
  check_one("g", g, "(b, h, n, e)");
  check_axis("k", k, 3, "q", q, 3, "the head dimension");
  check_axis("v", v, 2, "k", k, 2, "the sequence");
  check_axis("g", g, 2, "q", q, 2, "the sequence");
  check_axis("g", g, 3, "v", v, 3, "the features");
}

/// An activation without a position encoding.
RowTransform transform_of(const char* name, Act act, std::optional<int> dim) {
  check_enum((std::string(name) + "_act").c_str(), act, Act::softmax);
  RowTransform transform;
  transform.act = act;
  if (act != Act::softmax) {
    check(!dim.has_value(), name, "_act is ", act, " and ", name, "_dim ", dim.value_or(0),
          ", but only softmax takes a dim");
    return transform;
  }
  check(dim.has_value(), name, "_act is softmax and needs ", name,
        "_dim: -1 for the features, -2 for the sequence");
  check(*dim == -1 || *dim == -2 || *dim == 3 || *dim == 2, name, "_dim is ", *dim,
        ", but softmax goes over the features (-1) or the sequence (-2)");
  transform.over_sequence = *dim == -2 || *dim == 2;
  return transform;
}

LrpeKind kind_of(FlaoLrpe lrpe) {
  return lrpe == FlaoLrpe::none     ? LrpeKind::none
         : lrpe == FlaoLrpe::rotate ? LrpeKind::rotate
                                    : LrpeKind::cosine;
}

void check_theta(const Tensor& q, const FlaoOptions& options) {
  const Tensor& theta = options.theta;
  check(theta.defined(), "theta is not given, but q and k are to be encoded");
  check_same_device("q", q, "theta", theta);
  check(theta.dtype() == q.dtype() || (theta.dtype() == f32 && q.dtype() != f64), "theta is ",
        theta.dtype(), ", but with q in ", q.dtype(), " it must be ", q.dtype(),
        q.dtype() == f64 || q.dtype() == f32 ? "" : " or f32");
  check(theta.dim() == 2, "theta has shape ", theta.shape(),
        ", but two dimensions are wanted: heads and angles");
  check(theta.size(0) == q.size(1) || theta.size(0) == 1, "theta has shape ", theta.shape(),
        ", but q has ", q.size(1), " heads (theta needs as many rows, or one)");
  const std::int64_t d = q.size(3);
  check(options.lrpe != FlaoLrpe::rotate || d % 2 == 0, "q has ", d,
        " features, but rotating pairs them and needs an even number");
  const std::int64_t angles = angles_of(kind_of(options.lrpe), d);
  check(options.lrpe == FlaoLrpe::cosine_md || theta.size(1) <= angles, "theta has shape ",
        theta.shape(), ", but ", d, " features have no more than ", angles, " angles");
}

void check_grid(const Tensor& q, const Tensor& k, const FlaoOptions& options) {
  const Shape& shape = options.shape;
  check(options.offset == 0, "offset is ", options.offset, ", but a grid has none");
  check(!shape.empty(), "shape is empty, but a grid has at least one axis");
  check(options.l >= 0, "l is ", options.l, ", but a number of tokens is not negative");
  const std::int64_t tokens = numel(shape);
  for (const auto& [name, x] : {std::pair("q", q), std::pair("k", k)}) {
    check(x.size(2) - tokens == options.l, name, " has ", x.size(2), " tokens, but l = ", options.l,
          " and a grid of ", shape, " make ", options.l, " + ", tokens);
  }
  const std::int64_t d = q.size(3), axes = shape.size();
  check(options.theta.size(1) * axes >= d, "theta has shape ", options.theta.shape(), ", but ", d,
        " features on ", axes, " grid axes need at least ", (d + axes - 1) / axes, " columns");
}

void check_lrpe(const Tensor& q, const Tensor& k, const FlaoOptions& options) {
  constexpr std::int64_t exact = std::int64_t{1} << 53;
  if (options.lrpe == FlaoLrpe::none) {
    check(!options.theta.defined(), "theta is given, but lrpe is none");
  } else {
    check_theta(q, options);
  }
  if (options.lrpe == FlaoLrpe::cosine_md) return check_grid(q, k, options);
  check(options.shape.empty() && options.l == 0, "shape ", options.shape, " and l ", options.l,
        " are given, but only cosine_md has a grid");
  check(options.offset >= -exact && options.offset <= exact, "offset is ", options.offset,
        ", which is beyond 2^53");
}

/// Checks everything about a call. The encodings are without theta.
FlaoTransforms check_call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                          const FlaoOptions& options) {
  check_inputs(q, k, v, g);
  check_enum("lrpe", options.lrpe, FlaoLrpe::cosine_md);
  check_enum("keep", options.keep, FlaoKeep::kv_and_qkv);
  FlaoTransforms transforms{transform_of("q", options.q_act, options.q_dim),
                            transform_of("k", options.k_act, options.k_dim),
                            transform_of("v", options.v_act, options.v_dim),
                            transform_of("g", options.g_act, options.g_dim)};
  check_lrpe(q, k, options);
  for (RowTransform* transform : {&transforms.q, &transforms.k}) {
    if (options.lrpe == FlaoLrpe::none) continue;
    transform->kind = kind_of(options.lrpe);
    transform->grid = options.shape;
    transform->lead = options.l;
  }
  transforms.q.offset = options.offset;
  const std::int64_t width = encoded_features(transforms.q.kind, q.size(3));
  const std::int64_t most = most_flao_features(q.dtype());
  check(width <= most && v.size(3) <= most, "rows of q~ have ", width, " features and those of v ",
        v.size(3), ", but at most ", most, " are possible in ", q.dtype());
  return transforms;
}

FlaoTransforms with_theta(FlaoTransforms transforms, const View& theta, std::int64_t d) {
  transforms.q.theta = columns_for(theta, d);
  transforms.k.theta = transforms.q.theta;
  return transforms;
}

FlaoSizes sizes_of(const Shape& q, const Shape& v, const FlaoTransforms& transforms) {
  return {q[0] * q[1], q[2], v[2], q[3], encoded_features(transforms.q.kind, q[3]), v[3]};
}

/// What is to be kept, without qkv where backward would not read it.
FlaoKeep what_is_read(FlaoKeep keep, const Tensor& q, const FlaoSizes& sizes,
                      const FlaoTransforms& transforms) {
  if (keep != FlaoKeep::kv_and_qkv) return keep;
  const bool reads = flao_backward_reads_qkv(q.device().kind(), sizes, transforms, q.dtype());
  return reads ? keep : FlaoKeep::kv;
}

/// What the back end takes for its own use; not defined where that is nothing.
Tensor space_of(std::int64_t elements, const Tensor& x) {
  return elements > 0 ? workspace({elements}, compute_type(x.dtype()), x.device()) : Tensor();
}

/// The gradient of rows (b, h, t, width) whose products with kv were multiplied by x~, as workspace
/// in the compute type: (d_o * x~) kv^T.
Tensor differentiate_rows(const View& d_o, const View& x, const RowTransform& transform,
                          const View& kv) {
  const Shape shape{x.size(0), x.size(1), x.size(2), kv.size(2)};
  const Tensor d_rows = workspace(shape, compute_type(x.dtype), x.device);
  FlaoSaved saved;
  saved.g = x;
  saved.kv = kv;
  saved.sizes = {shape[0] * shape[1], shape[2], 0, shape[3], shape[3], x.size(3)};
  FlaoTransforms transforms;
  transforms.g = transform;
  const Tensor space = space_of(
      flao_backward_workspace(x.device.kind(), saved.sizes, transforms, false, false), d_rows);
  flao_backward_kernel(d_o, saved, View(), {Grad::write_to(d_rows), {}, {}, {}},
                       optional_view(space), transforms);
  return d_rows;
}

/// Where theta is learned, the gradients of q~ and k~ are whole tensors for a moment, one after the
/// other, so that the fused passes know nothing of it. What q and k have to say often cancels, as
/// they turn with their distance: it is summed in f64 and rounded once.
void differentiate_theta_of(const FlaoSaved& saved, const View& d_o, const View& d_kv,
                            const Grad& d_theta, const FlaoTransforms& transforms) {
  const Tensor sum = workspace(d_theta.view.shape, f64, d_o.device);
  differentiate_theta(saved.q, differentiate_rows(d_o, saved.g, transforms.g, saved.kv),
                      Grad::write_to(sum), View(), transforms.q);
  // v~ d_kv^T: nothing is multiplied by v~.
  const Tensor one = workspace({1}, d_o.dtype, d_o.device);
  fill_kernel(one, 1.0);
  View ones = one;
  ones.shape = saved.v.shape;
  ones.strides = Dims::filled(4, 0);
  differentiate_theta(saved.k, differentiate_rows(ones, saved.v, transforms.v, d_kv),
                      Grad::add_to(sum), View(), transforms.k);
  add_into_kernel(d_theta, sum);
}

/// Makes what is neither saved nor wanted longer than this.
void run_backward(FlaoSaved saved, const FlaoSizes& sizes, const Needs& needs, const Tensor& d_o,
                  const FlaoGrads& d, const Grad& d_theta, const FlaoTransforms& transforms) {
  const bool to_theta = any_elements(d_theta) && d_o.numel() > 0 && sizes.width > 0;
  if (any_elements(d_theta) && !to_theta && !d_theta.add) fill_kernel(d_theta.view, 0.0);
  if (!to_theta && !any_elements(d.q, d.k, d.v, d.g)) return;
  const DType dtype = compute_type(d_o.dtype());
  const Shape kv_shape{d_o.size(0), d_o.size(1), sizes.width, sizes.e};
  saved.sizes = sizes;
  Tensor kv, d_kv;
  if (needs.kv && !needs.keep_kv) {
    kv = workspace(kv_shape, dtype, d_o.device());
    saved.kv = kv;
    saved.fill_kv = true;
  }
  if (needs.d_kv) d_kv = workspace(kv_shape, dtype, d_o.device());
  {
    const Tensor space = space_of(
        flao_backward_workspace(d_o.device().kind(), sizes, transforms, needs.d_kv, saved.fill_kv),
        d_o);
    flao_backward_kernel(d_o, saved, optional_view(d_kv), d, optional_view(space), transforms);
  }
  if (to_theta) differentiate_theta_of(saved, d_o, d_kv, d_theta, transforms);
}

struct FlaoRule {
  Saved q, k, v, g, theta, kv, qkv;
  FlaoTransforms transforms;  // without theta
  FlaoKeep keep;
  FlaoSizes sizes;
  void backward(const Tensor& d_o, Grads& d) const {
    const FlaoGrads grads{d[0], d[1], d[2], d[3]};
    const Grad d_theta = d[4];
    const Needs needs(
        {grads.q.wanted(), grads.k.wanted(), grads.v.wanted(), grads.g.wanted(), d_theta.wanted()},
        transforms, keep);
    run_backward({optional_view(q),
                  optional_view(k),
                  optional_view(v),
                  optional_view(g),
                  optional_view(kv),
                  false,
                  optional_view(qkv),
                  {}},
                 sizes, needs, d_o, grads, d_theta,
                 with_theta(transforms, optional_view(theta), sizes.d));
  }
};

}  // namespace

Tensor flao(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
            const FlaoOptions& options) {
  const OpScope op("flao");
  const FlaoTransforms transforms = check_call(q, k, v, g, options);
  const Tensor& theta = options.theta;
  const Wants wants = recording()
                          ? Wants{q.requires_grad(), k.requires_grad(), v.requires_grad(),
                                  g.requires_grad(), theta.defined() && theta.requires_grad()}
                          : Wants{};
  const FlaoSizes sizes = sizes_of(q.shape(), v.shape(), transforms);
  const FlaoKeep keep = what_is_read(options.keep, q, sizes, transforms);
  const Needs needs(wants, transforms, keep);
  const Shape shape{q.size(0), q.size(1), sizes.width, sizes.e};
  const DType dtype = compute_type(q.dtype());
  const Tensor kv = needs.keep_kv ? empty(shape, dtype, q.device(), Category::saved)
                                  : workspace(shape, dtype, q.device());
  Tensor qkv;
  if (needs.keep_qkv) qkv = empty(g.shape(), g.dtype(), g.device(), Category::saved);
  const Tensor o = empty(g.shape(), g.dtype(), g.device());
  const Tensor space =
      space_of(flao_forward_workspace(q.device().kind(), sizes, transforms, q.dtype()), q);
  if (o.numel() > 0 || (needs.keep_kv && kv.numel() > 0)) {
    flao_forward_kernel(q, k, v, g, kv, optional_view(qkv), o, optional_view(space),
                        with_theta(transforms, optional_view(theta), q.size(3)), sizes);
  }
  return tie(o, {q, k, v, g, theta},
             FlaoRule{save_if(needs.q, q), save_if(needs.k, k), save_if(needs.v, v),
                      save_if(needs.g, g), save_if(needs.theta, theta), save_if(needs.keep_kv, kv),
                      save(qkv), transforms, keep, sizes});
}

void detail::flao_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                           const Tensor& d_o, const Grad& d_q, const Grad& d_k, const Grad& d_v,
                           const Grad& d_g, const FlaoOptions& options) {
  const OpScope op("flao_backward");
  const FlaoTransforms transforms = check_call(q, k, v, g, options);
  check_same_dtype("q", q, "d_o", d_o);
  check_same_device("q", q, "d_o", d_o);
  check(d_o.shape() == g.shape(), "d_o has shape ", d_o.shape(), ", but the output has shape ",
        g.shape());
  check_grad("d_q", d_q, q.shape(), q.device());
  check_grad("d_k", d_k, k.shape(), q.device());
  check_grad("d_v", d_v, v.shape(), q.device());
  check_grad("d_g", d_g, g.shape(), q.device());
  const Wants wants{d_q.wanted(), d_k.wanted(), d_v.wanted(), d_g.wanted(), false};
  run_backward({q, k, v, g, {}, false, {}, {}}, sizes_of(q.shape(), v.shape(), transforms),
               Needs(wants, transforms, FlaoKeep::nothing), d_o, {d_q, d_k, d_v, d_g}, {},
               with_theta(transforms, optional_view(options.theta), q.size(3)));
}

}  // namespace quipu
