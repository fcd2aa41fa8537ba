// Modules: names, copies, devices and types, state, the tree.
#include "quipu/nn/module.h"
#include "quipu/core/memory/memory.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "quipu/autograd/knot.h"
#include "quipu/autograd/tape.h"
#include "quipu/nn/dropout.h"
#include "quipu/nn/init.h"
#include "quipu/nn/linear.h"
#include "quipu/nn/norm.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

struct Layer : nn::Module {
  nn::RMSNorm norm;
  nn::Linear up;
  nn::Dropout drop{0.5};
  explicit Layer(std::int64_t width = 4, const nn::Place& place = {})
      : norm(width, place), up(width, width, {.bias = false}, place) {}
  void members(nn::Members& m) override { m("norm", norm)("up", up)("drop", drop); }
  Tensor operator()(const Tensor& x) const {
    const MemoryScope named = scope();
    return x + drop(up(norm(x)));
  }
};

struct Model : nn::Module {
  nn::Linear in;
  Tensor token, position;
  std::vector<Layer> layers;
  std::vector<std::vector<Tensor>> grid;
  std::unique_ptr<nn::Linear> head;
  std::optional<nn::RMSNorm> norm;
  explicit Model(const nn::Place& place = {}, int depth = 2) : in(3, 4, {}, place) {
    token = nn::init::zeros(nn::make_parameter({1, 4}, place));
    position = nn::make_buffer(arange(0, 4, 1, compute_type(place.dtype), place.device));
    for (int i = 0; i < depth; ++i) layers.emplace_back(4, place);
    grid.resize(2);
    grid[1].push_back(nn::init::ones(nn::make_parameter({2}, place)));
  }
  void members(nn::Members& m) override {
    m("in", in)("token", token).buffer("position", position);
    m("layers", layers)("grid", grid)("head", head)("norm", norm);
  }
  Tensor operator()(const Tensor& x) const {
    Tensor h = in(x) + token;
    for (const Layer& layer : layers) h = layer(h);
    return h;
  }
};

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("module: parameters stand in the order of the members") {
  const Model model;
  CHECK(names_of(model.parameters()) ==
        Names{"in.weight", "in.bias", "token", "layers.0.norm.weight", "layers.0.up.weight",
              "layers.1.norm.weight", "layers.1.up.weight", "grid.1.0"});
  CHECK(names_of(model.buffers()) == Names{"position"});
  CHECK(names_of(model.state())[3] == "position");
  CHECK(model.state().size() == 9);
  CHECK(model.parameter_count() == 12 + 4 + 4 + 2 * (4 + 16) + 2);
  for (const auto& [name, p] : model.parameters()) CHECK(p.requires_grad());
  for (const auto& [name, b] : model.buffers()) CHECK(!b.requires_grad());
}

TEST_CASE("module: what is there only later is named then") {
  Model model;
  model.head = std::make_unique<nn::Linear>(4, 2);
  model.norm.emplace(4);
  model.layers.emplace_back();
  const Names names = names_of(model.parameters());
  CHECK(names[names.size() - 3] == "head.weight");
  CHECK(names.back() == "norm.weight");
  CHECK(std::count(names.begin(), names.end(), "layers.2.up.weight") == 1);
}

TEST_CASE("module: bad names are errors") {
  struct Twice : nn::Module {
    nn::Linear a{1, 1}, b{1, 1};
    const char *first, *second;
    Twice(const char* f, const char* s) : first(f), second(s) {}
    void members(nn::Members& m) override { m(first, a)(second, b); }
  };
  CHECK(Twice("a", "b").parameters().size() == 4);
  expect_error([] { Twice("a", "a").parameters(); }, "two are called 'a'");
  expect_error([] { Twice("a", "").parameters(); }, "is no name");
  expect_error([] { Twice("a", "b.c").parameters(); }, "'b.c' is no name");
}

TEST_CASE("module: copies share tensors, clones do not, moves keep them") {
  Model model(nn::Place{}, 1);
  Layer& layer = model.layers[0];
  const Layer copy = layer, own = nn::clone(layer);
  CHECK(copy.up.weight.same_as(layer.up.weight));
  CHECK(!own.up.weight.same_as(layer.up.weight));
  CHECK(same_bits(own.up.weight, layer.up.weight));
  CHECK(own.up.weight.requires_grad());
  layer.up.weight.detach().fill_(3);
  CHECK(copy.up.weight.to_vector()[0] == 3);
  CHECK(own.up.weight.to_vector()[0] != 3);

  const NamedTensors before = model.state();
  const Model moved = std::move(model);
  const NamedTensors after = moved.state();
  REQUIRE(names_of(after) == names_of(before));
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(after[i].second.same_as(before[i].second));
  Layer assigned(2);
  assigned = own;
  CHECK(assigned.up.weight.same_as(own.up.weight));
}

