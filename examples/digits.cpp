// Learns to read handwritten digits: 1797 real images of 8 x 8 pixels (examples/data/), cut into
// 16 patches of 2 x 2. Patches and a class token in front of them pass through layers of gated
// linear attention whose positions are angles on the 4 x 4 grid; the class token then tells the
// digit.
#include <algorithm>

#include "common.h"

using namespace quipu;

using Layer = nn::TransformerLayer<nn::GatedLinearAttention>;

struct Digits : nn::Module {
  nn::Linear embed, head;
  Tensor token;
  std::vector<Layer> layers;
  nn::RMSNorm norm;

  explicit Digits(const nn::Place& place, std::int64_t features = 64)
      : embed(4, features, {}, place), head(features, 10, {}, place), norm(features, place) {
    token = nn::init::zeros(nn::make_parameter({1, 1, features}, place));
    const nn::GatedLinearAttentionOptions grid{.heads = 4, .grid = {4, 4}, .lead = 1};
    for (int i = 0; i < 2; ++i) layers.emplace_back(features, grid, nn::MLPOptions{}, place);
  }
  void members(nn::Members& m) override {
    m("embed", embed)("token", token)("layers", layers)("norm", norm)("head", head);
  }
  /// Patches (b, 16, 4) -> logits (b, 10).
  Tensor operator()(const Tensor& patches) const {
    Tensor x = cat({token.expand({patches.size(0), 1, -1}), embed(patches)}, 1);
    for (const Layer& layer : layers) x = layer(x);
    return head(norm(x.select(1, 0)));
  }
};

constexpr std::int64_t learned = 1500;  // images; the others are to judge by

struct Data {
  Tensor patches;  // (n, 16, 4), between 0 and 1
  Tensor label;    // (n)
  Data part(std::int64_t begin, std::int64_t end) const {
    return {patches.slice(0, begin, end).contiguous(), label.slice(0, begin, end).contiguous()};
  }
};

/// All images, in an order that is always the same. A row of the file is 64 pixels from 0 to 16 and
/// the digit.
Data read_digits(const std::string& path, const nn::Place& place) {
  const Tensor table = nn::read_csv(path).values;
  if (table.size(1) != 65 || table.size(0) <= learned) {
    throw Error(path + " is a table of shape " + to_string(table.shape()) +
                ", but rows of 64 pixels and a label are wanted, and more than " +
                std::to_string(learned));
  }
  Generator fixed(1);
  const Tensor rows = index_select(table, 0, randperm(table.size(0), cpu, fixed));
  const Tensor pixels = (rows.slice(1, 0, 64) / 16).reshape({-1, 4, 2, 4, 2});
  return {pixels.transpose(2, 3).reshape({-1, 16, 4}).to(place.dtype).to(place.device),
          rows.select(1, 64).to(i64).to(place.device)};
}

struct Options : CommonOptions {
  std::string data = shared_file("digits.csv.gz");
  std::int64_t epochs = 20, steps = 0, batch = 64;
  double lr = 3e-3;
};

/// Without a tape: nothing is recorded, nothing kept.
double accuracy(const Digits& model, const Data& data, std::int64_t batch, Device device) {
  const std::int64_t n = data.label.size(0);
  double right = 0;
  for (std::int64_t i = 0; i < n; i += batch) {
    const Data some = data.part(i, std::min(i + batch, n));
    const Tensor digit = argmax(model(some.patches.to(device)), 1);
    right += sum(eq(digit, some.label.to(device))).item();
  }
  return right / static_cast<double>(n);
}

void train(const Options& o) {
  const PeakMemory peak(o.device);
  const Data data = read_digits(o.data, {.device = o.data_device(), .dtype = o.dtype});
  const Data seen = data.part(0, learned), held_out = data.part(learned, data.label.size(0));
  nn::Loader loader(nn::TensorDataset({seen.patches, seen.label}), {.batch_size = o.batch,
                                                                    .shuffle = true,
                                                                    .seed = o.seed,
                                                                    .drop_last = true,
                                                                    .prefetch = 0,
                                                                    .device = o.device});
  Digits model(o.place());
  for (Layer& layer : model.layers) layer.recomputes = o.recompute;
  nn::AdamW optimizer(model.parameters(), {.lr = o.lr, .weight_decay = 0.01});
  if (o.report) fmt::print("{}\n", model.tree());

  const std::int64_t planned = o.epochs * loader.batches_per_epoch();
  const std::int64_t steps = o.steps > 0 ? std::min(o.steps, planned) : planned;
  const nn::Schedule fall = nn::cosine(o.lr, 0, planned);
  StepMemory memory(o);
  nn::Progress progress({.steps = steps, .unit = "images", .log = o.log, .device = o.device});
  while (progress.done() < steps && !nn::stop_requested()) {
    memory.before_step();
    const std::int64_t step = progress.done();
    const auto [x, y] = loader.next<2>();
    const auto run = [&, x = x, y = y] {
      Tape tape;  // records while it lives
      const Tensor loss = cross_entropy(model(x), y);
      tape.backward(loss);
      return loss.detach();
    };
    const Tensor loss = run();
    nn::check_finite(loss, step, run, optimizer.parameters());
    optimizer.set_lr(std::min(1.0, static_cast<double>(step + 1) / 30) * fall(step));
    optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    progress.step(loss, {.count = static_cast<double>(o.batch), .lr = optimizer.lr()});
  }
  progress.finish();

  const std::string score =
      o.computes() ? fmt::format("{:.2f} %", 100 * accuracy(model, held_out, o.batch, o.device))
                   : "";
  finish_run(o, "Handwritten digits", model, progress, peak, memory, "accuracy", score);
}

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Learns to read handwritten digits with gated linear attention on a grid.");
  app.add_option("--data", o.data, "CSV file of images, gzip or plain")->capture_default_str();
  app.add_option("--epochs", o.epochs, "how often to see all images")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--steps", o.steps, "stop after so many; 0: when all epochs are done")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--batch", o.batch, "images a step")->check(positive)->capture_default_str();
  app.add_option("--lr", o.lr, "highest learning rate")->capture_default_str();
  add_common_options(app, o);
  return run_program(app, argc, argv, o, [&] { train(o); });
}
