// Position encodings. Forward reads x and writes the output; backward reads the upstream gradient,
// x where there is an activation, and reads and writes the gradient.
#include <quipu/quipu.h>

#include <cmath>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

/// Counted in tensors of the size of x: the output has `widths` of them.
OperatorRun run_of(const Shape& shape, DType dtype, bool has_act, int widths,
                   std::function<Tensor(const std::vector<Tensor>&)> call) {
  const auto elements = static_cast<double>(numel(shape));
  const double flops = elements * ((has_act ? 17 : 0) + 2 * widths);
  return {{normal(shape, dtype)},
          std::move(call),
          {bytes_of((1 + widths) * elements, dtype), flops},
          {bytes_of((widths + 2 + (has_act ? 1 : 0)) * elements, dtype), flops}};
}

void add_rotate(const std::string& op, const std::string& variant, const LrpeOptions& options,
                Tensor (*f)(const Tensor&, const Tensor&, const LrpeOptions&)) {
  add_operator(op, variant, [=](DType dtype, std::int64_t n) {
    return run_of({batch, n, heads, head_dim}, dtype, options.act != Act::none, 1,
                  [=, theta = normal({heads, head_dim / 2}, f32)](const std::vector<Tensor>& in) {
                    return f(in[0], theta, options);
                  });
  });
}

/// The sides of a grid of about n tokens are rounded roots.
Shape grid_of(std::int64_t n, int axes) {
  const double side = std::round(std::pow(static_cast<double>(n), 1.0 / axes));
  return Dims::filled(axes, std::max<std::int64_t>(axes > 2 ? 2 : 1, std::llround(side)));
}

void add_cosine(int axes, const LrpeMdOptions& options, const std::string& suffix) {
  const std::string variant = std::to_string(axes) + "d_l" + std::to_string(options.l) + suffix;
  add_operator("lrpe_cosine", variant, [=](DType dtype, std::int64_t n) {
    const Shape grid = grid_of(n, axes);
    const Tensor theta = normal({heads, (head_dim + axes - 1) / axes}, f32);
    return run_of(
        {batch, heads, options.l + numel(grid), head_dim}, dtype, options.act != Act::none, 2,
        [=](const std::vector<Tensor>& in) { return lrpe_cosine_md(in[0], theta, grid, options); });
  });
}

const bool registered = [] {
  add_rotate("lrpe_rotate", "none", {}, lrpe_rotate);
  add_rotate("lrpe_rotate", "silu", {.act = Act::silu}, lrpe_rotate);
  add_rotate("lrpe_rotate", "softmax_dim-1", {.act = Act::softmax, .dim = -1}, lrpe_rotate);
  add_rotate("lrpe_rotate", "softmax_dim1", {.act = Act::softmax, .dim = 1}, lrpe_rotate);
  add_rotate("lrpe_rotate_composed", "silu", {.act = Act::silu}, lrpe_rotate_composed);
  for (const int axes : {1, 2, 3}) {
    for (const std::int64_t l : {0, 10}) {
      add_cosine(axes, {.l = l}, "");
      add_cosine(axes, {.l = l, .keep_angles = true}, "_keep_angles");
    }
  }
  add_cosine(1, {.act = Act::softmax, .dim = -2}, "_softmax_dim-2");
  return true;
}();

}  // namespace
