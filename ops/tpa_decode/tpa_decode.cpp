#include "quipu/ops/tpa_decode/tpa_decode.h"

#include <cmath>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/act.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/tpa_decode/kernels.h"
#include "quipu/ops/view_support.h"

namespace quipu {
using namespace detail;
namespace {

struct Factors {
  const Tensor &aq, &ak, &av, &bq, &bk, &bv;

  /// Without values e is 0.
  TpaSizes sizes() const {
    return {aq.size(0), ak.size(1), aq.size(2),
            aq.size(3), bq.size(3), bv.defined() ? bv.size(-1) : 0};
  }
};
/// Everything about one call but its tensors.
struct Scales {
  double score, value;
  bool split;
};

double scale_or(const char* name, const std::optional<double>& given, double otherwise) {
  check(!given || std::isfinite(*given), name, " is ", given.value_or(0),
        ", but a finite number is wanted");
  return given.value_or(otherwise);
}

/// Scales stay finite where a size is 0.
double at_least_one(std::int64_t n) {
  return static_cast<double>(std::max<std::int64_t>(n, 1));
}

Scales check_scales(const TpaSizes& s, const TpaOptions& options) {
  const double scale = scale_or("scale", options.scale, 1 / std::sqrt(at_least_one(s.d)));
  const double scale_q = scale_or("scale_q", options.scale_q, 1 / at_least_one(s.r));
  const double scale_k = scale_or("scale_k", options.scale_k, 1);
  const double scale_v = scale_or("scale_v", options.scale_v, 1);
  const double score = scale * scale_q * scale_k;
  check(std::isfinite(score), "scale, scale_q and scale_k are ", scale, ", ", scale_q, " and ",
        scale_k, ", but their product is not finite");
  return {score, scale_v, options.split};
}

void check_query(const char* name, const Tensor& x, const char* wanted) {
  check(x.dim() == 4 && x.size(1) == 1, name, " has shape ", x.shape(), ", but ", wanted,
        " is wanted: one token");
}

/// The two factors of keys or of values.
void check_pair(const char* a_name, const Tensor& a, const char* b_name, const Tensor& b,
                const Factors& f) {
  check(a.dim() == 3 || a.dim() == 4, a_name, " has shape ", a.shape(),
        ", but (b, m, h) or (b, m, rank, h) is wanted");
  Shape wanted = f.ak.dim() > 1 ? Shape{f.aq.size(0), f.ak.size(1)} : Shape{};
  if (a.dim() == 4) wanted.push_back(a.size(2));
  wanted.push_back(f.aq.size(2));
  check(a.shape() == wanted, a_name, " has shape ", a.shape(), ", but ", wanted,
        " is wanted: aq has shape ", f.aq.shape(), ", and ak has shape ", f.ak.shape());
  wanted[wanted.size() - 1] = b.dim() > 0 ? b.size(-1) : 0;
  check(b.shape() == wanted, b_name, " has shape ", b.shape(), ", but ", a_name, " has shape ",
        a.shape(), " (they may differ in the last size only)");
}

void check_lengths(const Factors& f, const Tensor& lengths) {
  if (!lengths.defined()) return;
  check(lengths.dtype() == i64, "lengths is ", lengths.dtype(), ", but i64 is wanted");
  check_same_device("aq", f.aq, "lengths", lengths);
  check(lengths.shape() == Shape{f.aq.size(0)}, "lengths has shape ", lengths.shape(), ", but ",
        Shape{f.aq.size(0)}, " is wanted: one for each batch entry of aq ", f.aq.shape());
}

Scales check_all(const Factors& f, const TpaOptions& options) {
  check_floating("aq", f.aq.dtype());
  const std::pair<const char*, const Tensor*> others[] = {
      {"ak", &f.ak}, {"av", &f.av}, {"bq", &f.bq}, {"bk", &f.bk}, {"bv", &f.bv}};
  for (const auto& [name, x] : others) {
    check_same_dtype("aq", f.aq, name, *x);
    check_same_device("aq", f.aq, name, *x);
  }
  check_query("aq", f.aq, "(b, 1, h, r)");
  check_query("bq", f.bq, "(b, 1, r, d)");
  check(f.bq.size(0) == f.aq.size(0) && f.bq.size(2) == f.aq.size(3), "bq has shape ", f.bq.shape(),
        ", but aq has shape ", f.aq.shape(), " (they must agree in b and r)");
  check_pair("ak", f.ak, "bk", f.bk, f);
  check_pair("av", f.av, "bv", f.bv, f);
  check(f.bk.size(-1) == f.bq.size(3), "bk has shape ", f.bk.shape(), ", but bq has shape ",
        f.bq.shape(), " (they must agree in d)");
  check(f.aq.size(2) <= most_tpa_width && f.aq.size(3) <= most_tpa_width, "aq has shape ",
        f.aq.shape(), ", but at most ", most_tpa_width, " heads and r at most ", most_tpa_width,
        " are possible");
  check_lengths(f, options.lengths);
  return check_scales(f.sizes(), options);
}

/// (b, 1, x, y) as (b, x, y).
View one_token(View v) {
  if (!v.defined) return v;
  v.shape.erase(1);
  v.strides.erase(1);
  return v;
}
/// (b, m, x) as (b, m, 1, x).
View ranked(View v) {
  if (!v.defined || v.dim() == 4) return v;
  v.shape.insert(2, 1);
  v.strides.insert(2, 0);
  return v;
}
TpaInputs inputs_of(const Factors& f, const Tensor& lengths, const Scales& scales) {
  return {one_token(optional_view(f.aq)),
          one_token(optional_view(f.bq)),
          ranked(optional_view(f.ak)),
          ranked(optional_view(f.bk)),
          ranked(optional_view(f.av)),
          ranked(optional_view(f.bv)),
          optional_view(lengths),
          scales.score,
          scales.value,
          scales.split};
}

/// The output, and the same before it is rounded: one tensor where there is nothing to round.
struct Decoded {
  Tensor o, unrounded;
};

Decoded room_for_output(const Factors& f, bool keep_unrounded, Category category) {
  const TpaSizes s = f.sizes();
  const Shape shape{s.b, 1, s.h, s.e};
  const Tensor o = empty(shape, f.aq.dtype(), f.aq.device());
  if (!keep_unrounded || !is_reduced(o.dtype())) return {o, o};
  return {o, empty(shape, compute_type(o.dtype()), o.device(), category)};
}

/// The log-sum-exps are only kept if they have room.
void decode(const Factors& f, const Tensor& lengths, const Scales& scales, const Decoded& output,
            const Tensor& sums) {
  Tensor partial;
  const Device device = f.aq.device();
  const Shape blocks = tpa_forward_workspace(device.kind(), f.sizes(), scales.split);
  if (!blocks.empty()) partial = workspace(blocks, compute_type(f.aq.dtype()), device);
  tpa_decode_forward_kernel(inputs_of(f, lengths, scales), one_token(output.unrounded),
                            halves_of(optional_view(sums)), optional_view(partial));
  if (!output.unrounded.same_as(output.o)) output.o.copy_from(output.unrounded);
}

/// For log-sum-exps and their rests.
Tensor room_for_sums(const Factors& f, Category category) {
  return empty({2, f.aq.size(0), f.aq.size(2)}, compute_type(f.aq.dtype()), f.aq.device(),
               category);
}

/// av, bv and o may be undefined where they are not needed.
void undo(const Factors& f, const Tensor& lengths, const Scales& scales, const Tensor& o,
          const LogSums& sums, const Tensor& d_o, const TpaGrads& d) {
  if (!any_elements(d.aq, d.ak, d.av, d.bq, d.bk, d.bv)) return;
  const auto token = [](const Grad& g) { return Grad{one_token(g.view), g.add}; };
  const auto entries = [](const Grad& g) { return Grad{ranked(g.view), g.add}; };
  const TpaInputGrads grads{token(d.aq),   token(d.bq),   entries(d.ak),
                            entries(d.bk), entries(d.av), entries(d.bv)};
  Tensor partial;
  if (grads.aq.wanted() || grads.bq.wanted()) {
    const Device device = f.aq.device();
    partial = workspace(tpa_backward_workspace(device.kind(), f.sizes(), scales.split),
                        compute_type(f.aq.dtype()), device);
  }
  tpa_decode_backward_kernel(inputs_of(f, lengths, scales), one_token(optional_view(o)), sums,
                             one_token(d_o), grads, optional_view(partial));
}

struct TpaRule {
  Saved aq, ak, av, bq, bk, bv, lengths, o, sums;
  Scales scales;

