// Layers against the formulas written out, gradients through each of them, and decoding from a
// cache against the pass over the whole sequence.
#include <cmath>
#include <functional>

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "quipu/nn/dropout.h"
#include "quipu/nn/embedding.h"
#include "quipu/nn/gated_linear_attention.h"
#include "quipu/nn/linear.h"
#include "quipu/nn/mlp.h"
#include "quipu/nn/norm.h"
#include "quipu/nn/tensor_product_attention.h"
#include "quipu/nn/transformer_layer.h"
#include "quipu/ops/act.h"
#include "quipu/ops/join.h"
#include "quipu/ops/matmul/kernels.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/norm.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/gelu.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

void check_close(const Tensor& got, const Tensor& wanted, double allowed = 1e-12) {
  const Difference d = compare(got, wanted, {.relative = allowed, .absolute = allowed});
  CHECK_MESSAGE(d.ok, d.text);
}

/// Gradients of x and of all parameters. `parameters` gives where a layer keeps them.
template <class Layer>
void check_gradients(const Layer& layer, const Tensor& x,
                     const std::function<std::vector<Tensor*>(Layer&)>& parameters) {
  const NamedTensors named = layer.parameters();
  std::vector<Tensor> inputs;
  for (const auto& [name, p] : named) inputs.push_back(p);
  inputs.push_back(x.detach());
  if (is_floating(x.dtype())) inputs.back().set_requires_grad();
  const auto run = [&](const std::vector<Tensor>& in) {
    Layer copy = layer;
    const std::vector<Tensor*> places = parameters(copy);
    REQUIRE(places.size() + 1 == in.size());
    for (std::size_t i = 0; i < places.size(); ++i) *places[i] = in[i];
    return copy(in.back());
  };
  const GradcheckResult result = gradcheck(run, inputs);
  CHECK_MESSAGE(result.ok, result.report);
}

Tensor by_weight(const Tensor& x, const nn::Linear& layer) {
  return matmul(x, layer.weight.detach().t());
}

nn::GatedLinearAttention small_gated(const nn::Place& place, std::int64_t lead = 1) {
  nn::GatedLinearAttention layer(12, {.heads = 2, .grid = {2, 3}, .lead = lead}, place);
  nn::init::uniform(layer.norm.weight, 0.5, 1.5);
  nn::init::uniform(layer.qkvg.weight, -1, 1);  // the norm of small rows is too rough to check
  return layer;
}

/// The formula of GatedLinearAttention, token by token and axis by axis.
Tensor gated_by_hand(const nn::GatedLinearAttention& layer, const Tensor& x) {
  const std::int64_t b = x.size(0), n = x.size(1), d = x.size(2), h = layer.options.heads;
  const std::int64_t head = d / h, axes = layer.options.grid.size(), e = layer.theta.size(1);
  std::vector<double> angles;
  const std::vector<double> theta = layer.theta.to_vector();
  for (std::int64_t token = 0; token < n; ++token) {
    std::int64_t rest = token - layer.options.lead;
    std::vector<std::int64_t> at(static_cast<std::size_t>(axes), 0);
    for (std::int64_t a = axes - 1; a >= 0 && rest >= 0; --a) {
      at[static_cast<std::size_t>(a)] = rest % layer.options.grid[static_cast<int>(a)];
      rest /= layer.options.grid[static_cast<int>(a)];
    }
    for (std::int64_t j = 0; j < head; ++j) {
      const auto place = static_cast<double>(at[static_cast<std::size_t>(j / e)]);
      angles.push_back(place * theta[static_cast<std::size_t>(j % e)]);
    }
  }
  const Tensor angle = from(angles, {n, head}, f64, x.device());
  const auto encode = [&](const Tensor& y) {
    const Tensor s = y / (1 + exp(-y));
    return cat({s * cos(angle), s * sin(angle)}, -1);
  };
  const Tensor all = by_weight(x, layer.qkvg).reshape({b, n, 4, h, head}).permute({2, 0, 3, 1, 4});
  const Tensor q = encode(all[0]), k = encode(all[1]);
  const Tensor o = matmul(q, matmul(k.t(), all[2])) / (1 + exp(-all[3])) / n;
  const Tensor rows = rms_norm_composed(o, layer.norm.weight.detach(), layer.norm.eps);
  return by_weight(rows.transpose(1, 2).reshape({b, n, d}), layer.out);
}

nn::TensorProductAttention small_product(const nn::Place& place) {
  return nn::TensorProductAttention(8, {.heads = 3, .head_dim = 4, .rank = 2}, place);
}

