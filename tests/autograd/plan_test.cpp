// Dry runs of a step against the step itself.
#include <quipu/nn/gated_linear_attention.h>
#include <quipu/nn/optim/adamw.h>
#include <quipu/nn/transformer_layer.h>
#include <quipu/quipu.h>

#include <sstream>

#include "quipu/ops/matmul/kernels.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

using Layer = nn::TransformerLayer<nn::GatedLinearAttention>;

struct Model : nn::Module {
  Model(bool recomputes, const nn::Place& place) {
    for (int i = 0; i < 3; ++i) {
      layers.emplace_back(32, nn::GatedLinearAttentionOptions{.heads = 2, .grid = {8, 4}},
                          nn::MLPOptions{}, place);
      layers.back().recomputes = recomputes;
    }
  }
  void members(nn::Members& m) override { m("layers", layers); }
  std::vector<Layer> layers;
};

void train(Device device, std::int64_t batch, bool recomputes, DType dtype = f32) {
  const Model model(recomputes, {.device = device, .dtype = dtype});
  nn::AdamW optimizer(model.parameters());
  const Tensor x = zeros({batch, 32, 32}, dtype, device);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    Tape tape;
    Tensor h = x;
    for (const Layer& layer : model.layers) h = layer(h);
    tape.backward(mean(h * h));
    optimizer.step({.max_norm = 1.0});
  }
}

MemoryPlan plan_of(std::int64_t batch, bool recomputes, const PlanOptions& options = {}) {
  return plan([&](Device device) { train(device, batch, recomputes); }, 1 << 20, options);
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "plan: the peak is that of the step itself, to the byte") {
  for (const bool recomputes : {false, true}) {
    for (const std::int64_t batch : {1, 5}) {
      const PeakMemory peak(device);
      train(device, batch, recomputes);
      const MemoryPlan planned =
          plan_of(batch, recomputes, {.device = Device(device.kind(), 0, true)});
      CHECK(planned.peak == peak.bytes_above());
    }
  }
}

TEST_CASE("plan: fits or does not, and says so") {
  const MemoryPlan planned = plan_of(8, false);
  CHECK_FALSE(planned.fits);
  CHECK(planned.capacity == 1 << 20);
  for (const char* part : {"does not fit", "too much", "largest holders", "largest knots",
                           "what would help", "less with a smaller batch"}) {
    CAPTURE(part);
    CHECK(planned.text().find(part) != std::string::npos);
  }
  const auto step = [](Device device) { train(device, 8, false); };
  CHECK(plan(step, planned.peak).fits);
  CHECK_FALSE(plan(step, planned.peak - 1).fits);
  std::ostringstream out;
  out << plan(step, planned.peak);
  CHECK(out.str().find("fits, 0 B to spare") != std::string::npos);
}

TEST_CASE("plan: the report has categories, scopes and the largest knots") {
  const MemoryPlan planned = plan_of(8, false);
  CHECK(planned.report.bytes == planned.peak);
  bool layer = false;
  for (const MemoryHolder& h : planned.report.holders) {
    layer = layer || (h.category == Category::saved && h.scope.starts_with("layers.1/"));
  }
  CHECK(layer);
  REQUIRE(planned.report.knots.size() == 20);
  for (std::size_t i = 1; i < 20; ++i) {
    CHECK(planned.report.knots[i].saved <= planned.report.knots[i - 1].saved);
  }
  CHECK(planned.report.timeline.empty());
  CHECK(plan_of(8, false, {.timeline = true}).report.timeline.size() > 10);
}

TEST_CASE("plan: recomputing takes less") {
  const PlanOptions on_cpu{.device = "meta:cpu"};
  const MemoryPlan all = plan_of(64, false, on_cpu), again = plan_of(64, true, on_cpu);
  CHECK(again.peak < all.peak * 3 / 4);
  CHECK(again.report.knots[0].saved < all.report.knots[0].saved);
}

TEST_CASE("plan: what the library of the device takes for a product counts on meta:cuda") {
  const auto step = [](Device device) {
    const Tensor a = zeros({64, 64}, f32, device);
    matmul(a, a);
  };
  const std::size_t tensors = 2 * 64 * 64 * 4;
  CHECK(plan(step, 0, {.device = "meta:cpu"}).peak == tensors);
  const auto taken = static_cast<std::size_t>(matmul_workspace(DeviceKind::cuda, 64, 64));
  CHECK(taken > 0);
  CHECK(plan(step, 0).peak == tensors + taken);
}

TEST_CASE("plan: leaves nothing behind, also when the step throws") {
  const Device device = "meta:cuda";
  const std::size_t before = memory_stats(device).current;
  plan_of(2, false);
  CHECK_THROWS_AS(plan(
                      [](Device d) {
                        matmul(zeros({2, 3}, f32, d), zeros({2, 3}, f32, d));
                      },
                      0),
                  Error);
  CHECK(memory_stats(device).current == before);
  expect_error([&] { plan([](Device) {}, 0, {.device = cpu}); }, "plan", "meta device");
}