  void backward(const Tensor& d_o, Grads& d) const {
    const auto get = [](const Saved& s) { return s.defined() ? s.get() : Tensor(); };
    const Tensor value_a = get(av), value_b = get(bv);
    const TpaGrads grads{d[0], d[1], d[2], d[3], d[4], d[5]};
    undo({aq, ak, value_a, bq, bk, value_b}, get(lengths), scales, get(o),
         halves_of(optional_view(sums)), d_o, grads);
  }
};

}  // namespace

Tensor tpa_decode(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                  const Tensor& bk, const Tensor& bv, const TpaOptions& options) {
  const OpScope op("tpa_decode");
  const Factors f{aq, ak, av, bq, bk, bv};
  const Scales scales = check_all(f, options);
  const bool through_scores =
      aq.requires_grad() || ak.requires_grad() || bq.requires_grad() || bk.requires_grad();
  const bool wanted = through_scores || av.requires_grad() || bv.requires_grad();
  Tensor sums;
  if (wanted && recording()) sums = room_for_sums(f, Category::saved);
  const bool keep = through_scores && recording();
  const Decoded out = room_for_output(f, keep, Category::saved);
  decode(f, options.lengths, scales, out, sums);
  return tie(out.o, {aq, ak, av, bq, bk, bv},
             TpaRule{save_if(wanted, aq), save_if(wanted, ak),
                     save_if(through_scores || bv.requires_grad(), av), save_if(wanted, bq),
                     save_if(wanted, bk), save_if(through_scores || av.requires_grad(), bv),
                     save_if(wanted && options.lengths.defined(), options.lengths),
                     save_if(keep, out.unrounded), save_if(sums.defined(), sums), scales});
}

Tensor detail::tpa_decode_composed(const Tensor& aq, const Tensor& ak, const Tensor& av,
                                   const Tensor& bq, const Tensor& bk, const Tensor& bv,
                                   const TpaOptions& options) {
  const Factors f{aq, ak, av, bq, bk, bv};
  const TpaSizes s = f.sizes();
  check_all(f, options);
  const auto scaled = [](const Tensor& x, const std::optional<double>& scale, double otherwise) {
    return x * Scalar(scale.value_or(otherwise));
  };
  const auto product = [](const Tensor& a, const Tensor& b) {
    if (a.dim() == 3) return a.unsqueeze(3) * b.unsqueeze(2);
    return matmul(a.transpose(2, 3), b);
  };
  const double r = at_least_one(s.r), d = at_least_one(s.d);
  const Tensor q = scaled(matmul(aq, bq), options.scale_q, 1 / r);  // (b, 1, h, d)
  const Tensor k = scaled(product(ak, bk), options.scale_k, 1);     // (b, m, h, d)
  const Tensor v = scaled(product(av, bv), options.scale_v, 1);
  Tensor scores = matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1}));  // (b, h, 1, m)
  scores = scaled(scores, options.scale, 1 / std::sqrt(d)).to(compute_type(aq.dtype()));
  Tensor beyond;
  if (options.lengths.defined()) {
    beyond = ge(arange(s.m, i64, aq.device()), options.lengths.reshape({s.b, 1, 1, 1}));
    scores = masked_fill(scores, beyond, -1e30);  // finite, for rows where nothing attends
  }
  Tensor p = act_composed(scores, Act::softmax, -1);
  if (beyond.defined()) p = masked_fill(p, beyond, 0);
  return matmul(p.to(aq.dtype()), v.transpose(1, 2)).transpose(1, 2);
}

