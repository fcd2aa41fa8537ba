// Tells in which of eight directions a handwritten digit moves through a short video. Frames are a
// torus, so that the digit may start anywhere and a single frame says nothing. A token is a patch
// of two successive frames, which shows where ink comes and goes. Tokens stand on a grid of time,
// rows and columns; their positions are angles of gated linear attention in three dimensions
// (lrpe_cosine_md).
#include <algorithm>

#include "common.h"

using namespace quipu;

constexpr std::int64_t frames = 4, side = 12, patch = 2, cells = side / patch, times = frames - 1;
constexpr std::int64_t speed = 2;       // pixels a frame
constexpr std::int64_t learned = 1500;  // digits that are seen in training

using Layer = nn::TransformerLayer<nn::GatedLinearAttention>;

struct Video : nn::Module {
  nn::Linear embed, head;
  Tensor token;
  std::vector<Layer> layers;
  nn::RMSNorm norm;

  explicit Video(const nn::Place& place, std::int64_t features = 48)
      : embed(2 * patch * patch, features, {}, place),
        head(features, 8, {}, place),
        norm(features, place) {
    token = nn::init::normal(nn::make_parameter({1, 1, features}, place), 0, 1);
    const nn::GatedLinearAttentionOptions grid{
        .heads = 4, .grid = {times, cells, cells}, .lead = 1};
    for (int i = 0; i < 2; ++i) layers.emplace_back(features, grid, nn::MLPOptions{}, place);
  }
  void members(nn::Members& m) override {
    m("embed", embed)("token", token)("layers", layers)("norm", norm)("head", head);
  }
  /// Videos (b, frames, side, side) -> logits of the directions (b, 8).
  Tensor operator()(const Tensor& videos) const {
    const std::int64_t b = videos.size(0);
    const Tensor pairs = stack({videos.slice(1, 0, times), videos.slice(1, 1)}, -1);
    const Tensor patches = pairs.reshape({b, times, cells, patch, cells, patch * 2})
                               .transpose(3, 4)
                               .reshape({b, times * cells * cells, patch * patch * 2});
    Tensor x = cat({token.expand({b, 1, -1}), embed(patches)}, 1);
    for (const Layer& layer : layers) x = layer(x);
    return head(norm(x.select(1, 0)));
  }
};

/// Videos of digits, made as they are asked for: sample i is always the same one. Its digit, start
/// and direction come from random numbers with the seed and i.
class MovingDigits : public nn::Dataset {
 public:
  /// `size` videos of the digits of a part of a CSV file, whose rows begin with 64 pixels.
  MovingDigits(const std::string& path, const Index& rows, std::int64_t size, std::uint64_t seed,
               DType dtype)
      : images_(nn::read_csv(path).values(rows, slice(0, 64)).to_vector()),
        size_(size),
        seed_(seed),
        dtype_(dtype) {
    if (images_.empty()) {
      throw Error(path + " has too few rows: " + std::to_string(learned) +
                  " are learned from, and others judge");
    }
  }

  std::int64_t size() const override { return size_; }
  nn::Batch make(std::int64_t count, Device device) const override {
    return {empty({count, frames, side, side}, dtype_, device), empty({count}, i64, device)};
  }
  void fill(const nn::Batch& batch, std::span<const std::int64_t> places) const override {
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      batch[1][at].fill_(draw(places[i], batch[0][at]));
    }
  }

 private:
  /// Draws one video and gives its direction.
  std::int64_t draw(std::int64_t place, const Tensor& video) const {
    constexpr int way[8][2] = {{0, 1},  {1, 1},   {1, 0},  {1, -1},
                               {0, -1}, {-1, -1}, {-1, 0}, {-1, 1}};
    const auto words = philox(seed_, static_cast<std::uint64_t>(place));
    const std::size_t digit = words[0] % (images_.size() / 64);
    const std::size_t direction = words[1] % 8;
    const std::int64_t row = words[2] % side, column = words[3] % side;
    std::vector<float> pixels(frames * side * side);
    for (std::int64_t t = 0; t < frames; ++t) {
      for (std::int64_t i = 0; i < 64; ++i) {
        const std::int64_t y = (row + i / 8 + t * speed * way[direction][0] + frames * side) % side;
        const std::int64_t x =
            (column + i % 8 + t * speed * way[direction][1] + frames * side) % side;
        pixels[static_cast<std::size_t>((t * side + y) * side + x)] =
            static_cast<float>(images_[64 * digit + static_cast<std::size_t>(i)] / 16);
      }
    }
    video.copy_from(from(pixels, {frames, side, side}));
    return static_cast<std::int64_t>(direction);
  }

  std::vector<double> images_;  // 64 pixels each
  std::int64_t size_;
  std::uint64_t seed_;
  DType dtype_;
};