TEST_CASE("module: to() makes new tensors that learn as the old ones did") {
  Model model;
  model.in.bias.set_requires_grad(false);
  const Tensor old = model.in.weight;
  model.to(f32);
  CHECK(model.in.weight.same_as(old));
  model.to(f64);
  CHECK(!model.in.weight.same_as(old));
  for (const auto& [name, t] : model.state()) CHECK(t.dtype() == f64);
  CHECK(model.in.weight.requires_grad());
  CHECK(!model.in.bias.requires_grad());
  model.to(bf16);
  for (const auto& [name, t] : model.parameters()) CHECK(t.dtype() == bf16);
  CHECK(model.position.dtype() == f32);
  expect_error([&] { model.to(i64); }, "to", "i64");

  const Device meta("meta:cpu");
  model.to(meta);
  for (const auto& [name, t] : model.state()) CHECK(t.device() == meta);
  CHECK(memory_stats(meta).by_category[static_cast<int>(Category::parameter)] ==
        memory_stats(meta).current);
}

TEST_CASE("module: tensors under two names are one") {
  struct Tied : nn::Module {
    nn::Linear in{3, 3, {.bias = false}}, out{3, 3, {.bias = false}};
    Tied() { out.weight = in.weight; }
    void members(nn::Members& m) override { m("in", in)("out", out); }
  };
  Tied tied;
  CHECK(names_of(tied.state()) == Names{"in.weight"});
  CHECK(tied.parameter_count() == 9);
  tied.to(f64);
  CHECK(tied.out.weight.same_as(tied.in.weight));
  const Tied own = nn::clone(tied);
  CHECK(own.out.weight.same_as(own.in.weight));
  CHECK(tied.tree().find("is in.weight") != std::string::npos);
}

TEST_CASE("module: all of it counts as parameters in the ledger") {
  const Device meta("meta:cpu");
  Model model({.device = meta, .dtype = bf16});
  const auto all_parameters = [&] {
    const MemoryStats stats = memory_stats(meta);
    return stats.by_category[static_cast<int>(Category::parameter)] == stats.current;
  };
  CHECK(all_parameters());
  model.set_requires_grad(false);
  CHECK(all_parameters());
  CHECK(!model.in.weight.requires_grad());
  model.set_requires_grad(true);
  CHECK(all_parameters());
  CHECK(model.in.weight.requires_grad());
}

TEST_CASE("module: train and eval reach all parts") {
  Model model;
  CHECK(model.layers[1].drop.training());
  model.eval();
  CHECK(!model.training());
  CHECK(!model.layers[1].drop.training());
  const Tensor x = randn({5, 3});
  CHECK(same_bits(model(x), model(x)));
  model.train();
  CHECK(!same_bits(model(x), model(x)));
}

TEST_CASE("module: state goes around through a file") {
  const TempDirectory directory;
  const Model a;
  Model b;
  CHECK(!same_bits(a.in.weight, b.in.weight));
  save_safetensors(directory.file("model"), a.state());
  const SafetensorsFile file(directory.file("model"));
  NamedTensors read;
  for (const TensorEntry& e : file.entries()) read.emplace_back(e.name, file.get(e.name));
  const Tensor identity = b.in.weight;
  b.load_state(read);
  CHECK(b.in.weight.same_as(identity));
  CHECK(b.in.weight.requires_grad());
  const NamedTensors wanted = a.state(), got = b.state();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(same_bits(got[i].second.detach(), wanted[i].second.detach()));
  }
  b.to(bf16);
  b.load_state(read);  // cast
  CHECK(same_bits(b.in.weight.detach(), a.in.weight.detach().to(bf16)));
}

TEST_CASE("module: a strict load lists everything that differs and changes nothing") {
  Model model;
  NamedTensors state = nn::clone(nn::Linear(3, 4)).state();  // weight, bias
  state.emplace_back("in.weight", zeros({4, 3}));
  state.emplace_back("in.bias", zeros({5}));
  const Tensor before = model.in.weight.detach().clone();
  expect_error([&] { model.load_state(state); }, "do not fit in 10 places", "'token' is missing",
               "'layers.1.up.weight' is missing",
               "'weight' is f32 (4, 3), but nothing of that name", "in.bias", "(5,)");
  CHECK(same_bits(model.in.weight.detach(), before));
  expect_error([&] { model.load_state(state, nn::Loading::partial); }, "in 1 place", "in.bias");

  state[3].second = zeros({4});
  const nn::LoadReport report = model.load_state(state, nn::Loading::partial);
  CHECK(report.missing.size() == 7);
  CHECK(report.left_over == Names{"weight", "bias"});
  CHECK(!report.complete());
  CHECK(same_bits(model.in.weight.detach(), zeros({4, 3})));
}

