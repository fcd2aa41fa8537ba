#include "fused_cases.h"

#include <quipu/quipu.h>

#include <set>
#include <tuple>

namespace quipu::testing {
using namespace detail;
namespace {

using Tensors = std::vector<Tensor>;

/// Batch, tokens, heads, features; features are even.
struct Size {
  std::int64_t b, n, h, d;
};
constexpr Size small_sizes[small_inputs] = {
    {1, 1, 1, 2}, {1, 2, 1, 2},  {2, 1, 1, 2}, {1, 1, 2, 2},  {1, 3, 1, 4},  {2, 3, 1, 2},
    {1, 5, 2, 2}, {3, 1, 2, 4},  {1, 1, 1, 8}, {2, 2, 2, 2},  {1, 7, 1, 2},  {1, 1, 3, 6},
    {5, 1, 1, 2}, {1, 4, 1, 10}, {2, 2, 1, 6}, {1, 1, 5, 4},  {3, 3, 1, 2},  {1, 2, 3, 4},
    {1, 9, 1, 2}, {2, 1, 2, 12}, {1, 3, 2, 6}, {1, 1, 1, 16}, {4, 2, 1, 4},  {1, 6, 1, 6},
    {2, 5, 1, 2}, {1, 2, 2, 14}, {1, 1, 7, 2}, {7, 1, 1, 4},  {1, 13, 1, 2}, {1, 1, 1, 34}};
constexpr Size large_size{4, 70, 6, 64}, large_emulated_size{1, 70, 6, 64};

/// An operator whose k-th case comes from its k-th size.
FusedOperator by_size(const std::string& name, FusedCase (*make)(const Size&, int k)) {
  return {name, [make](int k) { return make(small_sizes[k], k); }, make(large_size, 0),
          make(large_emulated_size, 0)};
}

struct Choice {
  Act act;
  std::optional<int> dim;
};
/// The k-th activation; `sequence` is the dimension of the tokens.
Choice choice(int k, int sequence) {
  const Choice choices[] = {{Act::silu, {}},    {Act::softmax, -1},       {Act::none, {}},
                            {Act::sigmoid, {}}, {Act::softmax, sequence}, {Act::relu, {}}};
  return choices[k % 6];
}

/// Input i if there are that many, else none.
Tensor input(const Tensors& in, std::size_t i) {
  return i < in.size() ? in[i] : Tensor();
}

/// The same numbers in one to four dimensions.
Shape any_shape(const Size& s, int k) {
  if (k % 4 == 0) return {s.b, s.n, s.h, s.d};
  if (k % 4 == 1) return {s.b * s.n, s.h * s.d};
  if (k % 4 == 2) return {s.b, s.n, s.h * s.d};
  return {s.b * s.n * s.h * s.d};
}

template <Act kind>
FusedCase act_case(const Size& s, int k) {
  const Shape shape = any_shape(s, k);
  std::optional<int> dim;
  if (kind == Act::softmax) dim = (k / 4) % shape.size();
  return {std::string("act ") + name_of(kind),
          {shape},
          [=](const Tensors& in) { return act(in[0], kind, dim); },
          [=](const Tensors& in) { return act_composed(in[0], kind, dim); }};
}

FusedCase gelu_case(const Size& s, int k) {
  return {"gelu",
          {any_shape(s, k)},
          [](const Tensors& in) { return gelu(in[0]); },
          [](const Tensors& in) { return gelu_composed(in[0]); }};
}

FusedCase swiglu_case(const Size& s, int k) {
  return {"swiglu",
          {any_shape(s, k), any_shape(s, k)},
          [](const Tensors& in) { return swiglu(in[0], in[1]); },
          [](const Tensors& in) { return swiglu_composed(in[0], in[1]); }};
}

template <auto fused, auto composed, int halves>
FusedCase lrpe_case(const Size& s, int k) {
  const bool headless = s.h == 1 && k % 2 == 1;
  const std::int64_t d = halves == 1 && k % 3 == 1 ? s.d - 1 : s.d, angles = d / halves;
  const Shape thetas[] = {{s.h, angles}, {1, angles}, {s.h, 1}, {s.h, (angles + 1) / 2}};
  const Choice c = choice(k, headless ? -2 : 1);
  const LrpeOptions options{c.act, c.dim, k % 5, k % 3 == 2};
  const auto with = [=](auto f) {
    return [=](const Tensors& in) { return f(in[0], in[1], options); };
  };
  return {halves == 2 ? "lrpe_rotate" : "lrpe_cosine",
          {headless ? Shape{s.b, s.n, d} : Shape{s.b, s.n, s.h, d}, thetas[k % 4]},
          with(fused),
          with(composed),
          1};
}

FusedCase lrpe_cosine_md_case(const Size& s, int k) {
  const Shape grids[] = {{s.n}, {1, s.n}, {s.n, 2}, {2, 1, s.n}, {1, s.n, 1, 1}};
  const Shape grid = grids[k % 5];
  const std::int64_t l = k % 2 == 0 ? 0 : 1 + k % 3, d = k % 3 == 1 ? s.d - 1 : s.d;
  const Choice c = choice(k, -2);
  const LrpeMdOptions options{l, c.act, c.dim, k % 4 >= 2};
  const Shape theta{k % 4 == 1 ? 1 : s.h, (d + grid.size() - 1) / grid.size()};
  const auto with = [=](auto f) {
    return [=](const Tensors& in) { return f(in[0], in[1], grid, options); };
  };
  return {"lrpe_cosine_md",
          {{s.b, s.h, l + numel(grid), d}, theta},
          with(lrpe_cosine_md),
          with(lrpe_cosine_md_composed),
          1};
}

FusedCase flao_case(const Size& s, int k) {
  const bool on_grid = k % 4 == 3;
  const std::int64_t m = on_grid ? s.n : 1 + (s.n * 3 + k) % 8, e = 1 + (s.d + k) % 5;
  const Choice q = choice(k, -2), key = choice(k / 2 + 1, -2), v = choice(k / 3 + 2, -2),
               g = choice(k / 5 + 3, -2);
  const FlaoOptions options{q.act, q.dim, key.act, key.dim, v.act, v.dim, g.act, g.dim};
  const bool is_large = s.n == large_size.n;
  const auto with = [=](auto f) {
    return [=](const Tensors& in) {
      FlaoOptions more = options;
      more.keep = static_cast<FlaoKeep>(k % 3);
      more.lrpe = static_cast<FlaoLrpe>(k % 4);
      more.theta = input(in, 4);
      if (k % 4 == 1 || k % 4 == 2) more.offset = k % 3;
      if (on_grid) more.l = s.n > 1 ? 1 : 0;
      if (on_grid) more.shape = {s.n - more.l};
      return f(in[0], in[1], in[2], in[3], more);
    };
  };
  const std::int64_t tokens = is_large ? s.n : m, width = is_large ? s.d : e;
  FusedCase c{"flao",
              {{s.b, s.h, s.n, s.d},
               {s.b, s.h, tokens, s.d},
               {s.b, s.h, tokens, width},
               {s.b, s.h, s.n, width}},
              with(flao),
              with(flao_composed),
              4};
  const Shape thetas[] = {{}, {s.h, s.d / 2}, {1, s.d}, {s.h, s.d + k % 2}};
  if (k % 4 > 0) c.inputs.push_back(thetas[k % 4]);
  return c;
}

FusedCase tpa_case(const Size& s, int k) {
  static const auto rows = pairwise({2, 2, 2, 2, 2, 2, 2});
  const std::vector<int>& row = rows[static_cast<std::size_t>(k) % rows.size()];
  const std::int64_t key_rank = 1 + row[0], value_rank = 1 + row[1], r = 1 + k % 3;
  const std::int64_t d = 1 + s.d / 2, e = 1 + s.d % 5;
  TpaOptions options;
  if (row[2]) options.scale = -0.4;
  if (row[3]) options.scale_q = 0.7;
  if (row[4]) options.scale_k = 1.3;
  if (row[5]) options.scale_v = -0.8;
  const auto entries = [&](std::int64_t rank, std::int64_t width) {
    return rank == 1 ? Shape{s.b, s.n, width} : Shape{s.b, s.n, rank, width};
  };
  const auto with = [=, has_lengths = row[6] != 0](auto f) {
    return [=](const Tensors& in) {
      TpaOptions more = options;
      if (has_lengths) more.lengths = full({s.b}, s.n - s.n / 3, i64, in[0].device());
      return f(in[0], in[1], in[2], in[3], in[4], in[5], more);
    };
  };
  return {"tpa_decode",
          {{s.b, 1, s.h, r},
           entries(key_rank, s.h),
           entries(value_rank, s.h),
           {s.b, 1, r, d},
           entries(key_rank, d),
           entries(value_rank, e)},
          with(tpa_decode),
          with(tpa_decode_composed)};
}

constexpr double eps = 0.1;  // large, so that short rows are smooth enough for differences

FusedCase rms_norm_case(const Size& s, int k) {
  FusedCase c{"rms_norm",
              {{s.b, s.n, s.h * s.d}},
              [](const Tensors& in) { return rms_norm(in[0], input(in, 1), eps); },
              [](const Tensors& in) { return rms_norm_composed(in[0], input(in, 1), eps); }};
  if (k % 3 != 1) c.inputs.push_back({s.h * s.d});
  return c;
}

FusedCase layer_norm_case(const Size& s, int k) {
  FusedCase c{"layer_norm",
              {{s.b, s.n, s.h * s.d}},
              [](const Tensors& in) { return layer_norm(in[0], input(in, 1), input(in, 2), eps); },
              [](const Tensors& in) {
                return layer_norm_composed(in[0], input(in, 1), input(in, 2), eps);
              }};
  for (int i = 0; i < 2 - k % 3; ++i) c.inputs.push_back({s.h * s.d});
  return c;
}

FusedCase group_norm_case(const Size& s, int k) {
  const std::int64_t channels = 2 * s.h, choices[] = {2, 1, channels};
  const std::int64_t groups = choices[k % 3];
  const auto with = [=](auto f) {
    return [=](const Tensors& in) { return f(in[0], groups, input(in, 1), input(in, 2), eps); };
  };
  FusedCase c{"group_norm",
              {k % 2 == 0 ? Shape{s.b, channels, s.n, s.d} : Shape{s.b, channels, s.n * s.d}},
              with(group_norm),
              with(group_norm_composed)};
  for (int i = 0; i < 2 - k / 3 % 3; ++i) c.inputs.push_back({channels});
  return c;
}

}  // namespace

Tensors FusedCase::make_inputs(DType dtype, Device device) const {
  Generator generator(2024);
  Tensors made;
  for (const Shape& shape : inputs) {
    if (made.size() == theta) {
      const DType type = dtype == f64 ? f64 : f32;
      Generator own(5);
      made.push_back(rand(shape, f64, device, own).to(type).detach());
      continue;
    }
    const Tensor x = randn(shape, f64, device, generator);
    made.push_back(where(x < 0, x - 0.05, x + 0.05).to(dtype).detach());
  }
  return made;
}

const std::vector<FusedOperator>& fused_operators() {
  static const std::vector<FusedOperator> operators{
      by_size("act relu", act_case<Act::relu>),
      by_size("act sigmoid", act_case<Act::sigmoid>),
      by_size("act silu", act_case<Act::silu>),
      by_size("act softmax", act_case<Act::softmax>),
      by_size("gelu", gelu_case),
      by_size("swiglu", swiglu_case),
      by_size("lrpe_rotate", lrpe_case<lrpe_rotate, lrpe_rotate_composed, 2>),
      by_size("lrpe_cosine", lrpe_case<lrpe_cosine, lrpe_cosine_composed, 1>),
      by_size("lrpe_cosine_md", lrpe_cosine_md_case),
      by_size("flao", flao_case),
      by_size("tpa_decode", tpa_case),
      by_size("rms_norm", rms_norm_case),
      by_size("layer_norm", layer_norm_case),
      by_size("group_norm", group_norm_case),
  };
  return operators;
}

std::vector<std::vector<int>> pairwise(const std::vector<int>& levels) {
  using Pair = std::tuple<std::size_t, int, std::size_t, int>;
  std::set<Pair> open;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    for (std::size_t j = i + 1; j < levels.size(); ++j) {
      for (int a = 0; a < levels[i]; ++a) {
        for (int b = 0; b < levels[j]; ++b) open.insert({i, a, j, b});
      }
    }
  }
  const auto is_open = [&](std::size_t i, int a, std::size_t j, int b) {
    return i < j ? open.contains({i, a, j, b}) : open.contains({j, b, i, a});
  };
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    // From an open pair on, each option takes what closes most pairs with those before it.
    const auto [first, first_choice, second, second_choice] = *open.begin();
    std::vector<int> row(levels.size(), -1);
    row[first] = first_choice;
    row[second] = second_choice;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      if (row[i] >= 0) continue;
      int best = -1;
      for (int a = 0; a < levels[i]; ++a) {
        const int choice_of = (a + static_cast<int>(rows.size())) % levels[i];
        int closed = 0;
        for (std::size_t j = 0; j < levels.size(); ++j) {
          closed += row[j] >= 0 && is_open(i, choice_of, j, row[j]);
        }
        if (closed > best) {
          best = closed;
          row[i] = choice_of;
        }
      }
    }
    std::erase_if(open, [&](const Pair& p) {
      return row[std::get<0>(p)] == std::get<1>(p) && row[std::get<2>(p)] == std::get<3>(p);
    });
    rows.push_back(row);
  }
  return rows;
}

}  // namespace quipu::testing