/// The formula of TensorProductAttention with every matrix written out.
Tensor product_by_hand(const nn::TensorProductAttention& layer, const Tensor& x) {
  const std::int64_t b = x.size(0), n = x.size(1);
  const std::int64_t h = layer.options.heads, d = layer.options.head_dim, r = layer.options.rank;
  const Tensor angle = arange(n, f64, x.device()).reshape({n, 1, 1}) * layer.theta;
  const auto rotate = [&](const Tensor& y) {
    const Tensor y1 = y.slice(-1, 0, d / 2), y2 = y.slice(-1, d / 2);
    return cat({y1 * cos(angle) - y2 * sin(angle), y1 * sin(angle) + y2 * cos(angle)}, -1);
  };
  const std::vector<Tensor> f = split(by_weight(x, layer.factors), {h * r, r * d, h, d, h, d}, -1);
  const Tensor q = matmul(f[0].reshape({b, n, h, r}), rotate(f[1].reshape({b, n, r, d}))) / r;
  const Tensor k = f[2].unsqueeze(-1) * rotate(f[3].unsqueeze(2));
  const Tensor v = f[4].unsqueeze(-1) * f[5].unsqueeze(2);
  const Tensor scores =
      matmul(q.transpose(1, 2), k.transpose(1, 2).t()) / std::sqrt(static_cast<double>(d));
  const Tensor i = arange(n, i64, x.device());
  const Tensor seen = i.unsqueeze(1) >= i.unsqueeze(0);
  const Tensor weights = exp(scores) * seen.to(f64);
  const Tensor o = matmul(weights / sum(weights, -1, true), v.transpose(1, 2));
  return by_weight(o.transpose(1, 2).reshape({b, n, h * d}), layer.out);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "layers: Linear") {
  for (const bool bias : {true, false}) {
    const nn::Linear layer(5, 3, {.bias = bias}, {.device = device, .dtype = f64});
    const Tensor x = randn({2, 4, 5}, f64, device);
    Tensor wanted = by_weight(x, layer);
    if (bias) wanted = wanted + layer.bias.detach();
    check_close(layer(x), wanted);
    check_gradients<nn::Linear>(layer, x, [&](nn::Linear& l) {
      return bias ? std::vector{&l.weight, &l.bias} : std::vector{&l.weight};
    });
    CHECK(max(layer.weight.detach()).item() <= 1 / std::sqrt(5.0));
  }
}

TEST_CASE_FIXTURE(EachDevice, "layers: Embedding") {
  const nn::Embedding layer(7, 3, {.device = device, .dtype = f64});
  const Tensor index = from<std::int64_t>({1, 6, 1, 0}, {2, 2}, i64, device);
  const Tensor o = layer(index);
  CHECK(o.shape() == Shape{2, 2, 3});
  check_close(o(1, 0), layer.weight.detach()[1]);
  check_gradients<nn::Embedding>(layer, index,
                                 [](nn::Embedding& l) { return std::vector{&l.weight}; });
}

TEST_CASE_FIXTURE(EachDevice, "layers: RMSNorm and LayerNorm") {
  const nn::Place place{.device = device, .dtype = f64};
  const Tensor x = randn({3, 6}, f64, device);
  const nn::RMSNorm rms(6, place, 0.1);
  nn::init::normal(rms.weight, 1, 0.3);
  check_close(rms(x), rms_norm_composed(x, rms.weight.detach(), 0.1));
  check_gradients<nn::RMSNorm>(rms, x, [](nn::RMSNorm& l) { return std::vector{&l.weight}; });
  const nn::LayerNorm layer(6, place, 0.1);
  nn::init::normal(layer.weight, 1, 0.3);
  nn::init::normal(layer.bias, 0, 1);
  check_close(layer(x), layer_norm_composed(x, layer.weight.detach(), layer.bias.detach(), 0.1));
  check_gradients<nn::LayerNorm>(layer, x, [](nn::LayerNorm& l) {
    return std::vector{&l.weight, &l.bias};
  });
}

TEST_CASE_FIXTURE(EachDevice, "layers: Dropout drops while training and not in eval") {
  nn::Dropout layer(0.25);
  const Tensor x = ones({64, 64}, f32, device);
  const Tensor o = layer(x);
  const double dropped = mean(eq(o, 0).to(f32)).item();
  CHECK(std::abs(dropped - 0.25) < 0.04);
  CHECK(max(o).item() == doctest::Approx(1 / 0.75));
  layer.eval();
  CHECK(layer(x).same_as(x));
  expect_error([] { nn::Dropout(1.5); }, "Dropout", "1.5");
}

