// Which batches of a transformer fit on which card? Whole training steps run on the meta device,
// which computes nothing and counts every byte, with everything kept for backward and with each
// layer recomputed. No GPU is needed, and no memory.
#include <fmt/format.h>
#include <quipu/nn/embedding.h>
#include <quipu/nn/optim/adamw.h>
#include <quipu/nn/transformer_layer.h>
#include <quipu/quipu.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>

using namespace quipu;

constexpr std::size_t gib = std::size_t{1} << 30;

struct Size {
  std::int64_t layers = 24, features = 2048, heads = 16, vocabulary = 32000;
  DType dtype = bf16;
};

/// Causal softmax attention; q, k and v are one product.
struct SelfAttention : nn::Module {
  SelfAttention() = default;
  SelfAttention(std::int64_t features, std::int64_t head_count, const nn::Place& place)
      : heads(head_count),
        qkv(features, 3 * features, {.bias = false}, place),
        out(features, features, {.bias = false}, place) {}
  void members(nn::Members& m) override { m("qkv", qkv)("out", out); }
  Tensor operator()(const Tensor& x) const {
    const MemoryScope named = scope();
    const std::int64_t b = x.size(0), n = x.size(1), d = x.size(2) / heads;
    const Tensor all_heads = qkv(x).view({b, n, 3, heads, d}).permute({2, 0, 3, 1, 4});
    const Tensor o = attention(all_heads[0], all_heads[1], all_heads[2], {.causal = true});
    return out(o.transpose(1, 2).reshape({b, n, heads * d}));
  }

  std::int64_t heads = 1;
  nn::Linear qkv, out;
};

using Layer = nn::TransformerLayer<SelfAttention>;

struct Transformer : nn::Module {
  nn::Embedding embed;
  std::vector<Layer> layers;
  nn::RMSNorm norm;
  nn::Linear head;

  Transformer(const Size& size, bool recomputes, const nn::Place& place)
      : embed(size.vocabulary, size.features, place),
        norm(size.features, place),
        head(size.features, size.vocabulary, {.bias = false}, place) {
    const nn::MLPOptions mlp{.kind = nn::MLPKind::swiglu};
    for (std::int64_t i = 0; i < size.layers; ++i) {
      Layer& layer = layers.emplace_back();
      layer.norm1 = nn::RMSNorm(size.features, place);
      layer.norm2 = nn::RMSNorm(size.features, place);
      layer.attention = SelfAttention(size.features, size.heads, place);
      layer.mlp = nn::MLP(size.features, mlp, place);
      layer.recomputes = recomputes;
    }
  }
  void members(nn::Members& m) override {
    m("embed", embed)("layers", layers)("norm", norm)("head", head);
  }
  Tensor loss(const Tensor& tokens, const Tensor& next) const {
    Tensor x = embed(tokens);
    for (const Layer& layer : layers) x = layer(x);
    return linear_cross_entropy(norm(x), head.weight, next);
  }
};

struct Step {
  std::int64_t batch = 1, sequence = 1024;
  bool recomputes = false;
};

MemoryPlan plan_of(const Size& size, const Step& step, std::size_t capacity, bool timeline) {
  const auto train = [&](Device device) {
    const Transformer model(size, step.recomputes, {.device = device, .dtype = size.dtype});
    nn::AdamW optimizer(model.parameters());
    const Tensor tokens = zeros({step.batch, step.sequence}, i64, device);
    for (int i = 0; i < 2; ++i) {  // from the second step on, the optimizer's state is there
      optimizer.zero_grad();
      Tape tape;
      tape.backward(model.loss(tokens, tokens));
      optimizer.step({.max_norm = 1.0});
    }
  };
  return plan(train, capacity, {.timeline = timeline});
}

