// The table of operators: reductions, views, and those that put entries together or pick them.
#include <algorithm>
#include <numeric>

#include "operators.h"

namespace quipu::programs {
using namespace detail;
namespace {

using Outputs = Operator::Outputs;

/// Some dimensions, or none for all of them.
bool axes(Draw& d, Statement& s) {
  s.in = {d.some()};
  if (s.in[0] < 0) return false;
  for (int dim = 0; dim < d.at(s.in[0]).dim(); ++dim) {
    if (d.chance(0.4)) s.shape.push_back(dim);
  }
  s.n = {d.below(2)};
  return true;
}

bool dim_and_flag(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  s.n.push_back(d.below(2));
  return true;
}

bool some_of_dim(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  const auto size = static_cast<int>(d.at(s.in[0]).size(s.n[0]));
  s.n.insert(s.n.begin(), d.between(1, std::max(1, size)));  // how many, which dim, largest or not
  s.n.push_back(d.below(2));
  return size > 0;
}

bool part(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  const auto size = static_cast<int>(d.at(s.in[0]).size(s.n[0]));
  const int start = d.below(std::max(1, size));
  s.n.insert(s.n.end(), {start, d.between(std::min(start + 1, size), size), d.between(1, 2)});
  return size > 0;
}

bool order(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  s.shape = Dims::filled(d.at(s.in[0]).dim(), 0);
  for (int i = 0; i < s.shape.size(); ++i) {
    const int j = d.below(i + 1);
    s.shape[i] = s.shape[j];
    s.shape[j] = i;
  }
  return true;
}

bool two_dims(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  s.n.push_back(d.dim_of(d.at(s.in[0])));
  return true;
}

/// Another shape for the same entries.
bool other_shape(Draw& d, Statement& s) {
  s.in = {d.some()};
  if (s.in[0] < 0) return false;
  std::int64_t left = d.at(s.in[0]).numel();
  for (int dims = d.between(0, 3); dims > 0; --dims) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t k = 1; k <= left; ++k) {
      if (left % k == 0) divisors.push_back(k);
    }
    s.shape.push_back(divisors.empty() ? 0 : d.one_of(divisors));
    left /= std::max<std::int64_t>(1, s.shape.back());
  }
  if (left != 1 || s.shape.empty()) s.shape.push_back(left);
  return true;
}

bool new_dim(Draw& d, Statement& s) {
  s.in = {d.some()};
  if (s.in[0] < 0) return false;
  s.n = {d.between(-d.at(s.in[0]).dim() - 1, d.at(s.in[0]).dim())};
  return true;
}

bool dim_of_one(Draw& d, Statement& s) {
  return one_and_dim(d, s) && d.at(s.in[0]).size(s.n[0]) == 1;
}

bool wider(Draw& d, Statement& s) {
  s.in = {d.some()};
  if (s.in[0] < 0) return false;
  s.shape = d.at(s.in[0]).shape();
  for (int dim = 0; dim < s.shape.size(); ++dim) {
    if (s.shape[dim] == 1 && d.chance(0.7)) s.shape[dim] = d.size();
  }
  if (d.chance(0.5)) s.shape.insert(0, d.size());
  return true;
}

bool several(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  const Tensor x = d.at(s.in[0]);
  for (int more = d.between(0, 2); more > 0; --more) {
    Shape shape = x.shape();
    if (d.chance(0.5)) shape[wrap_dim(s.n[0], x.dim())] = d.size();
    s.in.push_back(d.chance(0.2) ? s.in[0] : d.like(shape, x.dtype()));
  }
  return true;
}

bool several_alike(Draw& d, Statement& s) {
  s.in = {d.some()};
  if (s.in[0] < 0) return false;
  const Tensor x = d.at(s.in[0]);
  for (int more = d.between(0, 2); more > 0; --more) s.in.push_back(d.like(x.shape(), x.dtype()));
  s.n = {d.between(-x.dim() - 1, x.dim())};
  return true;
}

bool cut(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  const auto size = static_cast<int>(d.at(s.in[0]).size(s.n[0]));
  s.n.insert(s.n.begin(), d.between(1, std::max(1, size)));
  return size > 0;
}

/// An index that is no larger than x in the other dimensions.
bool gathered(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  const Tensor x = d.at(s.in[0]);
  Shape shape = x.shape();
  for (int dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] > 1 && d.chance(0.3)) shape[dim] = d.between(1, static_cast<int>(shape[dim]));
  }
  const int dim = wrap_dim(s.n[0], x.dim());
  if (x.size(dim) == 0) return false;
  shape[dim] = d.size();
  s.in.push_back(d.index(shape, x.size(dim)));
  return true;
}

