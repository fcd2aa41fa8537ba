// A language model of bytes with tensor product attention: learns from any text files, by default
// from the sources of this repository, and then writes on, byte by byte. While it writes, the cache
// holds the factors of keys and values: 2 (heads + head_dim) numbers a token and layer instead of
// 2 heads head_dim.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>

#include "common.h"

using namespace quipu;

using Layer = nn::TransformerLayer<nn::TensorProductAttention>;

struct Lm : nn::Module {
  nn::Embedding embed;
  std::vector<Layer> layers;
  nn::RMSNorm norm;
  nn::Linear head;

  explicit Lm(const nn::Place& place, std::int64_t features = 128)
      : embed(256, features, place),
        norm(features, place),
        head(features, 256, {.bias = false}, place) {
    const nn::TensorProductAttentionOptions shape{.heads = 4, .head_dim = 32, .rank = 4};
    for (int i = 0; i < 4; ++i) layers.emplace_back(features, shape, nn::MLPOptions{}, place);
  }
  void members(nn::Members& m) override {
    m("embed", embed)("layers", layers)("norm", norm)("head", head);
  }
  /// Bytes (b, n) -> what may come after each of them, logits (b, n, 256).
  Tensor operator()(const Tensor& bytes) const {
    Tensor x = embed(bytes);
    for (const Layer& layer : layers) x = layer(x);
    return head(norm(x));
  }
  /// The same for bytes behind those that the caches hold, of the last one: (b, 256).
  Tensor decode(const Tensor& bytes, std::vector<TpaCache>& caches) const {
    Tensor x = embed(bytes);
    for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i].decode(x, caches[i]);
    return head(norm(x.select(1, -1)));
  }
  Device device() const { return embed.weight.device(); }
  std::vector<TpaCache> make_caches(std::int64_t capacity) const {
    std::vector<TpaCache> caches;
    for (const Layer& layer : layers) caches.push_back(layer.attention.make_cache(1, capacity));
    return caches;
  }
};

struct Options : CommonOptions {
  std::vector<std::string> files;
  std::string checkpoints, prompt = "#include ";
  std::int64_t steps = 1000, batch = 16, sequence = 128, save_every = 100, tokens = 300, top_k = 0;
  double lr = 3e-3, temperature = 0.8, top_p = 0.95;
  bool verify = false;
};