/// The largest batches, powers of two, that fit into each capacity; 0: none.
std::vector<std::int64_t> largest_batches(const Size& size, Step step,
                                          const std::vector<std::size_t>& capacities) {
  std::vector<std::int64_t> batches(capacities.size(), 0);
  for (step.batch = 1;; step.batch *= 2) {
    const std::size_t peak = plan_of(size, step, 0, false).peak;
    bool any = false;
    for (std::size_t i = 0; i < capacities.size(); ++i) {
      if (peak > capacities[i]) continue;
      batches[i] = step.batch;
      any = true;
    }
    if (!any) return batches;
  }
}

struct Question {
  Size size;
  std::vector<std::int64_t> cards{24, 40, 80}, sequences{1024, 2048, 4096, 8192, 16384};
  double context = 0.5;
  std::string page;

  /// What of each card a program can have, in bytes.
  std::vector<std::size_t> capacities() const {
    std::vector<std::size_t> bytes;
    for (const std::int64_t card : cards) {
      const double left = (static_cast<double>(card) - context) * static_cast<double>(gib);
      bytes.push_back(static_cast<std::size_t>(std::max(left, 0.0)));
    }
    return bytes;
  }
};

void print_heading(const Question& q) {
  const std::int64_t parameters =
      Transformer(q.size, false, {.device = "meta:cuda"}).parameter_count();
  fmt::print("{} layers, {} features, {} heads: {:.2f} G parameters in {}, AdamW in f32.\n",
             q.size.layers, q.size.features, q.size.heads, static_cast<double>(parameters) * 1e-9,
             name_of(q.size.dtype));
  fmt::print(
      "Largest batch, of 1, 2, 4, ... sequences, by the card's memory ({} GiB are the "
      "driver's):\n\n{:>10}",
      q.context, "");
  const auto column = static_cast<int>(9 * q.cards.size());
  fmt::print("  {:<{}}  {:<{}}\n{:>10}", "everything kept", column, "layers recomputed", column,
             "tokens");
  for (int i = 0; i < 2; ++i) {
    fmt::print("  ");
    for (const std::int64_t card : q.cards) fmt::print("{:>5} GiB", card);
  }
  fmt::print("\n");
}

/// Prints a row a length and returns the step with the most tokens that fits; batch 0: none does.
Step print_rows(const Question& q, const std::vector<std::size_t>& capacities) {
  Step best{0, 0, false};
  for (const std::int64_t sequence : q.sequences) {
    fmt::print("{:>10}", sequence);
    for (const bool recomputes : {false, true}) {
      const Step step{1, sequence, recomputes};
      fmt::print("  ");
      for (const std::int64_t batch : largest_batches(q.size, step, capacities)) {
        fmt::print("{:>9}", batch > 0 ? std::to_string(batch) : "-");
        if (batch * sequence > best.batch * best.sequence) best = {batch, sequence, recomputes};
      }
    }
    fmt::print("\n");
  }
  return best;
}

int main(int argc, char** argv) {
  Question q;
  CLI::App app("Prints which batches of a transformer fit on cards with so much memory.");
  app.add_option("--layers", q.size.layers)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--features", q.size.features)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--heads", q.size.heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--vocabulary", q.size.vocabulary)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--cards", q.cards, "their memory in GiB")->capture_default_str();
  app.add_option("--sequences", q.sequences, "tokens of a sequence")->capture_default_str();
  app.add_option("--context", q.context, "GiB that the driver takes")->capture_default_str();
  app.add_option("--page", q.page, "write a page about the largest step that fits to this file");
  CLI11_PARSE(app, argc, argv);

  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::size_t> capacities = q.capacities();
  print_heading(q);
  const Step best = print_rows(q, capacities);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("\nFound in {:.2f} s.\n", seconds);
  if (best.batch == 0 || capacities.empty()) return 0;

  const MemoryPlan largest = plan_of(
      q.size, best, *std::max_element(capacities.begin(), capacities.end()), !q.page.empty());
  fmt::print("The largest: {} sequences of {} tokens, {}.\n{}", best.batch, best.sequence,
             best.recomputes ? "layers recomputed" : "everything kept", largest.text());
  if (!q.page.empty()) std::ofstream(q.page) << largest.report.html("Training step");
}