bool scattered(Draw& d, Statement& s) {
  if (!gathered(d, s)) return false;
  s.in.push_back(d.like(d.at(s.in[1]).shape(), d.at(s.in[0]).dtype()));
  return true;
}

bool selected(Draw& d, Statement& s) {
  if (!one_and_dim(d, s)) return false;
  const std::int64_t size = d.at(s.in[0]).size(s.n[0]);
  if (size == 0) return false;
  s.in.push_back(d.index({d.size()}, size));
  return true;
}

bool rows(Draw& d, Statement& s) {
  s.in = {d.find([](const Tensor& x) { return is_float(x) && x.dim() == 2 && x.numel() > 0; })};
  if (s.in[0] < 0) return false;
  s.in.push_back(d.index(d.shape(d.between(0, 2)), d.at(s.in[0]).size(0)));
  return true;
}

bool product(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  const Tensor a = d.at(s.in[0]);
  Shape b = d.shape(d.below(2));
  b.insert(0, a.shape().back());
  if (b.size() == 2 && a.dim() > 2 && d.chance(0.5)) b.insert(0, a.size(-3));
  s.in.push_back(d.like(b, a.dtype()));
  return true;
}

bool layer(Draw& d, Statement& s) {
  s.in = {d.some(1)};
  if (s.in[0] < 0) return false;
  const Tensor x = d.at(s.in[0]);
  const std::int64_t out = d.size();
  s.in.push_back(d.like({out, x.shape().back()}, x.dtype()));
  s.in.push_back(d.like({out}, x.dtype()));
  return true;
}

}  // namespace

void add_reductions(std::vector<Operator>& table) {
  constexpr unsigned kink = Operator::kink, light = Operator::keeps_nothing;
  table.insert(
      table.end(),
      {
          {"sum", axes, CALL(sum(in[0], Axes(shape), n[0] != 0)), light, 2},
          {"mean", axes, CALL(mean(in[0], Axes(shape), n[0] != 0)), light},
          {"var", axes, CALL(var(in[0], Axes(shape), false, n[0] != 0))},
          {"logsumexp", axes, CALL(logsumexp(in[0], Axes(shape), n[0] != 0))},
          {"max", dim_and_flag, CALL(max(in[0], n[0], n[1] != 0)), kink},
          {"min", dim_and_flag, CALL(min(in[0], n[0], n[1] != 0)), kink},
          {"max", one, CALL(max(in[0])), kink},
          {"min", one, CALL(min(in[0])), kink},
          {"argmax", dim_and_flag, CALL(argmax(in[0], n[0], n[1] != 0)), kink},
          {"argmin", dim_and_flag, CALL(argmin(in[0], n[0], n[1] != 0)), kink},
          {"max_with_index", dim_and_flag, CALL(max_with_index(in[0], n[0], n[1] != 0)), kink, 1,
           Outputs::extremes},
          {"min_with_index", dim_and_flag, CALL(min_with_index(in[0], n[0], n[1] != 0)), kink, 1,
           Outputs::extremes},
          {"top_k", some_of_dim, CALL(top_k(in[0], n[0], n[1], n[2] != 0)), kink, 2,
           Outputs::top_k},
          {"prod", axes, CALL(prod(in[0], Axes(shape), n[0] != 0))},
          {"stddev", axes, CALL(stddev(in[0] * 2 + 1, Axes(shape), 0, n[0] != 0)), kink},
          {"norm", axes, CALL(norm(in[0], 2, Axes(shape), n[0] != 0)), kink},
          {"norm", axes, CALL(norm(in[0], 1, Axes(shape), n[0] != 0)), kink},
          {"any", axes, CALL(any(in[0] > 0, Axes(shape), n[0] != 0)), kink},
          {"log_softmax", one_and_dim, CALL(log_softmax(in[0], n[0]))},
          {"softmax", one_and_dim, CALL(softmax(in[0], n[0]))},
          {"cumsum", one_and_dim, CALL(cumsum(in[0], n[0])), light},
          {"cumsum", one_and_dim, CALL(cumsum(in[0], n[0], true, true)), light},
          {"cumprod", one_and_dim, CALL(cumprod(in[0], n[0]))},
          {"cummax", one_and_dim, CALL(cummax(in[0], n[0])), kink, 1, Outputs::extremes},
          {"cummin", one_and_dim, CALL(cummin(in[0], n[0], true)), kink, 1, Outputs::extremes},
          {"sort", one_and_dim, CALL(sort(in[0], n[0])), kink, 1, Outputs::top_k},
          {"argsort", one_and_dim, CALL(argsort(in[0], n[0], true)), kink},
      });
}