/// The sources and pages of this repository, in an order that is always the same.
std::vector<std::string> own_sources() {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  const fs::path tree = shared_file("source");
  if (!fs::is_directory(tree)) throw std::runtime_error("no sources are here: name text files");
  for (const char* folder : {"core", "autograd", "ops", "cpu", "nn", "docs", "examples", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(tree / folder)) {
      const std::string kind = entry.path().extension();
      if (kind == ".h" || kind == ".cpp" || kind == ".md") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

Tensor loss_of(const Lm& model, const Tensor& x, const Tensor& y) {
  return cross_entropy(model(x), y);
}

/// The last twentieth is not learned.
struct Text {
  explicit Text(const nn::TokenFiles& all)
      : learned(all.part(0, 0.95)), held_out(all.part(0.95, 1)) {}
  nn::TokenFiles learned, held_out;
};

double held_out_loss(const Lm& model, const nn::TokenFiles& text, std::int64_t batch) {
  nn::Loader loader(text, {.batch_size = batch, .shuffle = true, .device = model.device()});
  double total = 0;
  for (int i = 0; i < 8; ++i) {
    const auto [x, y] = loader.next<2>();
    total += loss_of(model, x, y).item();
  }
  return total / 8;
}

/// All that a checkpoint holds.
struct Training {
  Training(const Options& o, Lm& lm, const nn::TokenFiles& text)
      : model(lm),
        loader(text, {.batch_size = o.batch,
                      .shuffle = true,
                      .seed = o.seed,
                      .drop_last = true,
                      .device = o.device}),
        optimizer(model.parameters(), {.lr = o.lr, .weight_decay = 0.01}) {}

  nn::Checkpoint checkpoint(std::int64_t step) const {
    return {.step = step,
            .model = model.state(),
            .parts = {{"optimizer", optimizer.state()}, {"data", loader.state()}}};
  }
  void go_on_from(const nn::Checkpoint& last) {
    model.load_state(last.model);
    optimizer.load_state(last.part("optimizer"));
    loader.load_state(last.part("data"));
    last.restore_random();
  }
  /// Gives the loss.
  Tensor step(std::int64_t number, double lr) {
    const auto [x, y] = loader.next<2>();
    const auto run = [&, x = x, y = y] {
      Tape tape;  // records while it lives
      const Tensor loss = loss_of(model, x, y);
      tape.backward(loss);
      return loss.detach();
    };
    const Tensor loss = run();
    nn::check_finite(loss, number, run, optimizer.parameters());
    optimizer.set_lr(lr);
    optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    return loss;
  }

  Lm& model;
  nn::Loader loader;
  nn::AdamW optimizer;
};

/// False if it was stopped before its last step.
bool train(const Options& o, Lm& model, const Text& text, const PeakMemory& peak) {
  Training training(o, model, text.learned);
  std::optional<nn::CheckpointFolder> folder;
  if (!o.checkpoints.empty()) folder.emplace(o.checkpoints);
  std::int64_t first = 0;
  if (const auto last = folder ? folder->newest() : std::nullopt) {
    training.go_on_from(*last);
    first = last->step;
    fmt::print("going on after step {}\n", first);
  }
  if (folder && first < o.steps) folder->check_writable();

  const nn::Schedule fall = nn::cosine(o.lr, 0, o.steps);
  StepMemory memory(o);
  nn::Progress progress(
      {.steps = o.steps, .first_step = first, .unit = "tokens", .log = o.log, .device = o.device});
  bool stopped = false;
  while (progress.done() < o.steps && !stopped) {
    memory.before_step();
    const std::int64_t step = progress.done();
    const double lr = std::min(1.0, static_cast<double>(step + 1) / 30) * fall(step);
    progress.step(training.step(step, lr),
                  {.count = static_cast<double>(o.batch * o.sequence), .lr = lr});
    stopped = nn::stop_requested();
    const bool due = stopped || progress.done() % o.save_every == 0 || progress.done() == o.steps;
    if (folder && due && folder->try_save(training.checkpoint(progress.done()))) {
      progress.note("saved " + folder->path_of(progress.done()));
    }
  }
  progress.finish();
  if (!stopped) {
    const std::string score =
        o.computes() ? fmt::format("{:.3f}", held_out_loss(model, text.held_out, o.batch)) : "";
    finish_run(o, "Language model of bytes", model, progress, peak, memory, "held-out loss", score);
  }
  if (folder && !folder->problem().empty()) throw Error(folder->problem());  // its end is lost
  return !stopped;
}

Tensor as_tensor(const std::string& bytes, Device device) {
  return from(std::vector<std::uint8_t>(bytes.begin(), bytes.end()),
              {1, static_cast<std::int64_t>(bytes.size())}, i64)
      .to(device);
}

/// Writes on behind the prompt and gives what it wrote; `each` sees every byte as it comes.
template <class F>
std::string generate(const Lm& model, const std::string& prompt, std::int64_t count,
                     const SampleOptions& how, const F& each) {
  std::vector<TpaCache> caches =
      model.make_caches(static_cast<std::int64_t>(prompt.size()) + count);
  std::string written;
  Tensor next = as_tensor(prompt, model.device());
  for (std::int64_t i = 0; i < count; ++i) {
    next = sample(model.decode(next, caches), how).unsqueeze(1);
    written += static_cast<char>(next.item_int());
    each(written.back());
  }
  return written;
}

/// Greedy writing from the cache must be what the whole pass over all bytes so far says.
void verify(const Lm& model, const std::string& prompt, std::int64_t count) {
  const std::string written = generate(model, prompt, count, {.temperature = 0}, [](char) {});
  const Tensor logits = model(as_tensor(prompt + written, model.device()));
  const Tensor likely = argmax(logits, -1).slice(1, static_cast<std::int64_t>(prompt.size()) - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(written[static_cast<std::size_t>(i)]);
    const std::int64_t wanted = likely(0, i).item_int();
    if (wanted != byte) {
      throw Error(fmt::format("byte {} from the cache is {}, but the whole pass says {}", i,
                              int{byte}, wanted));
    }
  }
  fmt::print("{} bytes from the cache are those of the whole pass\n", count);
}

void write_text(const Lm& model, const Options& o) {
  fmt::print("{}", o.prompt);
  const auto start = std::chrono::steady_clock::now();
  generate(model, o.prompt, o.tokens,
           {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p}, [](char c) {
             const bool shown = c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= ' ';
             std::cout << (shown ? c : '?') << std::flush;
           });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  fmt::print("\n{:.0f} bytes a second\n", static_cast<double>(o.tokens) / time.count());
}

void run(Options o) {
  if (o.files.empty()) o.files = own_sources();
  const nn::TokenFiles all(o.files, {.sequence = o.sequence, .stride = 1});
  fmt::print("{} bytes of text\n", all.tokens());
  const Text text(all);
  const PeakMemory peak(o.device);
  Lm model(o.place());
  for (Layer& layer : model.layers) layer.recomputes = o.recompute;
  if (o.report) fmt::print("{}\n", model.tree());
  if (!train(o, model, text, peak)) {
    fmt::print("stopped; the same command goes on from the last checkpoint, if there is one\n");
    return;
  }
  if (!o.computes()) return;
  if (o.verify) verify(model, o.prompt, o.tokens);
  write_text(model, o);
}

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Learns to write text, byte by byte, with tensor product attention.");
  app.add_option("files", o.files, "texts to learn from; this repository's sources if left out");
  app.add_option("--steps", o.steps, "training steps")->check(positive)->capture_default_str();
  app.add_option("--batch", o.batch, "sequences a step")->check(positive)->capture_default_str();
  app.add_option("--sequence", o.sequence, "bytes a sequence")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--lr", o.lr, "highest learning rate")->capture_default_str();
  app.add_option("--checkpoints", o.checkpoints, "folder to save to, and to go on from");
  app.add_option("--save-every", o.save_every, "steps between checkpoints")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--prompt", o.prompt, "what to write on from")
      ->check([](const std::string& text) { return text.empty() ? "a prompt is needed" : ""; })
      ->capture_default_str();
  app.add_option("--tokens", o.tokens, "bytes to write")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--temperature", o.temperature, "0: always the most likely byte")
      ->capture_default_str();
  app.add_option("--top-k", o.top_k, "draw from the k most likely bytes; 0: from all")
      ->capture_default_str();
  app.add_option("--top-p", o.top_p, "draw from the most likely bytes with this share")
      ->capture_default_str();
  app.add_flag("--verify", o.verify, "check the cache against the pass over the whole text");
  add_common_options(app, o);
  return run_program(app, argc, argv, o, [&] { run(o); });
}
