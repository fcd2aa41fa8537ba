// Arguments at the end of their range: sizes, counts and enumerators that no sensible program uses.
// Each call gives a result or an Error, at once.
#include <cmath>
#include <cstdint>
#include <limits>

#include "quipu/nn/data/permutation.h"
#include "quipu/nn/named_state.h"
#include "quipu/quipu.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

constexpr std::int64_t huge = std::int64_t{1} << 40;
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();

using In = const std::vector<Tensor>&;
using Function = std::function<Tensor(In)>;

std::vector<Tensor> zeros_of(const std::vector<Shape>& shapes) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes) tensors.push_back(zeros(shape));
  return tensors;
}

/// Forward, and backward where there is memory for what it keeps; neither may go through all rows.
void try_without_elements(const Function& f, const std::vector<Shape>& shapes) {
  CAPTURE(to_string(shapes[0]));
  CHECK(f(zeros_of(shapes)).numel() == 0);
  const std::vector<Tensor> in = zeros_of(shapes);
  for (const Tensor& x : in) x.set_requires_grad();
  Tape tape;
  try {
    tape.backward(sum(f(in)));
    CHECK(in[0].grad().shape() == shapes[0]);
  } catch (const OutOfMemory&) {
    CHECK(tape.size() < 2);
  }
}

