// What the gradient of theta keeps and holds; a theta that is fixed costs nothing, as the tests of
// the operators say.
#include "flao_support.h"
#include "lrpe_support.h"
#include "quipu/ops/lrpe/kernels.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::positions;

namespace {

/// As the ledger counts a tensor.
std::size_t bytes(std::int64_t numbers, DType dtype) {
  constexpr std::size_t granule = 512;
  return (static_cast<std::size_t>(numbers) * size_of(dtype) + granule - 1) / granule * granule;
}

/// As kernels see x: (b, h, t, d).
Shape heads_first(const Case& c) {
  const Shape& s = c.shape;
  if (c.op == Op::cosine_md) return s;
  return s.size() == 3 ? Shape{s[0], 1, s[1], s[2]} : Shape{s[0], s[2], s[1], s[3]};
}

/// Partial sums of the gradient of theta.
std::size_t sums_of(LrpeKind kind, const Shape& x, Device device) {
  return bytes(lrpe_theta_workspace(device.kind(), kind, x), f64);
}

/// What a step holds above its inputs and their gradients, which are there.
std::size_t peak_of(const DifferentiableFunction& f, const std::vector<Tensor>& in) {
  const auto step = [&] {
    Tape tape;
    const Tensor o = f(in);
    tape.backward(o, {zeros_like(o.detach()), false});
  };
  step();
  const PeakMemory peak(in[0].device());
  step();
  return peak.bytes_above();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "theta: keeps x, and theta or the angles") {
  for (const Case& c : all_cases()) {
    CAPTURE(c.text());
    for (const DType dtype : {f64, bf16}) {
      for (const bool both : {false, true}) {
        const Tensor x = input_of(c.shape, dtype, device), theta = c.make_theta(dtype, device);
        x.set_requires_grad(both);
        theta.set_requires_grad();
        Tape tape;
        if (c.op == Op::rotate) lrpe_rotate(x, theta, c.options());
        if (c.op == Op::cosine) lrpe_cosine(x, theta, c.options());
        if (c.op == Op::cosine_md) lrpe_cosine_md(x, theta, c.grid, c.md_options());
        const Shape s = heads_first(c);
        const std::size_t table =
            static_cast<std::size_t>(s[1] * s[2] * c.angles()) * size_of(compute_type(dtype));
        CHECK(tape.saved_bytes() == x.nbytes() + (c.keep ? table : theta.nbytes()));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: holds its partial sums, and softmax if there is one") {
  std::vector<Case> cases;
  add_acts(cases, {Op::rotate, {4, 130, 3, 16}, {3, 8}}, 1);
  add_acts(cases, {Op::cosine, {2, 64, 2, 12}, {1, 12}, {}, {}, 0, {}, true}, 1);
  add_acts(cases, {Op::cosine_md, {4, 2, 64, 16}, {2, 8}, {}, {}, 0, {8, 8}}, -2);
  for (const Case& c : cases) {
    CAPTURE(c.text());
    for (const DType dtype : {f32, bf16}) {
      const auto measure = [&](Device on) {
        const Tensor x = zeros(c.shape, dtype, on).set_requires_grad();
        const Tensor theta = zeros(c.theta, f32, on).set_requires_grad();
        return peak_of(
            [&](const std::vector<Tensor>& in) {
              if (c.op == Op::rotate) return lrpe_rotate(in[0], in[1], c.options());
              if (c.op == Op::cosine) return lrpe_cosine(in[0], in[1], c.options());
              return lrpe_cosine_md(in[0], in[1], c.grid, c.md_options());
            },
            {x, theta});
      };
      const Shape s = heads_first(c);
      const LrpeKind kind = c.op == Op::rotate ? LrpeKind::rotate : LrpeKind::cosine;
      // Output and upstream, a table if it is kept.
      std::size_t wanted = 2 * bytes(encoded_features(kind, numel(s)), dtype);
      if (c.keep) wanted += bytes(s[1] * s[2] * c.angles(), f32);
      if (c.act == Act::softmax) wanted += bytes(numel(s), f32);
      wanted += sums_of(kind, s, device);
      CHECK(measure(device) == wanted);
      CHECK(measure(meta_of(device)) == wanted);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "theta: gated linear attention holds the gradient of q~ or k~") {
  for (const gated::Sizes& s :
       {gated::Sizes{2, 3, 100, 70, 16, 8}, gated::Sizes{1, 2, 64, 130, 8, 24}}) {
    CAPTURE(gated::text_of(s));
    for (const FlaoLrpe lrpe : {FlaoLrpe::rotate, FlaoLrpe::cosine}) {
      for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
        const auto measure = [&](Device on, bool learned) {
          std::vector<Tensor> in = gated::inputs_of(s, bf16, on);
          in.push_back(zeros({s.h, s.d / 2}, f32, on).set_requires_grad(learned));
          const auto f = [&](const std::vector<Tensor>& t) {
            const FlaoOptions options{.lrpe = lrpe, .theta = t[4], .keep = keep};
            return flao(t[0], t[1], t[2], t[3], options);
          };
          return peak_of(f, in);
        };
        const LrpeKind kind = lrpe == FlaoLrpe::rotate ? LrpeKind::rotate : LrpeKind::cosine;
        const std::int64_t width = encoded_features(kind, s.d);
        const auto more = [&](std::int64_t tokens) {  // for q~ or k~
          return bytes(s.b * s.h * tokens * width, f32) +
                 sums_of(kind, {s.b, s.h, tokens, s.d}, device);
        };
        const std::size_t fixed = measure(device, false), learned = measure(device, true);
        // The fused passes have what they had; v~ is multiplied by a one.
        const std::size_t sum = bytes(s.h * s.d / 2, f64);
        CHECK(learned == fixed + sum + std::max(more(s.n), more(s.m) + bytes(1, bf16)));
        CHECK(learned == measure(meta_of(device), true));
      }
    }
  }
}
