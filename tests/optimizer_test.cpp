// Whole optimizers: trajectories of 100 steps against plain f64 loops, and everything around them.
#include <quipu/quipu.h>

#include <functional>
#include <limits>
#include <memory>

#include "fused_checks.h"
#include "optimizer_reference.h"
#include "support.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const Shape matrix_shape{6, 10};

/// An optimizer with some options, and its reference.
struct Rule {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(const NamedTensors&)> make;
  std::function<void(Reference&, const Numbers&)> reference;
};

template <class Kind, class Options>
Rule rule(const char* name, const Options& o) {
  return {name, [=](const NamedTensors& p) { return std::make_unique<Kind>(p, o); },
          [=](Reference& r, const Numbers& g) {
            if constexpr (std::is_same_v<Options, MuonOptions>) {
              r.step(o, g, 6);
            } else {
              r.step(o, g);
            }
          }};
}

std::vector<Rule> rules() {
  return {
      rule<SGD>("sgd", SgdOptions{.lr = 0.05}),
      rule<SGD>("sgd decay", SgdOptions{.lr = 0.05, .weight_decay = 0.1}),
      rule<SGD>("sgd momentum", SgdOptions{.lr = 0.05, .momentum = 0.9}),
      rule<SGD>("sgd momentum decay", SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1}),
      rule<SGD>("sgd nesterov", SgdOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true}),
      rule<SGD>("sgd nesterov decoupled", SgdOptions{.lr = 0.05,
                                                     .momentum = 0.9,
                                                     .weight_decay = 0.1,
                                                     .nesterov = true,
                                                     .decoupled = true}),
      rule<AdamW>("adamw", AdamWOptions{.lr = 0.01}),
      rule<AdamW>("adamw without decay", AdamWOptions{.lr = 0.01, .weight_decay = 0}),
      rule<AdamW>(
          "adamw other",
          AdamWOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.3}),
      rule<Lion>("lion", LionOptions{.lr = 0.01}),
      rule<Lion>("lion decay",
                 LionOptions{.lr = 0.01, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.3}),
      rule<Muon>("muon", MuonOptions{.lr = 0.02}),
      rule<Muon>("muon plain decay",
                 MuonOptions{.lr = 0.02, .momentum = 0.8, .weight_decay = 0.1, .nesterov = false}),
  };
}

Tensor parameter_of(const Shape& shape, DType dtype, Device device, std::uint64_t seed = 1) {
  const Tensor p =
      from(numbers(static_cast<std::size_t>(numel(shape)), seed), shape, dtype, device);
  return p.set_requires_grad();
}

/// The slope of a valley at p, and made-up noise.
Numbers slope(const Numbers& p, int step) {
  Numbers g(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    g[i] = 0.5 * p[i] + noise(1000 + static_cast<std::uint64_t>(step), i);
  }
  return g;
}

void set_gradient(const Tensor& p, const Numbers& g, DType dtype) {
  p.set_grad_dtype(dtype);
  p.set_grad(from(g, p.shape(), dtype, p.device()));
}

NamedTensors copies(const NamedTensors& state) {
  NamedTensors result;
  for (const auto& [name, t] : state) result.emplace_back(name, t.clone());
  return result;
}

