// The test matrix of the published implementation, with the variants that it left out: all of its
// shapes and options, in f32 at tolerances ten times tighter than its own, in bf16 and f16 at the
// bounds of accuracy.h; forward and backward, against f64 on the same rounded inputs. Angles are
// products in f32, as the definition has them; what follows is f64.
//
// Entries of a batch do not depend on each other: of large ones only the last is compared, and an
// emulated device gets one, of few heads and tokens. The exact results are the CPU's.
#include <quipu/quipu.h>

#include "support/accuracy.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;

/// Variants of an operator, the same in f64, and how close they must be.
struct Pair {
  std::vector<Function> variants;
  Function exact;
  Accuracy accuracy;        // in bf16 and f16
  double tolerance = 1e-3;  // in f32, absolute and relative
};

/// Output first, then the gradients.
Tensors run(const Function& f, const Tensors& in, const Tensor& d_o) {
  Tensors leaves;
  for (const Tensor& x : in) leaves.push_back(x.detach().set_requires_grad());
  Tape tape;
  const Tensor o = f(leaves);
  Tensors results = tape.gradients(o, leaves, {d_o, false});
  results.insert(results.begin(), o.detach());
  return results;
}

Tensor bounds(const Tensor& wanted, DType dtype, const Pair& pair) {
  if (is_reduced(dtype)) return bounds_of_reduced(wanted, dtype, pair.accuracy);
  return (abs(wanted) + 1) * pair.tolerance;
}

/// `in` and `upstream` are f32.
void check_type(const Pair& pair, const Tensors& in, const Tensor& upstream, DType dtype) {
  CAPTURE(dtype);
  constexpr std::int64_t large = 1 << 18;
  const std::int64_t first = in[0].numel() > large ? in[0].size(0) - 1 : 0;
  Tensors inputs, last;
  for (const Tensor& x : in) {
    inputs.push_back(x.to(dtype));
    last.push_back(inputs.back().slice(0, first).to(cpu).to(f64));
  }
  const Tensor d_o = upstream.to(dtype);
  const Tensors wanted = run(pair.exact, last, d_o.slice(0, first).to(cpu).to(f64));
  Tensors allowed;
  for (const Tensor& x : wanted) allowed.push_back(bounds(x, dtype, pair));
  for (std::size_t variant = 0; variant < pair.variants.size(); ++variant) {
    CAPTURE(variant);
    const Tensors got = run(pair.variants[variant], inputs, d_o);
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(got[i].dtype() == dtype);
      const auto beyond = first_beyond(got[i].slice(0, first).to(cpu), wanted[i], allowed[i]);
      CHECK_MESSAGE(!beyond, beyond.value_or(""));
    }
  }
}

void check_published(const Pair& pair, const Tensors& in, const Shape& output) {
  const Tensor upstream = randn(output, f32, in[0].device());
  for (const DType dtype : {f32, bf16, f16}) check_type(pair, in, upstream, dtype);
}

std::int64_t batch_on(Device device, std::int64_t b) {
  return is_emulated(device) ? 1 : b;
}
std::int64_t heads_on(Device device, std::int64_t h) {
  return is_emulated(device) ? std::min<std::int64_t>(h, 2) : h;
}

/// A quarter of more than a few; odd numbers stay odd.
std::int64_t tokens_on(Device device, std::int64_t n) {
  return is_emulated(device) && n > 128 ? n / 4 + n % 2 : n;
}

struct Choice {
  Act act;
  std::optional<int> dim;
  Accuracy accuracy() const { return act == Act::softmax ? of_softmax : of_units; }
};

/// Every activation; `sequence` is the dimension of the tokens.
std::vector<Choice> choices(int sequence) {
  return {{Act::none, {}}, {Act::relu, {}},    {Act::sigmoid, {}},
          {Act::silu, {}}, {Act::softmax, -1}, {Act::softmax, sequence}};
}

std::string text_of(const Choice& c, const Shape& shape) {
  return std::string(name_of(c.act)) + (c.dim ? std::to_string(*c.dim) : "") + " of " +
         to_string(shape);
}

/// In f64, of angles in f32.
struct Angles {
  explicit Angles(const Tensor& angles)
      : cosine(cos(angles.to(cpu).to(f64))), sine(sin(angles.to(cpu).to(f64))) {}
  Tensor cosine, sine;
};