TEST_CASE_FIXTURE(EachDevice, "layers: MLP of every kind") {
  const Tensor x = randn({3, 6}, f64, device);
  for (const auto kind : {nn::MLPKind::silu, nn::MLPKind::gelu, nn::MLPKind::swiglu}) {
    const nn::MLP layer(6, {.hidden = 5, .kind = kind}, {.device = device, .dtype = f64});
    const Tensor h = by_weight(x, layer.up);
    const Tensor gate = h.slice(-1, 0, 5);
    const Tensor wanted = kind == nn::MLPKind::silu   ? h / (1 + exp(-h))
                          : kind == nn::MLPKind::gelu ? gelu_composed(h)
                                                      : gate / (1 + exp(-gate)) * h.slice(-1, 5);
    check_close(layer(x), by_weight(wanted, layer.down));
    check_gradients<nn::MLP>(layer, x, [](nn::MLP& l) {
      return std::vector{&l.up.weight, &l.down.weight};
    });
  }
  const nn::MLP relu(6, {.kind = nn::MLPKind::relu, .bias = true, .dropout = 0.5},
                     {.device = device, .dtype = f64});
  CHECK(relu.up.weight.shape() == Shape{24, 6});
  CHECK(relu.parameters().size() == 4);
  CHECK(!same_bits(relu(x).detach(), relu(x).detach()));
}

TEST_CASE_FIXTURE(EachDevice, "layers: GatedLinearAttention is its formula") {
  const nn::Place place{.device = device, .dtype = f64};
  for (const std::int64_t lead : {0, 1, 3}) {
    const nn::GatedLinearAttention layer = small_gated(place, lead);
    const Tensor x = randn({2, lead + 6, 12}, f64, device);
    check_close(layer(x).detach(), gated_by_hand(layer, x));
  }
  const nn::GatedLinearAttention volume(6, {.heads = 1, .grid = {2, 2, 3}}, place);
  const Tensor x = randn({1, 12, 6}, f64, device);
  check_close(volume(x).detach(), gated_by_hand(volume, x));
  check_gradients<nn::GatedLinearAttention>(
      small_gated(place), randn({2, 7, 12}, f64, device), [](nn::GatedLinearAttention& l) {
        return std::vector{&l.qkvg.weight, &l.norm.weight, &l.out.weight};
      });
}

TEST_CASE_FIXTURE(EachDevice, "layers: GatedLinearAttention is one flao and copies no q, k, v, g") {
  const nn::GatedLinearAttention layer(64, {.heads = 4, .grid = {4, 4}, .lead = 1},
                                       {.device = device});
  const Tensor x = randn({8, 17, 64}, f32, device);
  const auto run = [&] {
    const PeakMemory peak(device);
    layer(x);
    return peak.bytes_above();
  };
  const std::size_t row = 8 * 17 * 64 * sizeof(float);
  // The product, the attention's output, k^T v and workspace of the products: less than another of
  // q, k, v, g would take.
  const auto library = static_cast<std::size_t>(matmul_workspace(device.kind(), 8 * 17, 4 * 64));
  CHECK(run() < library + 4 * row + row + 8 * 4 * 32 * 16 * sizeof(float) + row);
}

TEST_CASE_FIXTURE(EachDevice, "layers: TensorProductAttention is its formula") {
  const nn::Place place{.device = device, .dtype = f64};
  const nn::TensorProductAttention layer = small_product(place);
  const Tensor x = randn({2, 5, 8}, f64, device);
  check_close(layer(x).detach(), product_by_hand(layer, x));
  check_gradients<nn::TensorProductAttention>(layer, x, [](nn::TensorProductAttention& l) {
    return std::vector{&l.factors.weight, &l.out.weight};
  });
}