TpaOutput detail::tpa_decode_with_lse(const Tensor& aq, const Tensor& ak, const Tensor& av,
                                      const Tensor& bq, const Tensor& bk, const Tensor& bv,
                                      const TpaOptions& options) {
  const OpScope op("tpa_decode_with_lse");
  const Factors f{aq, ak, av, bq, bk, bv};
  const Scales scales = check_all(f, options);
  const Tensor sums = room_for_sums(f, Category::output);
  const Decoded out = room_for_output(f, true, Category::output);
  decode(f, options.lengths, scales, out, sums);
  return {no_gradient(out.o), out.unrounded, sums[0], sums[1]};
}

void detail::tpa_decode_backward(const Tensor& aq, const Tensor& ak, const Tensor& av,
                                 const Tensor& bq, const Tensor& bk, const Tensor& bv,
                                 const TpaOutput& output, const Tensor& d_o, const TpaGrads& d,
                                 const TpaOptions& options) {
  const OpScope op("tpa_decode_backward");
  const Factors f{aq, ak, av, bq, bk, bv};
  const Scales scales = check_all(f, options);
  const TpaSizes s = f.sizes();
  const Shape shape{s.b, 1, s.h, s.e};
  check_same_dtype("aq", aq, "d_o", d_o);
  check_same_device("aq", aq, "d_o", d_o);
  check_same_device("aq", aq, "unrounded", output.unrounded);
  check_same_device("aq", aq, "lse", output.lse);
  check(d_o.shape() == shape, "d_o has shape ", d_o.shape(), ", but the output has shape ", shape);
  const auto check_kept = [&](const char* name, const Tensor& x, const Shape& wanted) {
    check(x.shape() == wanted && x.dtype() == compute_type(aq.dtype()), name,
          " is not that of tpa_decode_with_lse: it has shape ", x.shape(), " and is ", x.dtype());
  };
  check_kept("unrounded", output.unrounded, shape);
  check_kept("lse", output.lse, {s.b, s.h});
  if (output.rest.defined()) {
    check_same_device("aq", aq, "rest", output.rest);
    check_kept("rest", output.rest, {s.b, s.h});
  }
  check_grad("d_aq", d.aq, aq.shape(), aq.device());
  check_grad("d_ak", d.ak, ak.shape(), aq.device());
  check_grad("d_av", d.av, av.shape(), aq.device());
  check_grad("d_bq", d.bq, bq.shape(), aq.device());
  check_grad("d_bk", d.bk, bk.shape(), aq.device());
  check_grad("d_bv", d.bv, bv.shape(), aq.device());
  if (!any_elements(d.aq, d.ak, d.av, d.bq, d.bk, d.bv)) return;
  const Tensor lse = dense(output.lse);
  const Tensor rest = output.rest.defined() ? dense(output.rest)
                                            : workspace(lse.shape(), lse.dtype(), lse.device());
  if (!output.rest.defined()) fill_kernel(rest, 0.0);
  undo(f, options.lengths, scales, output.unrounded, {lse, rest}, d_o, d);
}

}  // namespace quipu
