// Calls of the fused families.
#include "calls.h"

namespace quipu::calls {

using Tensors = std::vector<Tensor>;

Tensors activations(Draw& d) {
  const Shape shape = d.shape(1 + static_cast<int>(d.below(4)));
  const Act kind = d.act();
  const std::optional<int> dim =
      kind == Act::softmax ? std::optional<int>(d.dim_of(shape)) : std::nullopt;
  return {act(d.tensor(shape, d.floating(), d.one_of({1.0, 20.0})), kind, dim)};
}

Tensors gates(Draw& d) {
  const Shape shape = d.shape(2);
  const DType dtype = d.floating();
  return {swiglu(d.tensor(shape, dtype), d.tensor(shape, dtype))};
}

Tensors encodings(Draw& d) {
  const DType dtype = d.floating();
  const std::int64_t b = 1 + d.below(3), h = 1 + d.below(3), n = d.size(80);
  const std::int64_t half = 1 + d.below(40), features = 2 * half;
  const Act kind = d.act();
  const bool sequence = kind == Act::softmax && d.chance(2) && n > 0;
  const DType angle = dtype == f64 || d.chance(2) ? dtype : f32;
  LrpeOptions options{
      .act = kind, .offset = d.one_of<std::int64_t>({0, 3, 1000}), .keep_angles = d.chance(2)};
  if (kind == Act::softmax) options.dim = sequence ? 1 : -1;
  const std::int64_t heads = d.chance(3) ? 1 : h;
  const auto theta = [&](std::int64_t angles) {
    return d.tensor({heads, d.chance(4) ? 1 : angles}, angle);
  };
  const auto columns = [&](std::int64_t angles) {
    return d.tensor({heads, angles + d.below(2)}, angle);
  };
  const Tensor x = d.tensor({b, n, h, features}, dtype);
  switch (d.below(3)) {
    case 0: return {lrpe_rotate(x, theta(half), options)};
    case 1: return {lrpe_cosine(x, theta(features), options)};
    default: {
      const Shape grid = d.one_of<Shape>({{2, 3}, {4, 5}, {2, 3, 4}, {7}});
      const std::int64_t lead = d.below(3), axes = grid.size();
      Tensor y = d.tensor({b, h, lead + numel(grid), features}, dtype);
      return {lrpe_cosine_md(
          y, columns((features + axes - 1) / axes), grid,
          {.l = lead,
           .act = kind,
           .dim = kind == Act::softmax ? std::optional<int>(sequence ? -2 : -1) : std::nullopt,
           .keep_angles = d.chance(2)})};
    }
  }
}

Tensors linear_attention(Draw& d) {
  const DType dtype = d.floating();
  const std::int64_t b = 1 + d.below(2), h = 1 + d.below(3), n = 1 + d.below(90),
                     m = d.chance(2) ? n : 1 + d.below(150);
  const std::int64_t width = d.one_of<std::int64_t>({2, 8, 14, 16, 32, 64, 66, 128});
  const std::int64_t e = d.one_of<std::int64_t>({1, 8, 15, 16, 32, 64, 70, 128});
  FlaoOptions options;
  const auto draw_act = [&](Act& kind, std::optional<int>& dim) {
    kind = d.act();
    if (kind == Act::softmax) dim = d.chance(2) ? -1 : -2;
  };
  draw_act(options.q_act, options.q_dim);
  draw_act(options.k_act, options.k_dim);
  draw_act(options.v_act, options.v_dim);
  draw_act(options.g_act, options.g_dim);
  options.lrpe = d.one_of({FlaoLrpe::none, FlaoLrpe::rotate, FlaoLrpe::cosine});
  options.keep = d.one_of({FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv});
  if (options.lrpe != FlaoLrpe::none) {
    const std::int64_t angles = options.lrpe == FlaoLrpe::rotate ? width / 2 : width;
    options.theta = d.tensor({d.chance(2) ? 1 : h, angles}, dtype == f64 ? f64 : f32);
    options.offset = d.one_of<std::int64_t>({0, 5});
  }
  return {flao(d.tensor({b, h, n, width}, dtype), d.tensor({b, h, m, width}, dtype),
               d.tensor({b, h, m, e}, dtype), d.tensor({b, h, n, e}, dtype), options)};
}

Tensors softmax_attention(Draw& d) {
  const DType dtype = d.floating();
  const std::int64_t b = 1 + d.below(2), keys = 1 + d.below(2), h = keys * (1 + d.below(3));
  const std::int64_t m = 1 + d.below(150), n = d.chance(2) ? m : 1 + d.below(m);
  const std::int64_t width = d.one_of<std::int64_t>({1, 8, 16, 31, 32, 64, 72, 128});
  const std::int64_t e = d.chance(2) ? width : d.one_of<std::int64_t>({8, 16, 33, 64});
  return {attention(
      d.tensor({b, h, n, width}, dtype, d.one_of({1.0, 4.0})), d.tensor({b, keys, m, width}, dtype),
      d.tensor({b, keys, m, e}, dtype),
      {.causal = d.chance(2), .scale = d.chance(3) ? std::optional<double>(0.3) : std::nullopt})};
}

Tensors factored_attention(Draw& d) {
  const DType dtype = d.floating();
  const std::int64_t b = 1 + d.below(3), m = d.chance(8) ? 0 : 1 + d.below(300),
                     h = 1 + d.below(16);
  const std::int64_t r = 1 + d.below(6), width = d.one_of<std::int64_t>({4, 8, 16, 17, 32, 64});
  const std::int64_t e = d.chance(2) ? width : d.one_of<std::int64_t>({8, 15, 16, 32});
  TpaOptions options;
  options.split = d.chance(2);
  if (d.chance(2)) options.lengths = d.whole({b}, 0, m + 1).contiguous();
  const auto factor = [&](std::int64_t rank, std::int64_t features) {
    return rank == 0 ? d.tensor({b, m, features}, dtype) : d.tensor({b, m, rank, features}, dtype);
  };
  const std::int64_t keys = d.below(3), values = d.below(3);  // ranks; 0 has no dimension for it
  return {tpa_decode(d.tensor({b, 1, h, r}, dtype), factor(keys, h), factor(values, h),
                     d.tensor({b, 1, r, width}, dtype), factor(keys, width), factor(values, e),
                     options)};
}

}  // namespace quipu::calls