struct Options : CommonOptions {
  std::string data = shared_file("digits.csv.gz");
  std::int64_t steps = 800, batch = 32, judged = 1000;
  double lr = 3e-3;
};

double accuracy(const Video& model, nn::Loader& loader) {
  double right = 0, all = 0;
  for (const nn::Batch& batch : loader) {
    right += sum(eq(argmax(model(batch[0]), 1), batch[1])).item();
    all += static_cast<double>(batch[1].numel());
  }
  return right / all;
}

void train(const Options& o) {
  const PeakMemory peak(o.device);
  // The videos to judge by are of digits that were never seen.
  const nn::LoaderOptions each{.batch_size = o.batch, .device = o.device};
  nn::Loader loader(MovingDigits(o.data, slice(0, learned), o.steps * o.batch, o.seed, o.dtype),
                    each);
  nn::Loader held_out(MovingDigits(o.data, slice(learned), o.judged, o.seed + 1, o.dtype), each);
  Video model(o.place());
  for (Layer& layer : model.layers) layer.recomputes = o.recompute;
  nn::AdamW optimizer(model.parameters(), {.lr = o.lr, .weight_decay = 0.01});
  if (o.report) fmt::print("{}\n", model.tree());

  const nn::Schedule schedule =
      nn::warm_up(30, nn::cosine(o.lr, 0, std::max<std::int64_t>(o.steps - 30, 1)));
  StepMemory memory(o);
  nn::Progress progress({.steps = o.steps, .unit = "videos", .log = o.log, .device = o.device});
  while (progress.done() < o.steps && !nn::stop_requested()) {
    memory.before_step();
    const auto [x, y] = loader.next<2>();
    const auto run = [&, x = x, y = y] {
      Tape tape;  // records while it lives
      const Tensor loss = cross_entropy(model(x), y);
      tape.backward(loss);
      return loss.detach();
    };
    const Tensor loss = run();
    nn::check_finite(loss, progress.done(), run, optimizer.parameters());
    optimizer.set_lr(schedule(progress.done()));
    optimizer.step({.max_norm = 1});
    optimizer.zero_grad();
    progress.step(loss, {.count = static_cast<double>(o.batch), .lr = optimizer.lr()});
  }
  progress.finish();

  const std::string score =
      o.computes() ? fmt::format("{:.2f} %", 100 * accuracy(model, held_out)) : "";
  finish_run(o, "Directions of moving digits", model, progress, peak, memory, "accuracy", score);
}

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Tells in which direction handwritten digits move, from videos on a 3-d grid.");
  app.add_option("--data", o.data, "CSV file of digits, gzip or plain")->capture_default_str();
  app.add_option("--steps", o.steps, "training steps")->check(positive)->capture_default_str();
  app.add_option("--batch", o.batch, "videos a step")->check(positive)->capture_default_str();
  app.add_option("--judged", o.judged, "videos to find the accuracy with")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--lr", o.lr, "highest learning rate")->capture_default_str();
  add_common_options(app, o);
  return run_program(app, argc, argv, o, [&] { train(o); });
}
