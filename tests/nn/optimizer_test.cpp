// Whole optimizers: trajectories of 100 steps against plain f64 loops, and how they behave.
#include "optimizer_rules.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::nn;
using namespace quipu::testing;

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

TEST_CASE_FIXTURE(EachDevice,
                  "optimizer: whole steps run on meta and take the memory of the device") {
  const auto peak_on = [](const Rule& r, DType dtype, Device where) {
    const PeakMemory peak(where);
    const Net net(dtype, where);
    NamedTensors matrices = net.parameters();
    matrices.pop_back();
    const auto optimizer = r.make(matrices);
    LossScale scale(where);
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
      CHECK(peak_on(r, dtype, meta_of(device)) == peak_on(r, dtype, device));
    }
  }
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
