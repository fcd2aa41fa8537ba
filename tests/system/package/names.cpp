// A program names its own things as it likes: under `using namespace quipu;` none of these words is
// the library's. Each is declared at global scope and used without qualification.
//
// No word had to be left out. With `using namespace quipu::nn;` on top, the library has one of
// them: `Batch`, what a loader gives. docs/public-names.txt lists everything that it has.
#include <quipu/quipu.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

using namespace quipu;

struct Config {
  std::int64_t features = 3, hidden = 8;
};
struct Options {
  double lr = 0.05;
};
struct Range {
  int first = 0, last = 4;
};

struct Layer : nn::Module {
  nn::Linear linear;
  Layer() = default;
  Layer(std::int64_t in, std::int64_t out) : linear(in, out) {}
  void members(nn::Members& m) override { m("linear", linear); }
  Tensor operator()(const Tensor& x) const { return tanh(linear(x)); }
};

struct Block : nn::Module {
  std::vector<Layer> layers;
  nn::Linear out;
  explicit Block(const Config& config)
      : layers{Layer(config.features, config.hidden), Layer(config.hidden, config.hidden)},
        out(config.hidden, 1) {}
  void members(nn::Members& m) override { m("layers", layers)("out", out); }
  Tensor operator()(const Tensor& x) const {
    Tensor h = x;
    for (const Layer& layer : layers) h = layer(h);
    return out(h);
  }
};

struct Batch {
  Tensor x, y;
};
struct Data {
  Tensor x = randn({16, 3}), y = sum(x, 1, true);
  Batch batch() const { return {x, y}; }
};

struct Model {
  Block block;
  Tensor loss(const Batch& batch) const { return mse_loss(block(batch.x), batch.y); }
};

struct State {
  std::vector<double> losses;
};

// The rest only has to be there: a count of their sizes uses each name as a type.
// clang-format off
struct Segment { char byte; };
struct Slot { char byte; };
struct Entry { char byte; };
struct Edge { char byte; };
struct Node { char byte; };
struct Graph { std::vector<Node> nodes; std::vector<Edge> edges; };
struct View { char byte; };
struct Kernel { char byte; };
struct Layout { char byte; };
struct Plan { char byte; };
struct Matrix { Tensor values; };
struct Rows { char byte; };
struct Tile { char byte; };
struct Source { char byte; };
struct Scope { char byte; };
struct Term { char byte; };
struct Walk { char byte; };
struct Queue { char byte; };
struct Pool { char byte; };
struct Stream { char byte; };
struct Event { char byte; };
struct Timer { char byte; };
struct Grad { char byte; };
struct Storage { char byte; };
struct Knot { char byte; };
struct Span { char byte; };
struct Ref { char byte; };
// clang-format on

template <class... Types>
std::size_t count(Types... things) {
  return (sizeof(things) + ... + 0);
}

int main() {
  manual_seed(3);
  const Graph graph{{Node{}, Node{}}, {Edge{}}};
  const Matrix matrix{eye(2)};
  const std::size_t bytes =
      count(Segment{}, Slot{}, Entry{}, View{}, Kernel{}, Layout{}, Plan{}, Rows{}, Tile{},
            Source{}, Scope{}, Term{}, Walk{}, Queue{}, Pool{}, Stream{}, Event{}, Timer{}, Grad{},
            Storage{}, Knot{}, Span{}, Ref{});
  if (bytes != 23 || graph.nodes.size() != 2 || sum(matrix.values).item() != 2) return 1;

  const Data data;
  const Model model{Block(Config{})};
  nn::AdamW optimizer(model.block.parameters(), {.lr = Options{}.lr});
  State state;
  for (int i = Range{}.first; i < Range{}.last; ++i) {
    Tape tape;
    const Tensor loss = model.loss(data.batch());
    tape.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    state.losses.push_back(loss.item());
  }
  std::printf("loss %.3f, then %.3f\n", state.losses.front(), state.losses.back());
  return std::isfinite(state.losses.back()) && state.losses.back() < state.losses.front() ? 0 : 1;
}