TEST_CASE("module: loading while a tape records does not disturb it") {
  nn::Linear a(2, 2), b(2, 2);
  Tape tape;
  b.load_state(a.state());
  tape.backward(sum(b(ones({1, 2}))));
  CHECK(b.weight.grad().defined());
  CHECK(!a.weight.grad().defined());
}

TEST_CASE("module: the ledger names the parts of a model") {
  const Device meta("meta:cpu");
  const Model model({.device = meta});
  model.parameters();
  const Tensor x = empty({512, 3}, f32, meta);
  Tape tape;
  const Tensor o = model(x);
  bool found = false;
  for (const MemoryHolder& h : memory_report(meta).holders) found |= h.scope == "layers.1/norm";
  CHECK(found);
}

TEST_CASE("module: the tree shows shapes and bytes, equal layers once") {
  Model model;
  const std::string wanted =
      "Model                     62 parameters          264 B\n"
      "├─ in: Linear             16 parameters           64 B\n"
      "│  ├─ weight              (4, 3) f32              48 B\n"
      "│  └─ bias                (4,) f32                16 B\n"
      "├─ token                  (1, 4) f32              16 B\n"
      "├─ position               (4,) f32, buffer        16 B\n"
      "├─ layers                 40 parameters          160 B\n"
      "│  └─ 0 to 1: 2 of Layer  20 parameters each     160 B\n"
      "│     ├─ norm: RMSNorm    4 parameters            16 B\n"
      "│     │  └─ weight        (4,) f32                16 B\n"
      "│     ├─ up: Linear       16 parameters           64 B\n"
      "│     │  └─ weight        (4, 4) f32              64 B\n"
      "│     └─ drop: Dropout\n"
      "└─ grid                   2 parameters             8 B\n"
      "   ├─ 0\n"
      "   └─ 1                   2 parameters             8 B\n"
      "      └─ 0                (2,) f32                 8 B\n";
  std::ostringstream out;
  out << model;
  CHECK(out.str() == wanted);
  model.layers[1].up = nn::Linear(4, 4);
  CHECK(model.tree().find("1: Layer") != std::string::npos);
}

TEST_CASE_FIXTURE(EachDevice, "init: distributions have the mean and deviation that they say") {
  const Tensor x = empty({200, 100}, f64, device);
  const auto check_moments = [&](double mean_wanted, double deviation) {
    CHECK(std::abs(mean(x).item() - mean_wanted) < 5 * deviation / std::sqrt(20000.0));
    CHECK(std::sqrt(var(x).item()) == doctest::Approx(deviation).epsilon(0.02));
  };
  Generator g(5);
  nn::init::uniform(x, 2, 4, &g);
  check_moments(3, 2 / std::sqrt(12.0));
  CHECK(min(x).item() >= 2);
  CHECK(max(x).item() < 4);
  nn::init::normal(x, -1, 0.5, &g);
  check_moments(-1, 0.5);
  nn::init::xavier_uniform(x, 2, &g);
  check_moments(0, 2 * std::sqrt(2 / 300.0));
  nn::init::xavier_normal(x, 1, &g);
  check_moments(0, std::sqrt(2 / 300.0));
  nn::init::kaiming_uniform(x, std::sqrt(2.0), &g);
  check_moments(0, std::sqrt(0.02));
  nn::init::kaiming_normal(x, 1, &g);
  check_moments(0, 0.1);
  nn::init::constant(x, 7);
  CHECK(min(x).item() == 7);
}

TEST_CASE_FIXTURE(EachDevice, "init: a seed gives the same numbers, reduced types their rounding") {
  Generator a(3), b(3), c(3);
  const nn::Linear x(17, 9, {}, {.device = device, .generator = &a});
  const nn::Linear y(17, 9, {}, {.device = device, .generator = &b});
  const nn::Linear z(17, 9, {}, {.device = device, .dtype = bf16, .generator = &c});
  CHECK(same_bits(x.weight.detach(), y.weight.detach()));
  CHECK(same_bits(x.bias.detach().to(bf16), z.bias.detach()));
  CHECK(same_bits(x.weight.detach().to(bf16), z.weight.detach()));
}

TEST_CASE("init: says what does not fit") {
  expect_error([] { nn::init::kaiming_normal(zeros({3})); }, "kaiming_normal", "(out, in, ...)");
  expect_error([] { nn::init::uniform(zeros({3}), 2, 1); }, "uniform", "from 2 to 1");
  expect_error([] { nn::init::normal(zeros({3}), 0, -1); }, "normal", "deviation");
  expect_error([] { nn::init::normal(arange(3), 0, 1); }, "normal", "i64");
}
