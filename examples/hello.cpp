// Fits a small network to y = sin(3x): checks its gradients, trains it, and shows its memory.
#include <quipu/quipu.h>

#include <CLI/CLI.hpp>
#include <iostream>

using namespace quipu;

struct Network : nn::Module {
  nn::Linear in, out;
  explicit Network(const nn::Place& place) : in(1, 32, {}, place), out(32, 1, {}, place) {}
  void members(nn::Members& m) override { m("in", in)("out", out); }
  Tensor operator()(const Tensor& x) const { return out(tanh(in(x))); }
};

int main(int argc, char** argv) {
  int steps = 400;
  std::string device = "cpu";
  std::uint64_t seed = 1;
  CLI::App app("Fits a small network to y = sin(3x).");
  app.add_option("--steps", steps, "training steps")->capture_default_str();
  app.add_option("--device", device, "cpu, cuda, or meta:cpu or meta:cuda to count bytes only")
      ->capture_default_str();
  app.add_option("--seed", seed, "of the first weights")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  manual_seed(seed);

  // Gradients are right if they agree with differences, entry by entry, in f64.
  const Network exact({.dtype = f64});
  const auto run = [&](const std::vector<Tensor>& in) {
    Network copy = exact;
    copy.in.weight = in[0];
    copy.out.weight = in[1];
    return copy(linspace(-1, 1, 8, f64).unsqueeze(1));
  };
  const GradcheckResult checked = gradcheck(run, {exact.in.weight, exact.out.weight});
  std::cout << checked << "\n\n";

  const PeakMemory peak(device);
  Network network({.device = device});
  nn::AdamW optimizer(network.parameters(), {.lr = 0.01});
  std::cout << network << "\n";
  const Tensor x = linspace(-1, 1, 200, f32, device).unsqueeze(1), y = sin(3 * x);
  for (int step = 1; step <= steps; ++step) {
    Tape tape;  // records while it lives
    const Tensor loss = mse_loss(network(x), y);
    tape.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (loss.device().is_meta() || step % 100 != 0) continue;
    std::cout << "step " << step << "  loss " << loss.item() << "\n";
  }
  std::cout << "\n" << peak.report().text(5);
  return checked ? 0 : 1;
}
