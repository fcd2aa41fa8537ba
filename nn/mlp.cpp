#include "quipu/nn/mlp.h"

#include "quipu/nn/width.h"
#include "quipu/ops/act.h"
#include "quipu/ops/pointwise/gelu.h"
#include "quipu/ops/pointwise/swiglu.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

std::int64_t hidden_of(std::int64_t features, const MLPOptions& options) {
  check_width("MLP: features", features);
  if (options.hidden != 0) {
    check_width("MLP: hidden", options.hidden);
    return options.hidden;
  }
  return options.kind == MLPKind::swiglu ? (8 * features + 2) / 3 : 4 * features;
}

Tensor activated(const Tensor& h, MLPKind kind) {
  switch (kind) {
    case MLPKind::silu: return act(h, Act::silu);
    case MLPKind::relu: return act(h, Act::relu);
    case MLPKind::gelu: return gelu(h);
    case MLPKind::swiglu: break;
  }
  const std::int64_t half = h.size(-1) / 2;
  return swiglu(h.slice(-1, 0, half), h.slice(-1, half));
}

}  // namespace

MLP::MLP(std::int64_t features, const MLPOptions& options, const Place& place)
    : kind(options.kind), drop(options.dropout) {
  check_enum("MLP: kind", kind, MLPKind::swiglu);
  const std::int64_t hidden = hidden_of(features, options);
  const std::int64_t made = kind == MLPKind::swiglu ? 2 * hidden : hidden;
  up = Linear(features, made, {.bias = options.bias}, place);
  down = Linear(hidden, features, {.bias = options.bias}, place);
}

Tensor MLP::operator()(const Tensor& x) const {
  const MemoryScope named = scope();
  return down(drop(activated(up(x), kind)));
}

}  // namespace quipu::nn