/// Halves of y as coordinates, turned by angles that broadcast to a half.
Tensor rotated(const Tensor& y, const Angles& by) {
  const std::int64_t half = y.size(-1) / 2;
  const Tensor a = y.slice(-1, 0, half), b = y.slice(-1, half);
  return cat({a * by.cosine - b * by.sine, a * by.sine + b * by.cosine}, -1);
}
Tensor doubled(const Tensor& y, const Angles& by) {
  return cat({y * by.cosine, y * by.sine}, -1);
}

/// theta (h, e) by position: (n, h, e), or (n, e) for tokens without heads.
Tensor angles_of(const Tensor& theta, std::int64_t n, std::int64_t offset, bool headless) {
  const Tensor positions = arange(n, f32, theta.device()) + static_cast<double>(offset);
  const Tensor angles = positions.reshape({n, 1, 1}) * theta;
  return headless ? angles.squeeze(1) : angles;
}

/// One of the encodings in one dimension, on x (b, n, h, d) or (b, n, d).
struct Encoding {
  Tensor (*f)(const Tensor&, const Tensor&, const LrpeOptions&);
  Tensor (*encode)(const Tensor& y, const Angles& by);
  int width;  // of the output, in features of x
};
const Encoding rotate{lrpe_rotate, rotated, 1};
const Encoding cosine{lrpe_cosine, doubled, 2};

/// With offsets 0 and 10, and every activation.
void check_encoding(const Encoding& encoding, Shape shape, Shape theta_shape, Device device) {
  shape[0] = batch_on(device, shape[0]);
  shape[1] = tokens_on(device, shape[1]);
  if (shape.size() == 4) shape[2] = heads_on(device, shape[2]);
  theta_shape[0] = heads_on(device, theta_shape[0]);
  CAPTURE(theta_shape);
  const Tensor x = randn(shape, f32, device), theta = randn(theta_shape, f32, device);
  Shape output = shape;
  output[output.size() - 1] *= encoding.width;
  for (const std::int64_t offset : {0, 10}) {
    const Angles angles(angles_of(theta, shape[1], offset, shape.size() == 3));
    for (const Choice& c : choices(1)) {
      CAPTURE(text_of(c, shape));
      const LrpeOptions options{c.act, c.dim, offset};
      check_published({{[&](const Tensors& in) { return encoding.f(in[0], theta, options); }},
                       [&](const Tensors& in) {
                         return encoding.encode(act_composed(in[0], c.act, c.dim), angles);
                       },
                       c.accuracy()},
                      {x}, output);
    }
  }
}

/// Angles of l tokens at 0 and of a grid behind them, (h, l + prod(grid), d).
Tensor grid_angles(const Tensor& theta, const Shape& grid, std::int64_t l, std::int64_t d) {
  const std::int64_t e = theta.size(1);
  Tensors axes;
  for (int a = 0; a < grid.size(); ++a) {
    Shape side = Dims::filled(grid.size() + 1, 1), all = grid;
    side[a] = grid[a];
    all.push_back(e);
    const Tensor index = arange(grid[a], f32, theta.device()).reshape(side);
    axes.push_back(index.expand(all).reshape({numel(grid), e}));
  }
  const Tensor positions = cat(axes, -1).slice(-1, 0, d);
  const Tensor thetas = cat(Tensors(axes.size(), theta), -1).slice(-1, 0, d);
  const Tensor leading = zeros({l, d}, f32, theta.device());
  return cat({leading, positions}, 0) * thetas.unsqueeze(1);
}

/// Without and with a table of angles.
void check_grid(const Shape& grid, std::int64_t d, std::int64_t l, const Choice& c, Device device) {
  const std::int64_t b = batch_on(device, 6), h = heads_on(device, 8);
  const Shape shape{b, h, l + numel(grid), d};
  CAPTURE(text_of(c, shape));
  const Tensor x = randn(shape, f32, device);
  const Tensor theta = randn({h, (d + grid.size() - 1) / grid.size()}, f32, device);
  const Angles angles(grid_angles(theta, grid, l, d));
  const auto variant = [&](bool keep_angles) {
    return [&, options = LrpeMdOptions{l, c.act, c.dim, keep_angles}](const Tensors& in) {
      return lrpe_cosine_md(in[0], theta, grid, options);
    };
  };
  check_published(
      {{variant(false), variant(true)},
       [&](const Tensors& in) { return doubled(act_composed(in[0], c.act, c.dim), angles); },
       c.accuracy()},
      {x}, {b, h, shape[2], 2 * d});
}