void add_views(std::vector<Operator>& table) {
  const auto add = [&](const char* name, auto draw, auto run, const char* text, std::nullptr_t) {
    table.push_back({name, draw, run, text, nullptr, Operator::keeps_nothing});
  };
  add("reshape", other_shape, CALL(in[0].reshape(shape)));
  add("flatten", one, CALL(in[0].flatten()));
  add("transpose", two_dims, CALL(in[0].transpose(n[0], n[1])));
  add("t", matrix, CALL(in[0].t()));
  add("permute", order, CALL(in[0].permute(shape)));
  add("slice", part, CALL(in[0].slice(n[0], n[1], n[2], n[3])));
  add("select", part, CALL(in[0].select(n[0], n[1])));
  add("unsqueeze", new_dim, CALL(in[0].unsqueeze(n[0])));
  add("squeeze", one, CALL(in[0].squeeze()));
  add("squeeze", dim_of_one, CALL(in[0].squeeze(n[0])));
  add("expand", wider, CALL(in[0].expand(shape)));
  add("index", one_and_dim, CALL(in[0](0, new_axis, rest)));
  add("index", matrix, CALL(in[0].index({all, slice(0, {}, 2), rest})));
  add("diagonal", matrix, CALL(in[0].diagonal(0, -2, -1)));
  add("flip", one, CALL(flip(in[0])));
  add("roll", one_and_dim, CALL(roll(in[0], 2, n[0])));
  add("repeat", one_and_dim, CALL(repeat(in[0], Dims::filled(in[0].dim(), 2))));
  add("pad", one_and_dim, CALL(pad(in[0], {{1, 2}})));
  add("slice", one_and_dim, CALL(in[0].slice(n[0], -1, {}, -2)));
  add("contiguous", one, CALL(in[0].contiguous()));
  add("clone", one, CALL(in[0].clone()));
  add("to", one, CALL(in[0].to(in[0].device())));
  // Moved leaves may have other strides, so it is not for differences.
  table.push_back(
      {"view", other_shape, CALL(in[0].view(shape)), Operator::keeps_nothing | Operator::kink});
  table.push_back({"detach", one, CALL(in[0].detach()), Operator::keeps_nothing | Operator::kink});
}

void add_structure(std::vector<Operator>& table) {
  constexpr unsigned light = Operator::keeps_nothing;
  table.insert(
      table.end(),
      {
          {"matmul", product, CALL(matmul(in[0], in[1])), 0, 3},
          {"linear", layer, FUSED(linear, in[0], in[1], in[2]), 0, 2},
          {"linear", layer, FUSED(linear, in[0], in[1])},
          {"cat", several, CALL(cat(in, n[0])), light, 3},
          {"stack", several_alike, CALL(stack(in, n[0])), light, 2},
          {"split", cut, CALL(split(in[0], n[0], n[1])), light, 3, Outputs::list},
          {"gather", gathered, CALL(gather(in[0], n[0], in[1]))},
          {"index_select", selected, CALL(index_select(in[0], n[0], in[1]))},
          {"scatter_add", scattered, CALL(scatter_add(in[0], n[0], in[1], in[2]))},
          {"scatter", scattered, CALL(scatter(in[0], n[0], in[1], in[2]))},
          {"scatter", scattered, CALL(scatter(in[0], n[0], in[1], in[2], ScatterMode::max)),
           Operator::kink},
          {"scatter", scattered, CALL(scatter(in[0], n[0], in[1], in[2], ScatterMode::mul))},
          {"tril", matrix, CALL(tril(in[0]))},
          {"triu", matrix, CALL(triu(in[0], 1))},
          {"addmm", product, CALL(addmm(in[1].flatten().slice(0, 0, 1), in[0], in[1]))},
          {"outer", one, CALL(outer(in[0].flatten(), in[0].flatten()))},
          {"einsum", matrix, CALL(einsum("...ij,...kj->...ki", {in[0], in[0]}))},
          {"embedding", rows, CALL(embedding(in[0], in[1]))},
      });
}

}  // namespace quipu::programs
