// Trains a small classifier on two interleaved spirals, in four parts:
//
//   1. the gradients of the whole model are checked numerically;
//   2. one training step is run on meta, which computes nothing and counts every byte;
//   3. the model is trained;
//   4. the memory at the peak is laid open, and must be what part 2 predicted.
//
// Exits with 1 when one of them does not turn out as it should.
#include <fmt/format.h>
#include <quipu/quipu.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

using namespace quipu;

/// Weight and bias of each layer in turn.
using Parameters = std::vector<Tensor>;

Parameters make_parameters(std::int64_t hidden, DType dtype, Device device) {
  const std::vector<std::int64_t> widths{2, hidden, hidden, 2};
  Parameters p;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const MemoryScope scope("layer" + std::to_string(i + 1));
    const double scale = 1 / std::sqrt(static_cast<double>(widths[i]));
    p.push_back(randn({widths[i], widths[i + 1]}, dtype, device).mul_(scale));
    p.push_back(zeros({widths[i + 1]}, dtype, device));
  }
  for (const Tensor& x : p) x.set_requires_grad();
  return p;
}

/// x (n, 2) -> logits (n, 2). What a layer allocates stands in the ledger under its name.
Tensor model(const Tensor& x, const Parameters& p) {
  Tensor h = x;
  for (std::size_t i = 0; i < p.size(); i += 2) {
    const MemoryScope scope("layer" + std::to_string(i / 2 + 1));
    h = matmul(h, p[i]) + p[i + 1];
    if (i + 2 < p.size()) h = tanh(h);
  }
  return h;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& label) {
  const MemoryScope scope("loss");
  return mean(logsumexp(logits, 1) - gather(logits, 1, label.unsqueeze(1)).squeeze(1));
}

struct Data {
  Tensor points;  // (n, 2)
  Tensor label;   // (n), which of the two spirals
};

Data two_spirals(std::int64_t n, DType dtype, Device device) {
  const MemoryScope scope("data");
  const Tensor label = randint(0, 2, {n}, i64, device);
  const Tensor radius = sqrt(rand({n}, dtype, device));
  const Tensor angle = 10 * radius + std::numbers::pi * label.to(dtype);
  const Tensor noise = 0.02 * randn({n, 2}, dtype, device);
  return {stack({radius * cos(angle), radius * sin(angle)}, 1) + noise, label};
}

/// Everything that a run holds on its device.
struct Training {
  Training(std::int64_t points, std::int64_t hidden, Device device)
      : data(two_spirals(points, f32, device)), parameters(make_parameters(hidden, f32, device)) {
    const MemoryScope scope("momentum");
    for (const Tensor& p : parameters) {
      velocity.push_back(zeros(p.shape(), p.dtype(), p.device(), Category::optimizer));
    }
  }

  /// One step of gradient descent with momentum; gives the loss and, if asked, the tape's rows.
  Tensor step(std::string* tape_text = nullptr) {
    Tape tape;  // records what happens on this thread while it lives
    const Tensor loss = cross_entropy(model(data.points, parameters), data.label);
    if (tape_text) *tape_text = tape.text();
    tape.backward(loss);

    const NoGrad no_grad;  // what follows changes parameters in place
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      velocity[i].mul_(0.9).add_(parameters[i].grad());
      parameters[i].add_(velocity[i], -0.2);
      parameters[i].zero_grad();
    }
    return loss.detach();
  }

  double accuracy() const {  // no tape, so nothing is recorded and nothing saved
    return mean(eq(argmax(model(data.points, parameters), 1), data.label).to(f32)).item();
  }

  Data data;
  Parameters parameters;
  std::vector<Tensor> velocity;
};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

bool verify_gradients() {
  fmt::print("1. Gradients of the whole model against differences, in f64\n");
  const Data data = two_spirals(32, f64, cpu);
  const auto loss = [&](const Parameters& p) {
    return cross_entropy(model(data.points, p), data.label);
  };
  const GradcheckResult result = gradcheck(loss, make_parameters(16, f64, cpu));
  fmt::print("{}\n", result.report);
  return result.ok;
}

std::size_t predict_peak(std::int64_t points, std::int64_t hidden) {
  fmt::print("\n2. One step on meta:cpu\n");
  const auto start = std::chrono::steady_clock::now();
  const PeakMemory peak("meta:cpu");
  Training(points, hidden, "meta:cpu").step();
  fmt::print("predicted peak: {} bytes, in {:.1f} ms\n", peak.bytes(), milliseconds_since(start));
  return peak.bytes();
}

int main(int argc, char** argv) {
  std::int64_t points = 2000, hidden = 64;
  int steps = 800;
  CLI::App app("Trains a small model, with its gradients checked and its memory accounted for.");
  app.add_option("--points", points, "points to learn from")->check(CLI::PositiveNumber);
  app.add_option("--hidden", hidden, "width of the hidden layers")->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "training steps")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  manual_seed(2);
  const bool gradients_agree = verify_gradients();
  const std::size_t predicted = predict_peak(points, hidden);

  fmt::print("\n3. Training on {} points, {} steps, {} threads\n", points, steps, num_threads());
  const auto start = std::chrono::steady_clock::now();
  const PeakMemory peak(cpu);
  Training training(points, hidden, cpu);
  std::string tape_text;
  for (int step = 1; step <= steps; ++step) {
    const Tensor loss = training.step(step == steps ? &tape_text : nullptr);
    if (step == 1 || step == steps || step % std::max(steps / 8, 1) == 0) {
      fmt::print("step {:>4}   loss {:.4f}   accuracy {:5.1f} %\n", step, loss.item(),
                 100 * training.accuracy());
    }
  }
  const bool learned = training.accuracy() >= 0.99;
  fmt::print("{:.2f} ms a step. The tape of the last one:\n{}", milliseconds_since(start) / steps,
             tape_text);

  fmt::print("\n4. Memory\n{}", peak.report().text());
  const bool peak_agrees = peak.bytes() == predicted;
  fmt::print("predicted {} bytes, measured {} bytes\n", predicted, peak.bytes());

  const auto verdict = [](bool ok) { return ok ? "yes" : "NO"; };
  fmt::print("\ngradients agree: {}   peak as predicted: {}   99 % learned: {}\n",
             verdict(gradients_agree), verdict(peak_agrees), verdict(learned));
  return gradients_agree && peak_agrees && learned ? 0 : 1;
}
