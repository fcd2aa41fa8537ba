// A small training run that saves after every step and goes on where the last one was stopped:
// train FOLDER STEPS [forget PART]. Prints a hash of all parameters at the end. To forget a part
// (optimizer, data, random) is the control: it must change the hash.
#include <quipu/quipu.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

using namespace quipu;
using namespace quipu::detail;

namespace {

struct Run {
  NamedTensors model, momentum;
  nn::Loader loader;

  void resume(const nn::Checkpoint& last, const std::string& forgotten) {
    nn::load_into(model, last.model);
    if (forgotten != "optimizer") nn::load_into(momentum, last.part("optimizer"));
    if (forgotten != "data") loader.load_state(last.part("data"));
    if (forgotten != "random") last.restore_random();
  }
  void step() {
    const auto [x, y] = loader.next<2>();
    Tape tape;
    const Tensor hidden = dropout(tanh(matmul(x, model[0].second) + model[1].second), 0.2);
    const Tensor error = matmul(hidden, model[2].second) - y;
    tape.backward(mean(error * error));
    const NoGrad pause;
    for (std::size_t i = 0; i < model.size(); ++i) {
      const Tensor& p = model[i].second;
      momentum[i].second.mul_(0.9).add_(p.grad());
      p.add_(momentum[i].second, -0.001);
      p.zero_grad();
    }
  }
  nn::Checkpoint checkpoint(std::int64_t step) const {
    return {
        .step = step, .model = model, .parts = {{"optimizer", momentum}, {"data", loader.state()}}};
  }
};

Run start() {
  manual_seed(1);
  const Tensor x = randn({100, 32}), y = sin(sum(x, 1, true));
  Run run{{{"up.weight", randn({32, 512}) * 0.1},
           {"up.bias", zeros({512})},
           {"down.weight", randn({512, 1}) * 0.05}},
          {},
          nn::Loader(nn::TensorDataset({x, y}), {.batch_size = 16, .shuffle = true, .seed = 2})};
  for (const auto& [name, tensor] : run.model) {
    tensor.set_requires_grad();
    run.momentum.emplace_back(name, zeros_like(tensor));
  }
  return run;
}

/// FNV-1a of the bytes.
std::uint64_t hash_of(const NamedTensors& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const auto& entry : tensors) {
    const auto* bytes = static_cast<const unsigned char*>(entry.second.raw_data());
    for (std::size_t i = 0; i < entry.second.nbytes(); ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  }
  return hash;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "train FOLDER STEPS [forget PART]\n"), 2;
  Run run = start();
  nn::CheckpointFolder folder(argv[1], {.keep = 2});
  std::int64_t step = 0;
  if (const auto last = folder.newest()) {
    run.resume(*last, argc > 4 ? argv[4] : "");
    step = last->step;
  }
  std::fprintf(stderr, "begins after step %" PRId64 "\n", step);
  for (const std::int64_t steps = std::atoll(argv[2]); step < steps;) {
    run.step();
    folder.save(run.checkpoint(++step));
  }
  for (const auto& entry : run.model) {  // NaN would be the same bits whatever led there
    check(std::isfinite(sum(entry.second).item()), entry.first, " is not finite");
  }
  std::printf("step %" PRId64 ", parameters %016" PRIx64 "\n", step, hash_of(run.model));
}