struct FlaoSizes {
  std::int64_t b, h, n, m, d, e;

  FlaoSizes on(Device device) const {
    const std::int64_t b_here = batch_on(device, b), h_here = heads_on(device, h);
    return {b_here, h_here, tokens_on(device, n), tokens_on(device, m), d, e};
  }
  Shape output() const { return {b, h, n, e}; }
  /// q, k, v, g
  Tensors inputs(Device device) const {
    return {randn({b, h, n, d}, f32, device), randn({b, h, m, d}, f32, device),
            randn({b, h, m, e}, f32, device), randn({b, h, n, e}, f32, device) * 0.1};
  }
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "published: act") {
  manual_seed(2024);
  for (const Shape& shape : {Shape{64, 1}, Shape{16, 2}, Shape{batch_on(device, 6), 128, 64},
                             Shape{batch_on(device, 6), 256, 127},
                             Shape{batch_on(device, 6), heads_on(device, 8), 256, 127}}) {
    for (const Choice& c : choices(-2)) {
      CAPTURE(text_of(c, shape));
      check_published({{[&](const Tensors& in) { return act(in[0], c.act, c.dim); }},
                       [&](const Tensors& in) { return act_composed(in[0], c.act, c.dim); },
                       accuracy_of_act(c.act, c.dim)},
                      {randn(shape, f32, device)}, shape);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: lrpe_rotate") {
  manual_seed(2024);
  for (const Shape& shape : {Shape{6, 128, 8, 64}, Shape{6, 128, 7, 128}, Shape{6, 33, 8, 48}}) {
    for (const std::int64_t h : {shape[2], std::int64_t{1}}) {
      check_encoding(rotate, shape, {h, shape[3] / 2}, device);
    }
  }
  for (const Shape& shape : {Shape{6, 128, 64}, Shape{6, 128, 128}, Shape{6, 33, 48}}) {
    check_encoding(rotate, shape, {1, shape[2] / 2}, device);
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: lrpe_cosine") {
  manual_seed(2024);
  for (const Shape& shape :
       {Shape{6, 128, 8, 64}, Shape{6, 128, 7, 128}, Shape{6, 128, 8, 33}, Shape{6, 33, 8, 48}}) {
    const std::int64_t h = shape[2], d = shape[3];
    for (const Shape& theta : {Shape{h, d}, Shape{h, 1}, Shape{1, d}}) {
      check_encoding(cosine, shape, theta, device);
    }
  }
  for (const Shape& shape :
       {Shape{6, 128, 64}, Shape{6, 128, 128}, Shape{6, 128, 33}, Shape{6, 33, 48}}) {
    check_encoding(cosine, shape, {1, shape[2]}, device);
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: lrpe_cosine with heads before tokens") {
  manual_seed(2024);
  const Encoding transposed{[](const Tensor& x, const Tensor& theta, const LrpeOptions& options) {
                              return lrpe_cosine(x.transpose(1, 2).contiguous().transpose(1, 2),
                                                 theta, options);
                            },
                            doubled, 2};
  for (const Shape& shape : {Shape{6, 128, 8, 64}, Shape{6, 127, 8, 128}, Shape{6, 1024, 8, 128}}) {
    check_encoding(transposed, shape, {8, shape[3]}, device);
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: lrpe_cosine_md") {
  manual_seed(2024);
  const std::pair<Shape, std::int64_t> grids[] = {{{128}, 64},       {{127}, 128},
                                                  {{32, 32}, 64},    {{2, 3}, 64},
                                                  {{8, 32, 32}, 64}, {{8, 8, 8, 8}, 64}};
  for (const auto& [usual, d] : grids) {
    const bool is_long = is_emulated(device) && usual.size() > 2;
    const Shape grid = is_long ? Dims::filled(usual.size(), 4) : usual;
    for (const std::int64_t l : {0, 5}) {
      check_grid(grid, d, l, {Act::none, {}}, device);
    }
  }
  for (const Choice& c : choices(-2)) {
    check_grid({8, 8, 8}, 64, 5, c, device);
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: tpa_decode") {
  manual_seed(2024);
  const std::array<std::int64_t, 5> sizes[] = {{256, 16, 16, 128, 64},  {2048, 16, 16, 128, 64},
                                               {2049, 16, 16, 128, 64}, {2047, 16, 16, 128, 64},
                                               {2049, 17, 16, 128, 64}, {2047, 31, 16, 128, 64},
                                               {2049, 17, 31, 128, 64}, {2047, 31, 17, 128, 64},
                                               {2049, 17, 31, 129, 63}, {2047, 31, 17, 127, 65}};
  for (const auto& [entries, h, r, d, e] : sizes) {
    const std::int64_t m = is_emulated(device) ? entries / 32 + entries % 32 : entries;
    const std::string size = to_string(Shape{m, h, r});
    CAPTURE(size);
    const std::int64_t b = is_emulated(device) ? 1 : 2;
    const auto input = [&](const Shape& shape) { return randn(shape, f32, device); };
    const auto run_by = [](auto f) {
      return [f](const Tensors& in) { return f(in[0], in[1], in[2], in[3], in[4], in[5], {}); };
    };
    check_published({{run_by(tpa_decode)}, run_by(tpa_decode_composed), of_tpa, 1e-5},
                    {input({b, 1, h, r}), input({b, m, h}), input({b, m, h}), input({b, 1, r, d}),
                     input({b, m, d}), input({b, m, e})},
                    {b, 1, h, e});
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: flao") {
  manual_seed(2024);
  const FlaoSizes sizes[] = {{6, 8, 512, 256, 128, 64},  {6, 8, 512, 512, 128, 128},
                             {6, 8, 256, 256, 128, 128}, {1, 1, 4, 4, 16, 16},
                             {1, 1, 4, 4, 128, 128},     {1, 1, 128, 128, 16, 16},
                             {1, 1, 128, 128, 128, 128}};
  for (const FlaoSizes& usual : sizes) {
    const FlaoSizes s = usual.on(device);
    CAPTURE(s.output());
    const auto variant = [](FlaoKeep keep) {
      return [keep](const Tensors& in) { return flao(in[0], in[1], in[2], in[3], {.keep = keep}); };
    };
    check_published(
        {{variant(FlaoKeep::nothing), variant(FlaoKeep::kv), variant(FlaoKeep::kv_and_qkv)},
         [](const Tensors& in) { return flao_composed(in[0], in[1], in[2], in[3], {}); },
         of_flao},
        s.inputs(device), s.output());
  }
}

TEST_CASE_FIXTURE(EachDevice, "published: flao with activations and positions") {
  manual_seed(2024);
  const FlaoSizes s = FlaoSizes{6, 8, 512, 256, 128, 64}.on(device);
  const Tensor theta = randn({s.h, s.d}, f32, device);
  // (b, n, h, d) there, (b, h, n, d) here
  const auto encoded = [&](const Tensor& y, std::int64_t offset) {
    return doubled(y, Angles(angles_of(theta, y.size(2), offset, false).transpose(0, 1)));
  };
  int turn = 0;
  for (const Act q_act : {Act::none, Act::silu, Act::relu}) {
    for (const bool with_theta : {false, true}) {
      for (const std::int64_t offset : {0, 8}) {
        if (!with_theta && offset != 0) continue;
        CAPTURE(name_of(q_act));
        CAPTURE(offset);
        FlaoOptions options{.q_act = q_act, .g_act = Act::softmax, .g_dim = -1};
        options.keep = static_cast<FlaoKeep>(turn++ % 3);
        if (with_theta) {
          options.lrpe = FlaoLrpe::cosine;
          options.theta = theta;
          options.offset = offset;
        }
        check_published(
            {{[&](const Tensors& in) { return flao(in[0], in[1], in[2], in[3], options); }},
             [&](const Tensors& in) {
               const Tensor q = act_composed(in[0], q_act);
               const Tensor g = act_composed(in[3], Act::softmax, -1);
               if (!with_theta) return flao_composed(q, in[1], in[2], g, {});
               return flao_composed(encoded(q, offset), encoded(in[1], 0), in[2], g, {});
             },
             of_flao,
             5e-3},
            s.inputs(device), s.output());
      }
    }
  }
}
