// The table of operators: fused ones, losses, dropout, and operators of a user's own.
#include "custom.h"
#include "operators.h"

namespace quipu::programs {
using namespace detail;
namespace {

bool softmax(Draw& d, Statement& s) {
  return one_and_dim(d, s);
}

/// One of the activations that need no dimension.
bool activation(Draw& d, Statement& s) {
  s.n = {d.below(4)};
  return one(d, s);
}

bool dropped(Draw& d, Statement& s) {
  s.n = {d.between(0, 6), d.below(100)};
  return one(d, s);
}

bool row_norm(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  const Tensor x = d.at(s.in[0]);
  for (int k = 0; k < 2; ++k) s.in.push_back(d.like({x.shape().back()}, x.dtype()));
  return x.numel() > 0;
}

bool channel_norm(Draw& d, Statement& s) {
  s.in = {d.some(2)};
  if (s.in[0] < 0) return false;
  const Tensor x = d.at(s.in[0]);
  for (int k = 0; k < 2; ++k) s.in.push_back(d.like({x.size(1)}, x.dtype()));
  s.n = {x.size(1) % 2 == 0 && d.chance(0.5) ? 2 : d.chance(0.5) ? 1 : static_cast<int>(x.size(1))};
  return x.numel() > 0;
}

DType theta_type(DType x) {
  return x == f64 ? f64 : f32;
}

/// x (b, n, h, d) with theta (h, angles), an activation and an offset.
bool encoded(Draw& d, Statement& s) {
  const std::int64_t features = 2 * d.between(1, 2), heads = d.between(1, 2);
  s.in = {d.like({d.between(1, 2), d.size(), heads, features}, d.dtype())};
  s.in.push_back(d.like({heads, features / 2}, theta_type(d.dtype())));
  s.n = {d.below(4), d.below(3), d.below(2)};
  return true;
}

/// x (b, h, l + prod(shape), d) with theta (1, features of an axis).
bool encoded_on_grid(Draw& d, Statement& s) {
  s.shape = d.shape(d.between(1, 2));
  s.n = {d.below(2), d.below(4)};
  const std::int64_t features = d.between(1, 4);
  s.in = {d.like({d.between(1, 2), d.between(1, 2), s.n[0] + numel(s.shape), features}, d.dtype())};
  s.in.push_back(d.like({1, features}, theta_type(d.dtype())));
  return true;
}

bool linear_attention(Draw& d, Statement& s) {
  const std::int64_t b = d.between(1, 2), h = d.between(1, 2), n = d.size(), m = d.size();
  const std::int64_t width = 2 * d.between(1, 2), e = d.size();
  for (const Shape& shape :
       {Shape{b, h, n, width}, Shape{b, h, m, width}, Shape{b, h, m, e}, Shape{b, h, n, e}}) {
    s.in.push_back(d.like(shape, d.dtype()));
  }
  s.in.push_back(d.like({h, width / 2}, theta_type(d.dtype())));
  s.n = {d.below(4), d.below(4), d.below(4), d.below(4), d.below(3)};
  return true;
}

bool softmax_attention(Draw& d, Statement& s) {
  const std::int64_t b = d.between(1, 2), hk = d.between(1, 2), h = hk * d.between(1, 2);
  const std::int64_t n = d.size(), m = d.size(), width = d.size(), e = d.size();
  for (const Shape& shape : {Shape{b, h, n, width}, Shape{b, hk, m, width}, Shape{b, hk, m, e}}) {
    s.in.push_back(d.like(shape, d.dtype()));
  }
  s.n = {d.below(2)};
  return true;
}

bool factored_attention(Draw& d, Statement& s) {
  const std::int64_t b = d.between(1, 2), m = d.size(), h = d.between(1, 2), r = d.between(1, 2);
  const std::int64_t width = d.size(), e = d.size();
  for (const Shape& shape : {Shape{b, 1, h, r}, Shape{b, m, h}, Shape{b, m, h},
                             Shape{b, 1, r, width}, Shape{b, m, width}, Shape{b, m, e}}) {
    s.in.push_back(d.like(shape, d.dtype()));
  }
  return true;
}

/// Logits and targets, a share of smoothing, a reduction.
bool classified(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  Shape rows = d.at(s.in[0]).shape();
  const std::int64_t classes = rows.back();
  if (classes == 0) return false;
  rows.erase(rows.size() - 1);
  s.in.push_back(d.index(rows, classes));
  s.n = {d.below(3), d.below(3)};
  return true;
}

bool classified_rows(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  const Tensor x = d.at(s.in[0]);
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  const std::int64_t classes = d.size();
  s.in.push_back(d.like({classes, x.shape().back()}, x.dtype()));
  s.in.push_back(d.index(rows, classes));
  s.in.push_back(d.like({classes}, x.dtype()));
  s.n = {d.below(3), d.below(3)};
  return true;
}

bool two_and_reduction(Draw& d, Statement& s) {
  s.n = {d.below(3)};
  return two_alike(d, s);
}

bool function(Draw& d, Statement& s) {
  return d.body(s);
}

}  // namespace

void add_fused(std::vector<Operator>& table) {
  constexpr unsigned kink = Operator::kink;
  table.insert(
      table.end(),
      {
          {"act", activation, FUSED(act, in[0], Act(n[0])), kink},
          {"act", one, FUSED(act, in[0], Act::silu)},
          {"act", softmax, FUSED(act, in[0], Act::softmax, n[0]), 0, 2},
          {"gelu", one, FUSED(gelu, in[0])},
          {"normal_cdf", one, CALL(normal_cdf(in[0]))},
          {"swiglu", two_alike, FUSED(swiglu, in[0], in[1])},
          {"dropout", dropped, CALL(dropout(in[0], n[0] / 8.0))},
          {"dropout", dropped, CALL(dropout(in[0], n[0] / 8.0, shared_generator()))},
          {"dropout", dropped, CALL([&] {
             Generator own(static_cast<std::uint64_t>(n[1]));
             return dropout(in[0], n[0] / 8.0, own);
           }())},
          {"rms_norm", row_norm, FUSED(rms_norm, in[0], {}, 0.1)},
          {"rms_norm", row_norm, FUSED(rms_norm, in[0], in[1], 0.1)},
          {"layer_norm", row_norm, FUSED(layer_norm, in[0], {}, {}, 0.1)},
          {"layer_norm", row_norm, FUSED(layer_norm, in[0], in[1], in[2], 0.1)},
          {"group_norm", channel_norm, FUSED(group_norm, in[0], n[0], in[1], in[2], 0.1)},
          {"lrpe_rotate", encoded,
           FUSED(lrpe_rotate, in[0], in[1], {Act(n[0]), {}, n[1], n[2] != 0}), kink},
          {"lrpe_cosine", encoded,
           FUSED(lrpe_cosine, in[0], in[1], {Act(n[0]), {}, n[1], n[2] != 0}), kink},
          {"lrpe_cosine_md", encoded_on_grid,
           FUSED(lrpe_cosine_md, in[0], in[1], shape, {n[0], Act(n[1])}), kink},
          {"flao", linear_attention,
           FUSED(flao, in[0], in[1], in[2], in[3],
                 {.q_act = Act(n[0]),
                  .k_act = Act(n[1]),
                  .v_act = Act(n[2]),
                  .g_act = Act(n[3]),
                  .keep = FlaoKeep(n[4])}),
           kink},
          {"flao", linear_attention,
           FUSED(flao, in[0], in[1], in[2], in[3],
                 {.q_act = Act::silu,
                  .k_act = Act::softmax,
                  .k_dim = -1,
                  .lrpe = FlaoLrpe::rotate,
                  .theta = in[4],
                  .keep = FlaoKeep(n[4])})},
          {"attention", softmax_attention,
           FUSED(attention, in[0], in[1], in[2], {.causal = n[0] != 0}), 0, 2},
          {"tpa_decode", factored_attention,
           FUSED(tpa_decode, in[0], in[1], in[2], in[3], in[4], in[5]), 0, 2},
          {"cross_entropy", classified,
           FUSED(cross_entropy, in[0], in[1],
                 {.label_smoothing = n[0] / 8.0, .reduction = LossReduction(n[1])})},
          {"linear_cross_entropy", classified_rows,
           FUSED(linear_cross_entropy, in[0], in[1], in[2],
                 {.label_smoothing = n[0] / 8.0, .reduction = LossReduction(n[1])}, in[3])},
          {"mse_loss", two_and_reduction, CALL(mse_loss(in[0], in[1], LossReduction(n[0])))},
      });
}

void add_custom(std::vector<Operator>& table) {
  table.push_back({"apply", one, CALL(apply(Cube{}, in[0]))});
  table.push_back({"apply", two_alike, CALL(apply(Blend{}, in[0], in[1]))});
  table.push_back({"apply", two, CALL(apply(Gate{}, in[0], in[1]))});
}

const std::vector<Operator>& operators() {
  static const std::vector<Operator> table = [] {
    std::vector<Operator> all{{"recompute", function, nullptr, "", nullptr, 0, 3}};
    add_pointwise(all);
    add_reductions(all);
    add_views(all);
    add_structure(all);
    add_fused(all);
    add_custom(all);
    add_in_place(all);
    return all;
  }();
  return table;
}

}  // namespace quipu::programs
