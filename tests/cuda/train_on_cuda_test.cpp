// A transformer with softmax attention trains on CUDA as on the CPU: embedding, norms, linear
// layers, attention with grouped heads, a gated feed-forward part, cross entropy, AdamW with
// clipping.
#include <quipu/quipu.h>

#include <cmath>

#include "support/support.h"

namespace {

using namespace quipu;

const Device cuda("cuda");
constexpr std::int64_t words = 19, features = 32, batch = 2, length = 13;
constexpr int steps = 5;

struct Heads {
  std::int64_t queries = 2, keys = 1;
};

/// x (b, n, features), causal; one product makes queries, keys and values.
struct SoftmaxAttention : nn::Module {
  SoftmaxAttention(std::int64_t width, const Heads& h, const nn::Place& place)
      : heads(h),
        in(width, (h.queries + 2 * h.keys) * (width / h.queries), {.bias = false}, place),
        out(width, width, {.bias = false}, place) {}
  void members(nn::Members& m) override { m("in", in)("out", out); }
  Tensor operator()(const Tensor& x) const {
    const std::int64_t b = x.size(0), n = x.size(1), d = x.size(2) / heads.queries;
    const Tensor all = in(x).reshape({b, n, heads.queries + 2 * heads.keys, d}).transpose(1, 2);
    const Tensor q = all.slice(1, 0, heads.queries);
    const Tensor k = all.slice(1, heads.queries, heads.queries + heads.keys);
    const Tensor v = all.slice(1, heads.queries + heads.keys, heads.queries + 2 * heads.keys);
    const Tensor o = attention(q, k, v, {.causal = true});
    return out(o.transpose(1, 2).reshape({b, n, x.size(2)}));
  }
  Heads heads;
  nn::Linear in, out;
};

struct Transformer : nn::Module {
  explicit Transformer(const nn::Place& place)
      : table(words, features, place),
        layer(features, Heads{}, nn::MLPOptions{.kind = nn::MLPKind::swiglu}, place),
        norm(features, place),
        head(features, words, {}, place) {}
  void members(nn::Members& m) override {
    m("table", table)("layer", layer)("norm", norm)("head", head);
  }
  Tensor operator()(const Tensor& x) const { return head(norm(layer(table(x)))); }
  nn::Embedding table;
  nn::TransformerLayer<SoftmaxAttention> layer;
  nn::RMSNorm norm;
  nn::Linear head;
};

struct Training {
  std::vector<double> losses, norms;
  std::size_t peak = 0;
};

Training train(Device device, DType dtype) {
  manual_seed(3);
  Training result;
  const PeakMemory peak(device);
  Transformer model(nn::Place{.device = device, .dtype = dtype});
  nn::AdamW optimizer(model.parameters(), {.lr = 0.01, .weight_decay = 0.01});
  Generator generator(7);
  const Tensor text = randint(0, words, {batch, length + 1}, i64, cpu, generator).to(device);
  const Tensor x = text.slice(1, 0, length).contiguous(), y = text.slice(1, 1).contiguous();
  for (int step = 0; step < steps; ++step) {
    Tape tape;
    const Tensor loss = cross_entropy(model(x), y);
    tape.backward(loss);
    const Tensor norm = optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    if (device.is_meta()) continue;
    result.losses.push_back(loss.item());
    result.norms.push_back(norm.item());
  }
  result.peak = peak.bytes_above();
  return result;
}

}  // namespace

TEST_CASE("train_on_cuda: a transformer with attention has the losses and the peak of the CPU") {
  if (!is_available(cuda)) return;
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(dtype);
    const Training here = train(cuda, dtype), there = train(cpu, dtype);
    REQUIRE(here.losses.size() == steps);
    // Sums of some hundred terms in other orders; AdamW passes the signs of gradients on, so that
    // differences grow with the steps.
    const double bound = dtype == f32 ? 2e-5 : 2e-2;
    for (std::size_t i = 0; i < steps; ++i) {
      CAPTURE(i);
      CHECK(std::abs(here.losses[i] - there.losses[i]) <= bound * there.losses[i]);
      CHECK(std::abs(here.norms[i] - there.norms[i]) <= 10 * bound * there.norms[i]);
    }
    CHECK(here.losses.back() < 0.9 * here.losses.front());
    CHECK(train("meta:cuda", dtype).peak == here.peak);
  }
}