TEST_CASE_FIXTURE(EachDevice, "layers: TensorProductAttention decodes what it was trained on") {
  for (const DType dtype : {f64, f32, bf16}) {
    const nn::TensorProductAttention layer = small_product({.device = device, .dtype = dtype});
    const Tensor x = randn({2, 9, 8}, f32, device).to(dtype);
    const Tensor whole = layer(x).detach();
    const double allowed = 32 * epsilon_of(dtype);
    for (const std::int64_t prompt : {1, 4}) {
      TpaCache cache = layer.make_cache(2, 9);
      check_close(layer.decode(x.slice(1, 0, prompt), cache), whole.slice(1, 0, prompt), allowed);
      for (std::int64_t i = prompt; i < 9; ++i) {
        check_close(layer.decode(x.slice(1, i, i + 1), cache), whole.slice(1, i, i + 1), allowed);
      }
      CHECK(cache.length() == 9);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "layers: TransformerLayer adds both halves and can recompute them") {
  using Gated = nn::TransformerLayer<nn::GatedLinearAttention>;
  const nn::GatedLinearAttentionOptions options{.heads = 2, .grid = {6}, .lead = 1};
  Gated layer(12, options, {.dropout = 0.5}, {.device = device, .dtype = f64});
  layer.eval();
  const Tensor x = randn({2, 7, 12}, f64, device);
  const Tensor h = x + layer.attention(layer.norm1(x)).detach();
  check_close(layer(x).detach(), h + layer.mlp(layer.norm2(h)).detach());

  layer.train();
  const auto gradients = [&](bool recomputes) {
    layer.recomputes = recomputes;
    manual_seed(3);
    Tape tape;
    const Tensor o = layer(x);
    std::vector<Tensor> parameters;
    for (const auto& [name, p] : layer.parameters()) parameters.push_back(p);
    const std::size_t saved = tape.saved_bytes();
    return std::pair(saved, tape.gradients(sum(o * o), parameters));
  };
  const auto [kept, wanted] = gradients(false);
  const auto [kept_less, got] = gradients(true);
  CHECK(kept_less < kept / 2);
  for (std::size_t i = 0; i < wanted.size(); ++i) check_close(got[i], wanted[i]);
}

namespace {

/// A language model in small.
struct Writer : nn::Module {
  using Layer = nn::TransformerLayer<nn::TensorProductAttention>;
  nn::Embedding embed;
  std::vector<Layer> layers;
  nn::Linear head;
  explicit Writer(const nn::Place& place) : embed(32, 16, place), head(16, 32, {}, place) {
    const nn::TensorProductAttentionOptions options{.heads = 2, .head_dim = 8, .rank = 2};
    for (int i = 0; i < 2; ++i) layers.emplace_back(16, options, nn::MLPOptions{}, place);
  }
  void members(nn::Members& m) override { m("embed", embed)("layers", layers)("head", head); }
  Tensor operator()(const Tensor& tokens) const {
    Tensor x = embed(tokens);
    for (const Layer& layer : layers) x = layer(x);
    return head(x);
  }
  Tensor decode(const Tensor& tokens, std::vector<TpaCache>& caches) const {
    Tensor x = embed(tokens);
    for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i].decode(x, caches[i]);
    return head(x.slice(1, -1));
  }
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "layers: greedy decoding is what the whole pass says") {
  manual_seed(11);
  const Writer writer({.device = device, .dtype = f64});
  std::vector<TpaCache> caches;
  for (const auto& layer : writer.layers) caches.push_back(layer.attention.make_cache(3, 64));
  Tensor all = randint(0, 32, {3, 4}, i64, device), fresh = all;
  for (int i = 0; i < 40; ++i) {
    const Tensor whole = writer(all).slice(1, -1), from_cache = writer.decode(fresh, caches);
    check_close(from_cache, whole, 1e-11);
    fresh = argmax(from_cache, -1);
    REQUIRE(same_bits(fresh, argmax(whole, -1)));
    all = cat({all, fresh}, 1);
  }
  CHECK(caches[0].length() == 43);
}

TEST_CASE_FIXTURE(EachDevice, "layers: run on meta with the peak of the device") {
  const auto peak_on = [](Device where) {
    const nn::Place place{.device = where};
    const nn::GatedLinearAttention gated(64, {.heads = 4, .grid = {4, 4}, .lead = 1}, place);
    const nn::TensorProductAttention product(64, {.heads = 4, .rank = 2}, place);
    const nn::MLP mlp(64, {.kind = nn::MLPKind::swiglu, .dropout = 0.1}, place);
    const Tensor x = randn({4, 17, 64}, f32, where);
    const PeakMemory peak(where);
    {
      Tape tape;
      tape.backward(sum(mlp(product(gated(x)))));
    }
    return peak.bytes_above();
  };
  CHECK(peak_on(meta_of(device)) == peak_on(device));
}

TEST_CASE("layers: say what does not fit") {
  expect_error([] { nn::GatedLinearAttention(10, {.heads = 3, .grid = {2}}); },
               "10 features do not fall into 3 equal heads");
  expect_error([] { nn::GatedLinearAttention(9, {.heads = 3}); }, "grid has no axes");
  expect_error([] { nn::TensorProductAttention(9, {.heads = 3}); }, "head_dim is 3", "even");
  const nn::GatedLinearAttention gated(4, {.heads = 1, .grid = {2, 2}});
  expect_error([&] { gated(zeros({4, 4})); }, "(b, n, features)");
  expect_error([&] { gated(zeros({1, 5, 4})); }, "flao", "5 tokens");
  const nn::TensorProductAttention product = small_product({});
  TpaCache cache = product.make_cache(1, 8);
  product.decode(zeros({1, 3, 8}), cache);
  expect_error([&] { product.decode(zeros({1, 2, 8}), cache); }, "one by one");
}
