// What optimizers remember: saved, loaded, counted.
#include "optimizer_rules.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::testing;

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