/// No more memory than this, so that what asks for terabytes is refused by us.
class Limit {
 public:
  Limit() : outer_(set_memory_limit(cpu, std::size_t{1} << 30)) {}
  ~Limit() { set_memory_limit(cpu, outer_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  std::size_t outer_;
};

/// An operator refuses a value that was cast into an enumeration, and names the argument.
template <class F>
void refuses(const F& f, const char* argument) {
  const auto message = testing::thrown_message<Error>(f);
  CAPTURE(std::string(argument));
  REQUIRE(message.has_value());
  CHECK(message->find(argument) != std::string::npos);
  CHECK(message->find("77") != std::string::npos);
}

}  // namespace

TEST_CASE("extreme arguments: tensors without elements take no time, whatever their sizes") {
  const Limit limit;
  try_without_elements([](In in) { return group_norm(in[0], huge); }, {{1, 0}});
  try_without_elements([](In in) { return group_norm(in[0], huge); }, {{0, huge}});
  try_without_elements([](In in) { return group_norm(in[0], huge); }, {{1, huge, 0}});
  try_without_elements([](In in) { return group_norm_composed(in[0], huge); }, {{1, 0}});
  const Shape rows{huge, 0}, columns{0, huge}, batches{huge, 1, 0, 4}, tokens{1, 1, huge, 0};
  for (const Shape& x : {rows, columns}) {
    try_without_elements([](In in) { return layer_norm(in[0]); }, {x});
    try_without_elements([](In in) { return rms_norm(in[0]); }, {x});
    try_without_elements([](In in) { return group_norm(in[0], 1); }, {x});
    try_without_elements([](In in) { return act(in[0], Act::softmax, 0); }, {x});
    try_without_elements([](In in) { return act(in[0], Act::softmax, 1); }, {x});
    try_without_elements([](In in) { return cumsum(in[0], 1); }, {x});
    try_without_elements([](In in) { return tanh(in[0] + in[0]); }, {x});
    try_without_elements([](In in) { return in[0].t().clone(); }, {x});
  }
  try_without_elements([](In in) { return matmul(in[0], in[1]); }, {rows, {0, 0}});
  try_without_elements([](In in) { return linear(in[0], in[1]); }, {rows, {0, 0}});
  for (const Shape& x : {batches, tokens}) {
    try_without_elements([](In in) { return attention(in[0], in[1], in[2]); }, {x, x, x});
  }
  try_without_elements([](In in) { return flao(in[0], in[1], in[2], in[3]); },
                       {tokens, tokens, tokens, tokens});
  try_without_elements([](In in) { return attention(in[0], in[1], in[1]); },
                       {tokens, {1, 1, 0, 0}});
  const auto tpa = [](In in) { return tpa_decode(in[0], in[1], in[1], in[2], in[3], in[3]); };
  try_without_elements(tpa, {{huge, 1, 0, 2}, {huge, 0, 0}, {huge, 1, 2, 0}, {huge, 0, 0}});
  try_without_elements(tpa, {{1, 1, 0, 2}, {1, huge, 0}, {1, 1, 2, 0}, {1, huge, 0}});
  const auto rotate = [](In in) { return lrpe_rotate(in[0], zeros({1, 0})); };
  try_without_elements(rotate, {{1, huge, 0}});
  const auto grid = [](In in) { return lrpe_cosine_md(in[0], zeros({1, 1}), {huge}); };
  try_without_elements(grid, {{0, 1, huge, 1}});
}

TEST_CASE("extreme arguments: backward without a tape, of gradients without elements") {
  const Tensor x = zeros({huge, 0});
  const Grad into = Grad::write_to(zeros({huge, 0}));
  layer_norm_backward(x, {}, x, into, {}, {});
  rms_norm_backward(x, {}, x, into, {});
  group_norm_backward(zeros({1, 0}), huge, {}, zeros({1, 0}), Grad::write_to(zeros({1, 0})), {},
                      {});
  const Tensor q = zeros({1, 1, huge, 0});
  flao_backward(q, q, q, q, q, Grad::write_to(zeros(q.shape())), {}, {}, {});
}

TEST_CASE("extreme arguments: anomaly mode looks at elements that are repeated once") {
  const AnomalyMode anomaly;
  CHECK(zeros({1}).expand({huge}).numel() == huge);
  CHECK(zeros({3, 1, 2}).expand({3, huge, 2}).numel() == 6 * huge);
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = from({1.0, 2.0, 3.0, inf}, {2, 1, 2});
  // The tensor itself was not made by an operator that is looked at.
  expect_error([&] { x.expand({5, 2, 7, 2}); }, "expand", "first at element 15 ");
  expect_error([&] { x.expand({2, huge, 2}); }, "expand", "first at element 2199023255553 ");
  expect_error([&] { x.squeeze(1).transpose(0, 1); }, "first at element 3 ");
  nn::check_finite(zeros({1}), 0, {}, {{"p", zeros({1}).expand({huge})}});
  const Tensor bad = full({1}, std::nan(""));
  expect_error(
      [&] {
        nn::check_finite(bad, 0, {}, {{"p", zeros({1}).expand({huge})}});
      },
      "the loss is nan");
}

TEST_CASE("extreme arguments: sizes and steps that would overflow") {
  const Tensor x = zeros({5});
  CHECK(split(x, most).size() == 1);
  CHECK(split(x, most - 1)[0].numel() == 5);
  expect_error([&] { split(x, std::vector<std::int64_t>{most, most, 7}); }, "split", "add up");
  expect_error([&] { split(x, std::vector<std::int64_t>{most, 6}); }, "split", "add up");
  CHECK(x.slice(0, 1, 5, most).numel() == 1);
  CHECK(x.slice(0, least).numel() == 5);
  CHECK(x.slice(0, 0, most).numel() == 5);
  CHECK(x.slice(0, most, least, -1).numel() == 5);
  CHECK(x.slice(0, most, {}, least).numel() == 1);
  expect_error([&] { x.select(0, least); }, "select", "out of range");
  expect_error([&] { x.reshape({-1, most}); }, "reshape", "addressed");
  expect_error([&] { x.reshape({most, most}); }, "reshape", "addressed");
  expect_error([&] { zeros({1}).expand({most}); }, "expand", "addressed");
  expect_error([&] { arange(most); }, "arange", "2^53");
  expect_error([&] { linspace(0, 1, most); }, "linspace", "addressed");
  expect_error([&] { eye(most); }, "eye", "addressed");
  expect_error([&] { randperm(most, "meta:cpu"); }, "randperm", "addressed");
  CHECK(randint(least, most, {8}).numel() == 8);
  expect_error([&] { top_k(x, most); }, "top_k", "k is");
  expect_error([&] { group_norm(zeros({2, 4}), most); }, "group_norm", "groups");
  const std::vector<Tensor> many(40, zeros({std::int64_t{1} << 59, 0}));
  expect_error([&] { cat(many, 0); }, "cat", "add up to");
  const nn::Place meta{.device = "meta:cpu"};
  expect_error([&] { nn::MLP(most, {}, meta); }, "MLP", "features");
  expect_error([&] { nn::MLP(4, {.hidden = most}, meta); }, "MLP", "hidden");
  expect_error([&] { nn::GatedLinearAttention(most, {.grid = {2}}, meta); }, "Gated", "features");
  expect_error([&] { nn::TensorProductAttention(4, {.head_dim = most - 1}, meta); }, "head_dim");
  expect_error([&] { nn::TensorProductAttention(4, {.heads = 2, .rank = most}, meta); }, "rank");
  for (const std::int64_t step : {most, least, std::int64_t{-1}, std::int64_t{0}}) {
    CHECK(std::isfinite(nn::cosine(1, 0, most)(step)));
    CHECK(std::isfinite(nn::warm_up(5, nn::linear(1, 0, most))(step)));
    CHECK(std::isfinite(nn::warm_up(most, nn::constant(1))(step)));
    CHECK(std::isfinite(nn::constant_then_decay(1, 0, most, most)(step)));
    CHECK(std::isfinite(nn::staircase(1, 0.5, most)(step)));
  }
}

TEST_CASE("extreme arguments: angles of the compositions are checked as those of the operators") {
  const Tensor x = zeros({1, 3, 4}), grid = zeros({1, 1, 3, 4});
  expect_error([&] { lrpe_rotate_composed(x, zeros({1, 3})); }, "theta", "(1, 3)", "2 angles");
  expect_error([&] { lrpe_cosine_composed(x, zeros({1, 7})); }, "theta", "(1, 7)", "4 angles");
  CHECK_NOTHROW(lrpe_cosine_md_composed(grid, zeros({1, 7}), {3}));  // columns to spare
  expect_error([&] { lrpe_cosine_md_composed(grid, zeros({1, 1}), {3}); }, "theta", "columns");
  expect_error([&] { lrpe_cosine_md_composed(grid, zeros({1, 4}), {3}, {.l = most}); }, "l =");
  expect_error([&] { lrpe_rotate_composed(x, zeros({1, 2}), {.offset = most}); }, "offset");
  expect_error([&] { lrpe_cosine_composed(zeros({3, 4}), zeros({1, 4})); }, "(3, 4)");
}

TEST_CASE("extreme arguments: an activation that is none") {
  const auto act77 = static_cast<Act>(77);
  const Tensor x = zeros({2, 3, 4}), q = zeros({1, 1, 3, 4}), theta = zeros({1, 2});
  const Grad into = Grad::write_to(zeros({2, 3, 4}));
  CHECK(to_string(act77) == "no activation");
  for (const std::optional<int> dim : {std::optional<int>(), std::optional(-1)}) {
    refuses([&] { act(x, act77, dim); }, "kind");
    refuses([&] { act_composed(x, act77, dim); }, "kind");
    refuses([&] { act_backward(x, x, into, act77, dim); }, "kind");
    refuses([&] { lrpe_rotate(x, theta, {.act = act77, .dim = dim}); }, "act");
    refuses([&] { lrpe_cosine(x, theta, {.act = act77, .dim = dim}); }, "act");
    refuses([&] { lrpe_rotate_composed(x, theta, {.act = act77, .dim = dim}); }, "act");
    refuses([&] { lrpe_cosine_composed(x, theta, {.act = act77, .dim = dim}); }, "act");
    refuses([&] { lrpe_cosine_md(q, zeros({1, 4}), {3}, {.act = act77, .dim = dim}); }, "act");
    refuses(
        [&] {
          lrpe_cosine_md_composed(q, zeros({1, 4}), {3}, {.act = act77, .dim = dim});
        },
        "act");
    refuses([&] { lrpe_rotate_backward(x, theta, x, into, {.act = act77, .dim = dim}); }, "act");
  }
  Act FlaoOptions::*const acts[] = {&FlaoOptions::q_act, &FlaoOptions::k_act, &FlaoOptions::v_act,
                                    &FlaoOptions::g_act};
  for (const auto which : acts) {
    FlaoOptions options;
    options.*which = act77;
    refuses([&] { flao(q, q, q, q, options); }, "_act");
    refuses([&] { flao_composed(q, q, q, q, options); }, "kind");
    refuses(
        [&] {
          flao_backward(q, q, q, q, q, Grad::write_to(zeros(q.shape())), {}, {}, {}, options);
        },
        "_act");
  }
}

TEST_CASE("extreme arguments: other options that are none of their type") {
  const Tensor x = zeros({2, 3}), q = zeros({1, 1, 3, 4}), targets = zeros({2}, i64);
  const auto reduction = static_cast<LossReduction>(77);
  const Grad into = Grad::write_to(zeros({2, 3}));
  refuses([&] { flao(q, q, q, q, {.lrpe = static_cast<FlaoLrpe>(77)}); }, "lrpe");
  refuses([&] { flao_composed(q, q, q, q, {.lrpe = static_cast<FlaoLrpe>(77)}); }, "lrpe");
  refuses([&] { flao(q, q, q, q, {.keep = static_cast<FlaoKeep>(77)}); }, "keep");
  refuses([&] { cross_entropy(x, targets, {.reduction = reduction}); }, "reduction");
  refuses([&] { cross_entropy_composed(x, targets, {.reduction = reduction}); }, "reduction");
  refuses([&] { cross_entropy_backward(x, targets, zeros({}), into, {.reduction = reduction}); },
          "reduction");
  const Tensor weight = zeros({4, 3});
  refuses([&] { linear_cross_entropy(x, weight, targets, {.reduction = reduction}); }, "reduction");
  refuses([&] { linear_cross_entropy_composed(x, weight, targets, {.reduction = reduction}); },
          "reduction");
  refuses(
      [&] {
        linear_cross_entropy_backward(x, weight, targets, zeros({}), into, {}, {},
                                      {.reduction = reduction});
      },
      "reduction");
  refuses([&] { mse_loss(x, x, reduction); }, "reduction");
  refuses([&] { mse_loss_backward(x, x, zeros({}), into, {}, reduction); }, "reduction");
  refuses([&] { nn::MLP(4, {.kind = static_cast<nn::MLPKind>(77)}); }, "kind");
  refuses([&] { nn::load_into({}, {}, static_cast<nn::Loading>(77)); }, "loading");
  const Tensor p = ones({3}).set_requires_grad();
  refuses([&] { nn::SGD({{"p", p}}, {.lr = 1}).zero_grad(static_cast<nn::ZeroGrad>(77)); }, "how");
  TempDirectory folder;
  std::FILE* const file = std::fopen(folder.file("text").c_str(), "w");
  std::fputs("sixteen letters.", file);
  std::fclose(file);
  const nn::TokenOptions tokens{.sequence = 1, .type = static_cast<nn::TokenType>(77)};
  refuses([&] { nn::TokenFiles({folder.file("text")}, tokens); }, "type");
}

TEST_CASE("extreme arguments: types, categories and devices that are none") {
  const auto dtype = static_cast<DType>(77);
  CHECK(to_string(dtype) == "no type");
  refuses([&] { empty({2}, dtype); }, "dtype");
  refuses([&] { empty({0}, dtype, "meta:cpu"); }, "dtype");
  refuses([&] { zeros({2}, dtype); }, "dtype");
  refuses([&] { full({2}, 1, dtype); }, "dtype");
  refuses([&] { scalar_tensor(1, dtype); }, "dtype");
  refuses([&] { arange(3, dtype); }, "dtype");
  refuses([&] { eye(3, dtype); }, "dtype");
  refuses([&] { randint(0, 3, {3}, dtype); }, "dtype");
  refuses([&] { from({1.0, 2.0}, dtype); }, "dtype");
  refuses([&] { zeros({2}).to(dtype); }, "dtype");
  refuses([&] { read_values(zeros({2}), dtype, nullptr); }, "dtype");
  expect_error([&] { linspace(0, 1, 3, dtype); }, "linspace", "no type");
  expect_error([&] { rand({3}, dtype); }, "rand", "no type");
  expect_error([&] { zeros({2}).set_grad_dtype(dtype); }, "set_grad_dtype", "no type");
  refuses([&] { empty({2}, f32, cpu, static_cast<Category>(77)); }, "category");
  refuses([&] { Device(static_cast<DeviceKind>(77)); }, "kind");
  refuses([&] { device_count(static_cast<DeviceKind>(77)); }, "kind");
}

TEST_CASE("extreme arguments: counters of a loaded state") {
  const Tensor p = ones({3}).set_requires_grad();
  nn::AdamW optimizer({{"p", p}}, {.lr = 0.1});
  const auto run = [&] {
    Tape tape;
    tape.backward(sum(p * p));
    optimizer.step();
    optimizer.zero_grad();
  };
  run();
  const auto with = [](const NamedTensors& state, const std::string& name, const Tensor& value) {
    NamedTensors changed;
    for (const auto& [key, tensor] : state) {
      changed.emplace_back(key, key == name ? value : tensor.clone());
    }
    return changed;
  };
  const NamedTensors good = with(optimizer.state(), "", {});
  for (const std::int64_t step : {std::int64_t{-1}, std::int64_t{-5}, least, most, most - 1}) {
    const NamedTensors bad = with(good, "p.step", scalar_tensor(step, i64));
    expect_error([&] { optimizer.load_state(bad); }, "AdamW", "p.step", std::to_string(step));
  }
  expect_error([&] { optimizer.load_state(with(good, "p.step", scalar_tensor(1.5, f32))); },
               "AdamW", "p.step", "i64");
  for (const auto& [name, tensor] : optimizer.state()) {
    CHECK(same_bits(tensor, *nn::detail::find_tensor(good, name)));  // nothing was loaded
  }
  optimizer.load_state(with(good, "p.step", scalar_tensor(nn::detail::most_steps, i64)));
  run();
  CHECK(std::isfinite(sum(p).item()));

  nn::Loader loader(nn::TensorDataset({zeros({5})}), {.batch_size = 2, .prefetch = 0});
  for (const std::int64_t epoch : {most, least, std::int64_t{-1}}) {
    const NamedTensors bad = with(loader.state(), "epoch", scalar_tensor(epoch, i64));
    expect_error([&] { loader.load_state(bad); }, "loader", std::to_string(epoch));
  }
  nn::LossScale scale;
  const auto bad_scale = [&](const char* name, const Tensor& value) {
    expect_error([&] { scale.load_state(with(scale.state(), name, value)); }, "LossScale", name);
  };
  bad_scale("good_updates", scalar_tensor(most, i64));
  bad_scale("good_updates", scalar_tensor(-1, i64));
  bad_scale("scale", scalar_tensor(std::nan("")));
  bad_scale("scale", scalar_tensor(-1.0));
  expect_error([] { nn::Progress({.first_step = most, .out = nullptr}); }, "Progress", "2^53");
}

TEST_CASE("extreme arguments: parts of batches for many processes do not overflow") {
  struct Numbers final : nn::Dataset {
    std::int64_t size() const override { return most; }
    nn::Batch make(std::int64_t count, Device device) const override {
      return {empty({count}, i64, device)};
    }
    void fill(const nn::Batch& batch, std::span<const std::int64_t> places) const override {
      std::copy(places.begin(), places.end(), batch[0].data<std::int64_t>());
    }
  };
  const int world = std::numeric_limits<int>::max();
  nn::Loader loader(Numbers(), {.batch_size = most / world,
                                .prefetch = 0,
                                .device = "meta:cpu",
                                .rank = world - 1,
                                .world = world});
  CHECK(loader.next()[0].numel() == most / world);
}
