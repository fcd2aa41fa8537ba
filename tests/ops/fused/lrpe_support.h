#pragma once
// What the tests of position encodings share: a table of ways to call them.
#include <quipu/quipu.h>

#include "fused_checks.h"

namespace quipu::testing::positions {

enum class Op { rotate, cosine, cosine_md };

/// One way to call one of the operators, on x of shape (b, n, h, d), (b, n, d) or, in several
/// dimensions, (b, h, l + prod(grid), d).
struct Case {
  Op op;
  Shape shape;
  Shape theta;
  Act act = Act::none;
  std::optional<int> dim = {};
  std::int64_t offset = 0;  // or l
  Shape grid = {};
  bool keep = false;

  LrpeOptions options() const { return {act, dim, offset, keep}; }
  LrpeMdOptions md_options() const { return {offset, act, dim, keep}; }
  std::int64_t angles() const { return shape.back() / (op == Op::rotate ? 2 : 1); }

  std::string text() const {
    const char* names[] = {"rotate ", "cosine ", "cosine_md "};
    return names[static_cast<int>(op)] + to_string(shape) + " theta " + to_string(theta) + " " +
           name_of(act) + (dim ? std::to_string(*dim) : "") + " offset " + std::to_string(offset) +
           " grid " + to_string(grid) + (keep ? " keep" : "");
  }

  Tensor make_theta(DType x, Device device) const {
    Generator generator(5);
    return randn(theta, f64, device, generator).to(x == f64 ? f64 : f32);
  }
  UnaryFunction fused(DType dtype, Device device) const {
    return [c = *this, t = make_theta(dtype, device)](const Tensor& x) {
      if (c.op == Op::rotate) return lrpe_rotate(x, t, c.options());
      if (c.op == Op::cosine) return lrpe_cosine(x, t, c.options());
      return lrpe_cosine_md(x, t, c.grid, c.md_options());
    };
  }
  UnaryFunction composed(DType dtype, Device device) const {
    return [c = *this, t = make_theta(dtype, device)](const Tensor& x) {
      if (c.op == Op::rotate) return detail::lrpe_rotate_composed(x, t, c.options());
      if (c.op == Op::cosine) return detail::lrpe_cosine_composed(x, t, c.options());
      return detail::lrpe_cosine_md_composed(x, t, c.grid, c.md_options());
    };
  }
};

struct Choice {
  Act act;
  int dim;  // 0: none
};
inline constexpr Choice choices[] = {{Act::none, 0}, {Act::relu, 0},     {Act::sigmoid, 0},
                                     {Act::silu, 0}, {Act::softmax, -1}, {Act::softmax, 1}};

/// With every activation; `sequence` is the dim of the sequence.
inline void add_acts(std::vector<Case>& cases, Case c, int sequence) {
  for (const Choice& choice : choices) {
    c.act = choice.act;
    c.dim = {};
    if (choice.dim != 0) c.dim = choice.dim == 1 ? sequence : -1;
    cases.push_back(c);
  }
}

/// Each shape with each activation; offsets, tables and forms of theta take turns.
inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto with_heads = [&](Op op, const Shape& shape) {
    const bool headless = shape.size() == 3;
    const std::int64_t h = headless ? 1 : shape[2], d = shape.back();
    const std::int64_t angles = op == Op::rotate ? d / 2 : d;
    const Shape thetas[] = {{h, angles}, {1, angles}, {h, 1}, {h, (angles + 1) / 2}};
    for (const Shape& theta : thetas) {
      const std::int64_t turn = static_cast<std::int64_t>(cases.size() / 6) % 3;
      add_acts(cases, {op, shape, theta, {}, {}, turn * 4, {}, turn == 1}, headless ? -2 : 1);
    }
  };
  for (const Op op : {Op::rotate, Op::cosine}) {
    with_heads(op, {2, 8, 2, 16});
    with_heads(op, {1, 5, 3, 34});
    with_heads(op, {3, 3, 4});
    with_heads(op, {5, 1, 1, 2});
    with_heads(op, {4, 70, 5, 6});
  }
  with_heads(Op::cosine, {2, 3, 2, 1});
  with_heads(Op::cosine, {1, 7, 3, 17});
  for (const Shape& grid : {Shape{8}, Shape{3, 3}, Shape{2, 2, 3}, Shape{2, 1, 2, 2}}) {
    for (const std::int64_t l : {0, 4}) {
      for (const std::int64_t d : {8, 17}) {
        const std::int64_t e = (d + grid.size() - 1) / grid.size();
        const Shape shape{2, 3, l + numel(grid), d};
        const bool keep = (l > 0) == (d == 17);
        add_acts(cases, {Op::cosine_md, shape, {d == 8 ? 3 : 1, e}, {}, {}, l, grid, keep}, -2);
      }
    }
  }
  add_acts(cases, {Op::cosine_md, {1, 2, 6, 10}, {2, 7}, {}, {}, 0, {2, 3}, false}, -2);
  // More columns than features: all of these belong to the first axis.
  add_acts(cases, {Op::cosine_md, {2, 2, 8, 5}, {2, 9}, {}, {}, 2, {2, 3}, false}, -2);
  add_acts(cases, {Op::cosine_md, {1, 3, 6, 8}, {3, 24}, {}, {}, 0, {3, 2}, true}, -2);
  add_acts(cases, {Op::cosine_md, {1, 2, 6, 4}, {1, 7}, {}, {}, 0, {6}, false}, -2);
  return cases;
}

}  // namespace quipu::testing::positions