/// A small network and its loss, for steps that are real ones.
struct Net {
  Net(DType dtype, Device device)
      : in(parameter_of({5, 16}, dtype, device, 1)),
        out(parameter_of({16, 3}, dtype, device, 2)),
        bias(parameter_of({3}, dtype, device, 3)) {}
  NamedTensors parameters() const { return {{"in", in}, {"out", out}, {"bias", bias}}; }
  Tensor loss(int step) const {
    const auto data = [&](const Shape& shape, int seed) {
      return from(numbers(static_cast<std::size_t>(numel(shape)),
                          77 + static_cast<std::uint64_t>(seed)),
                  shape, in.dtype(), cpu)
          .to(in.device());
    };
    const Tensor error =
        matmul(tanh(matmul(data({8, 5}, step), in)), out) + bias - data({8, 3}, step + 1);
    return mean(error.to(f32) * error.to(f32));
  }
  void backward(int step) const {
    Tape tape;
    tape.backward(loss(step));
  }
  Tensor in, out, bias;
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "optimizer: 100 steps follow plain f64 loops") {
  for (const Rule& r : rules()) {
    for (const DType dtype : {f64, f32}) {
      const Tensor p = parameter_of(matrix_shape, dtype, device);
      Reference wanted(p.to_vector());
      const auto optimizer = r.make({{"p", p}});
      for (int step = 0; step < 100; ++step) {
        set_gradient(p, slope(p.to_vector(), step), dtype);
        optimizer->step();
        r.reference(wanted, slope(wanted.p, step));
      }
      CAPTURE(std::string(r.name));
      // Each step rounds a few times; the valley damps what was rounded before. Muon divides by
      // singular values that may be small.
      const double allowed = (r.name[0] == 'm' ? 3000 : 100) * epsilon_of(dtype);
      const Tensor exact = from(wanted.p, matrix_shape, f64, device);
      const Difference d = compare(p.detach().to(f64), exact, {allowed, allowed});
      CHECK_MESSAGE(d.ok, d.text);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: 100 steps of bf16 and f16 with an f32 master copy") {
  for (const Rule& r : rules()) {
    for (const DType dtype : {bf16, f16}) {
      const Tensor p = parameter_of(matrix_shape, dtype, device);
      Reference wanted(p.to_vector());
      const auto optimizer = r.make({{"p", p}});
      Tensor master;
      for (const auto& [name, t] : optimizer->state()) {
        if (name == "p.master") master = t;
      }
      REQUIRE(master.defined());
      for (int step = 0; step < 100; ++step) {
        // The gradient does not depend on the parameter: rounding does not come back through it.
        const Numbers g = numbers(60, 500 + static_cast<std::uint64_t>(step));
        set_gradient(p, g, f32);
        optimizer->step();
        r.reference(wanted, g);
      }
      CAPTURE(std::string(r.name));
      CHECK(same_bits(p.detach(), master.to(dtype)));
      const double allowed = (r.name[0] == 'm' ? 30000 : 100) * epsilon_of(f32);
      const Difference d =
          compare(master.to(f64), from(wanted.p, matrix_shape, f64, device), {allowed, allowed});
      CHECK_MESSAGE(d.ok, d.text);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: bf16 without a master copy rounds at every step") {
  const Tensor p = parameter_of({200}, bf16, device);
  Reference wanted(p.to_vector());
  const SgdOptions options{.lr = 0.05, .momentum = 0.9};
  SGD optimizer({{"p", p}}, options, false);
  for (int step = 0; step < 100; ++step) {
    set_gradient(p, slope(p.to_vector(), step), f32);
    optimizer.step();
    wanted.step(options, slope(wanted.p, step));
    for (double& v : wanted.p) v = to_float(to_bf16(v));
  }
  // A rounding that falls the other way is a whole unit, which the valley then damps.
  const Difference d = compare(p.detach().to(f64), from(wanted.p, {200}, f64, device),
                               {2 * epsilon_of(bf16), 2 * epsilon_of(bf16)});
  CHECK_MESSAGE(d.ok, d.text);
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: the comparison catches a decay that is left out") {
  const Tensor p = parameter_of(matrix_shape, f32, device);
  Reference wanted(p.to_vector());
  AdamW optimizer({{"p", p}}, {.lr = 0.01, .weight_decay = 0});
  for (int step = 0; step < 100; ++step) {
    set_gradient(p, slope(p.to_vector(), step), f32);
    optimizer.step();
    wanted.step(AdamWOptions{.lr = 0.01, .weight_decay = 1e-3}, slope(wanted.p, step));
  }
  const double allowed = 100 * epsilon_of(f32);
  CHECK_FALSE(
      compare(p.detach().to(f64), from(wanted.p, matrix_shape, f64, device), {allowed, allowed}));
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: the same bits on 1, 2 and 3 threads") {
  const auto run = [&](const Rule& r, int threads) {
    set_num_threads(threads);
    const Tensor large = parameter_of({300, 250}, f32, device, 4);
    const auto optimizer = r.make({{"large", large}});
    for (int step = 0; step < 3; ++step) {
      set_gradient(large, numbers(75000, 9 + static_cast<std::uint64_t>(step)), f32);
      optimizer->step({.max_norm = 1.0});
    }
    return large.detach();
  };
  const int before = set_num_threads(1);
  for (const Rule& r : rules()) {
    const Tensor alone = run(r, 1);
    CHECK(same_bits(alone, run(r, 2)));
    CHECK(same_bits(alone, run(r, 3)));
  }
  set_num_threads(before);
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: saved and loaded, the run goes on with the same bits") {
  for (const Rule& r : rules()) {
    for (const DType dtype : {f32, bf16}) {
      const Tensor p = parameter_of(matrix_shape, dtype, device);
      const auto first = r.make({{"p", p}});
      const auto run = [&](Optimizer& optimizer, const Tensor& at, int from_step) {
        for (int step = from_step; step < from_step + 10; ++step) {
          set_gradient(at, numbers(60, static_cast<std::uint64_t>(step)), f32);
          optimizer.set_lr(0.01 / (1 + step));
          optimizer.step();
        }
      };
      run(*first, p, 0);
      const NamedTensors state = copies(first->state());
      const Tensor values = p.detach().clone();
      run(*first, p, 10);

      // Loaded in either order; the file may lie on another device.
      for (const bool weights_first : {true, false}) {
        const Tensor q = parameter_of(matrix_shape, dtype, device, 99);
        const auto second = r.make({{"p", q}});
        if (weights_first) q.detach().copy_from(values);
        second->load_state(state);
        if (!weights_first) q.detach().copy_from(values);
        CHECK(second->lr() == 0.01 / 10);
        run(*second, q, 10);
        CAPTURE(std::string(r.name));
        CHECK(same_bits(p.detach(), q.detach()));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: weights loaded later reach the master copy") {
  const Tensor p = parameter_of({50}, bf16, device);
  SGD optimizer({{"p", p}}, {.lr = 0.5});
  p.detach().fill_(3);
  set_gradient(p, Numbers(50, 1.0), f32);
  optimizer.step();
  for (const double v : p.to_vector()) CHECK(v == 2.5);
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: names of the state") {
  const auto names = [](const Optimizer& o) {
    std::string text;
    for (const auto& [name, t] : o.state()) text += name + " ";
    return text;
  };
  const Tensor p = parameter_of({2, 2}, f32, device), q = parameter_of({2, 2}, bf16, device);
  const NamedTensors both{{"a.w", p}, {"b", q}};
  CHECK(names(SGD(both)) == "lr b.master ");
  CHECK(names(SGD(both, {.momentum = 0.9})) == "lr a.w.momentum b.momentum b.master ");
  CHECK(names(AdamW(both)) ==
        "lr a.w.exp_avg a.w.exp_avg_sq a.w.step b.exp_avg b.exp_avg_sq b.master b.step ");
  CHECK(names(Lion(both, {}, false)) == "lr a.w.exp_avg b.exp_avg ");
  CHECK(names(Muon(both)) == "lr a.w.momentum b.momentum b.master ");
}

TEST_CASE_FIXTURE(EachDevice,
                  "optimizer: a state that does not fit is listed and changes nothing") {
  const Tensor p = parameter_of({2, 3}, f32, device);
  AdamW optimizer({{"p", p}}, {.lr = 0.5});
  NamedTensors state = copies(optimizer.state());
  state[1].second = ones({3, 2});
  state[2].first = "q.exp_avg_sq";
  state[0].second.fill_(7);
  expect_error([&] { optimizer.load_state(state); }, "AdamW", "missing: p.exp_avg_sq",
               "left over: q.exp_avg_sq", "p.exp_avg has shape (3, 2) there, but (2, 3) here");
  CHECK(optimizer.lr() == 0.5);
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: groups have options of their own") {
  const Tensor p = parameter_of({20}, f64, device, 1), q = parameter_of({20}, f64, device, 2);
  Reference p_wanted(p.to_vector()), q_wanted(q.to_vector());
  const AdamWOptions slow{.lr = 0.001, .weight_decay = 0}, fast{.lr = 0.004, .weight_decay = 0.2};
  AdamW optimizer(ParameterGroups<AdamWOptions>{{{{"p", p}}, slow}, {{{"q", q}}, fast}});
  for (int step = 0; step < 20; ++step) {
    const double factor = step < 10 ? 1 : 0.5;
    optimizer.set_lr(0.001 * factor);
    for (const auto& [t, wanted, o] :
         {std::tuple(p, &p_wanted, slow), std::tuple(q, &q_wanted, fast)}) {
      set_gradient(t, slope(t.to_vector(), step), f64);
      AdamWOptions now = o;
      now.lr *= factor;
      wanted->step(now, slope(wanted->p, step));
    }
    optimizer.step();
  }
  CHECK(allclose(p.detach(), from(p_wanted.p, {20}, f64, device), {1e-13, 1e-13}));
  CHECK(allclose(q.detach(), from(q_wanted.p, {20}, f64, device), {1e-13, 1e-13}));
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: parameters without gradient stay, and count no step") {
  const Tensor p = parameter_of({3}, f32, device), q = parameter_of({3}, f32, device, 5);
  const Tensor q_before = q.detach().clone();
  AdamW optimizer({{"p", p}, {"q", q}}, {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    set_gradient(p, {1, -1, 1}, f32);
    optimizer.step({.max_norm = 10});
  }
  CHECK(same_bits(q.detach(), q_before));
  // Its first step is a first step, with the correction of one.
  optimizer.zero_grad();
  set_gradient(q, {1, -1, 1}, f32);
  optimizer.step();
  Reference wanted(q_before.to_vector());
  wanted.step(AdamWOptions{.lr = 0.1}, {1, -1, 1});
  CHECK(allclose(q.detach().to(f64), from(wanted.p, {3}, f64, device), {1e-6, 1e-6}));
  const auto state = optimizer.state();
  CHECK(state[3].second.item_int() == 3);
  CHECK(state[6].second.item_int() == 1);
}

TEST_CASE_FIXTURE(EachDevice,
                  "optimizer: a frozen parameter costs nothing until it has a gradient") {
  const Tensor p = parameter_of({3}, f32, device), frozen = ones({3}, f32, device);
  AdamW optimizer({{"p", p}, {"frozen", frozen}}, {.lr = 0.1});
  CHECK(optimizer.state().size() == 4);
  frozen.set_requires_grad();
  set_gradient(frozen, {1, 1, 1}, f32);
  optimizer.step();
  CHECK(optimizer.state().size() == 7);
  const NamedTensors state = copies(optimizer.state());
  AdamW other({{"p", p}, {"frozen", ones({3}, f32, device)}});
  other.load_state(state);
  CHECK(other.state().size() == 7);
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: shared weights are updated once") {
  const Tensor p = parameter_of({3}, f32, device);
  const Tensor before = p.detach().clone();
  SGD optimizer({{"embedding", p}, {"head", p}}, {.lr = 1});
  CHECK(optimizer.parameters().size() == 1);
  set_gradient(p, {1, 2, 3}, f32);
  optimizer.step();
  CHECK(allclose(p.detach(), before - from({1.0f, 2.0f, 3.0f}).to(device)));
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: gradients add up over several walks") {
  const Net once(f64, device), twice(f64, device);
  SGD a(once.parameters(), {.lr = 0.1}), b(twice.parameters(), {.lr = 0.1});
  {
    Tape tape;
    tape.backward((once.loss(0) + once.loss(1)) / 2);
  }
  for (const int part : {0, 1}) {
    Tape tape;
    tape.backward(twice.loss(part) / 2);
  }
  a.step();
  b.step();
  CHECK(allclose(once.in.detach(), twice.in.detach(), {1e-6, 1e-6}));
  CHECK_FALSE(allclose(once.in.detach(), Net(f64, device).in.detach(), {1e-6, 1e-6}));
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: zero_grad drops or keeps the memory") {
  const Tensor p = parameter_of({3}, f32, device);
  SGD optimizer({{"p", p}});
  set_gradient(p, {1, 2, 3}, f32);
  const Tensor gradient = p.grad();
  optimizer.zero_grad(ZeroGrad::keep);
  CHECK(&p.grad().storage() == &gradient.storage());
  CHECK(sum(abs(p.grad())).item() == 0);
  optimizer.zero_grad();
  CHECK_FALSE(p.grad().defined());
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: a partial gradient is refused by name") {
  const Net net(f32, device);
  AdamW optimizer(net.parameters());
  net.out.add_hook([](const Tensor&) -> Tensor { fail("stop here"); });
  const Tensor before = net.bias.detach().clone();
  expect_error([&] { net.backward(0); }, "stop here");
  expect_error([&] { optimizer.step(); }, "AdamW: the gradient of", "is partial", "zero_grad()");
  expect_error([&] { optimizer.step({.max_norm = 1}); }, "AdamW: the gradient of");
  expect_error([&] { clip_grad_norm(net.parameters(), 1); }, "clip_grad_norm: the gradient of");
  CHECK(same_bits(net.bias.detach(), before));
  for (const ZeroGrad how : {ZeroGrad::keep, ZeroGrad::drop}) {
    optimizer.zero_grad(how);
    optimizer.step();
  }
}

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

TEST_CASE("optimizer: whole steps run on meta and take the memory of the CPU") {
  const auto peak_on = [](const Rule& r, DType dtype, Device device) {
    const PeakMemory peak(device);
    const Net net(dtype, device);
    NamedTensors matrices = net.parameters();
    matrices.pop_back();
    const auto optimizer = r.make(matrices);
    LossScale scale(device);
    for (int step = 0; step < 2; ++step) {
      optimizer->zero_grad();
      Tape tape;
      tape.backward(scale(net.loss(step)));
      optimizer->step({.max_norm = 1, .loss_scale = &scale});
    }
    return peak.bytes_above();
  };
  for (const Rule& r : rules()) {
    for (const DType dtype : {f32, bf16}) {
      CAPTURE(std::string(r.name));
      CHECK(peak_on(r, dtype, meta_cpu) == peak_on(r, dtype, cpu));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer: its memory stands in the ledger as such") {
  const Tensor p = parameter_of({1000}, bf16, device);
  const auto bytes = [&] {
    return memory_stats(device).by_category[static_cast<std::size_t>(Category::optimizer)];
  };
  const std::size_t before = bytes();
  {
    AdamW optimizer({{"p", p}});
    CHECK(bytes() - before == 3 * 4096 + 512);
  }
  CHECK(bytes() == before);
}

TEST_CASE("optimizer: says what does not fit") {
  const Tensor p = parameter_of({2, 3}, f32, cpu), q = parameter_of({2}, f32, cpu);
  expect_error([&] { SGD optimizer(NamedTensors{}); }, "SGD: there are no parameters");
  expect_error([&] { SGD optimizer({{"p", Tensor()}}); }, "SGD: parameter p is undefined");
  expect_error([&] { SGD optimizer({{"p", arange(3)}}); }, "SGD: parameter p is i64");
  expect_error([&] { Lion optimizer({{"p", p}, {"p", q}}); }, "Lion: two parameters are called p");
  expect_error(
      [&] {
        Lion optimizer({{"p", p}, {"m", zeros({2}, f32, meta_cpu)}});
      },
      "Lion: parameter m is on meta");
  expect_error(
      [&] {
        AdamW optimizer(ParameterGroups<AdamWOptions>{{{{"p", p}}, {}}, {{{"again", p}}, {}}});
      },
      "AdamW: again is the same tensor as p in another group");
  expect_error([&] { AdamW optimizer({{"p", p}}, {.lr = -1}); }, "AdamW: lr of group 0 is -1");
  expect_error([&] { Muon optimizer({{"q", q}}); }, "Muon: parameter q has shape (2,)");
  expect_error([&] { Muon optimizer({{"p", p}}, {.iterations = 0}); }, "iterations is 0");
  SGD optimizer({{"p", p}});
  expect_error([&] { optimizer.set_lr(infinity); }, "SGD: lr is inf");
  expect_error([&] { optimizer.step({.max_norm = -1}); }, "SGD: max_norm is -1");
  expect_error([&] { clip_grad_norm({{"p", p}}, 0); }, "max_norm is 0");
}
