// Clipping, skipping and loss scaling.
#include "optimizer_rules.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::testing;

TEST_CASE_FIXTURE(EachDevice, "clipping: lazily or in place, long gradients become max_norm long") {
  for (const double max_norm : {0.25, 100.0}) {
    const Net lazy(f32, device), in_place(f32, device);
    SGD a(lazy.parameters(), {.lr = 1}), b(in_place.parameters(), {.lr = 1});
    lazy.backward(0);
    in_place.backward(0);
    double squares = 0;
    for (const auto& [name, p] : lazy.parameters()) {
      for (const double v : p.grad().to_vector()) squares += v * v;
    }
    const Tensor g = lazy.in.grad().clone();
    const Tensor before = lazy.in.detach().clone();
    const Tensor norm = a.step({.max_norm = max_norm});
    CHECK(norm.item() == doctest::Approx(std::sqrt(squares)));
    CHECK(same_bits(lazy.in.grad(), g));
    const double factor = std::min(1.0, max_norm / std::sqrt(squares));
    CHECK(allclose(lazy.in.detach(), before - g * factor, {1e-5, 1e-6}));

    CHECK(clip_grad_norm(in_place.parameters(), max_norm).item() == norm.item());
    CHECK(allclose(in_place.in.grad(), g * factor, {1e-5, 1e-6}));
    b.step();
    CHECK(allclose(lazy.in.detach(), in_place.in.detach(), {1e-5, 1e-6}));
  }
}

TEST_CASE_FIXTURE(EachDevice, "clipping: two optimizers are clipped together") {
  const Net net(f32, device);
  net.backward(0);
  const auto is_matrix = [](const std::string&, const Tensor& t) { return t.dim() == 2; };
  const NamedTensors matrices = selected(net.parameters(), is_matrix);
  const NamedTensors rest_of_it = selected(
      net.parameters(), [&](const std::string& n, const Tensor& t) { return !is_matrix(n, t); });
  CHECK(matrices.size() == 2);
  Muon muon(matrices);
  AdamW adamw(rest_of_it);
  const ControlledGradients all_of_it = control_gradients(net.parameters(), {.max_norm = 0.1});
  const Tensor in_before = net.in.detach().clone(), bias_before = net.bias.detach().clone();
  muon.apply(all_of_it.control);
  adamw.apply(all_of_it.control);
  CHECK_FALSE(same_bits(net.in.detach(), in_before));
  CHECK_FALSE(same_bits(net.bias.detach(), bias_before));
}

TEST_CASE_FIXTURE(EachDevice, "clipping: no gradients, nothing to do") {
  const Net net(f32, device);
  SGD optimizer(net.parameters());
  CHECK_FALSE(optimizer.step({.max_norm = 1}).defined());
  CHECK(clip_grad_norm(net.parameters(), 1).item() == 0);
  net.in.set_grad(zeros({5, 16}, f32, device));
  CHECK(optimizer.step({.max_norm = 1}).item() == 0);
  CHECK(sum(abs(net.in.detach() - Net(f32, device).in.detach())).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: gradients that are not finite are skipped if asked") {
  for (const Rule& r : rules()) {
    const Tensor p = parameter_of(matrix_shape, f32, device);
    const auto optimizer = r.make({{"p", p}});
    set_gradient(p, numbers(60, 3), f32);
    optimizer->step();
    const Tensor before = p.detach().clone();
    const NamedTensors state = copies(optimizer->state());
    Numbers bad = numbers(60, 4);
    bad[59] = infinity;
    set_gradient(p, bad, f32);
    optimizer->step({.max_norm = 1, .skip_nonfinite = true});
    CAPTURE(std::string(r.name));
    CHECK(same_bits(p.detach(), before));
    const NamedTensors after = optimizer->state();
    for (std::size_t i = 0; i < state.size(); ++i) {
      CHECK(same_bits(state[i].second, after[i].second));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "loss scale: gradients come out as without, overflow halves it") {
  const Net scaled(f32, device), plain(f32, device);
  LossScale scale(device, {.initial = 1024, .interval = 3});
  AdamW a(scaled.parameters(), {.lr = 0.01}), b(plain.parameters(), {.lr = 0.01});
  std::vector<double> scales;
  for (int step = 0; step < 8; ++step) {
    a.zero_grad();
    b.zero_grad();
    {
      Tape tape;
      tape.backward(scale(scaled.loss(step)));
    }
    plain.backward(step);
    if (step == 4) scaled.bias.grad().fill_(infinity);
    const Tensor before = scaled.in.detach().clone();
    const Tensor norm = a.step({.max_norm = 0.5, .loss_scale = &scale});
    if (step == 4) {
      CHECK(same_bits(scaled.in.detach(), before));
    } else {
      const Tensor unscaled = b.step({.max_norm = 0.5});
      CHECK(allclose(norm, unscaled, {1e-5, 1e-5}));
      CHECK(allclose(scaled.in.detach(), plain.in.detach(), {1e-4, 1e-4}));
    }
    scales.push_back(scale.scale().item());
  }
  CHECK(scales == std::vector<double>{1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048});
}

TEST_CASE_FIXTURE(EachDevice, "loss scale: f16 gradients that would vanish do not") {
  const Tensor p = parameter_of({4}, f16, device);
  const auto gradient = [&](const std::function<Tensor(const Tensor&)>& scaled) {
    p.zero_grad();
    Tape tape;
    tape.backward(scaled(sum(p.to(f32) * 1e-9)));
    return sum(abs(p.grad().to(f32))).item();
  };
  LossScale scale(device);
  CHECK(gradient([](const Tensor& loss) { return loss; }) == 0);
  CHECK(gradient([&](const Tensor& loss) { return scale(loss); }) > 0);
}

TEST_CASE_FIXTURE(EachDevice, "loss scale: its state goes on") {
  LossScale a(device, {.initial = 8, .interval = 2}), b(device, {.initial = 2, .interval = 2});
  const Tensor no = zeros({}, boolean, device);
  a.update(no);
  b.load_state(copies(a.state()));
  b.update(no);
  CHECK(b.scale().item() == 16);
  expect_error([&] { b.load_state({}); }, "LossScale", "scale");
  expect_error([&] { LossScale(device, {.initial = -1}); }, "initial is -1");
  expect_error([&] { LossScale(device, {.interval = 0}); }, "interval is 0");
  expect_error([&] { LossScale(device, {.backoff = 2}); }, "backoff is 2");
  expect_error([&] { LossScale(device, {.growth = 0.5}); }, "growth is 0.5");
}
