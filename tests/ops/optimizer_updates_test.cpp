// The update operators alone: one step against plain loops for every type and layout.
#include <quipu/quipu.h>

#include <functional>
#include <limits>

#include "nn/optimizer_reference.h"
#include "ops/fused/fused_checks.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// One of the three updates with some options, and its reference.
struct Rule {
  const char* name;
  std::function<void(std::span<const ParameterUpdate>, const GradientControl&)> update;
  std::function<void(Reference&, const Numbers&)> reference;
};

template <class Options, class Update>
Rule rule(const char* name, Update update, const Options& o) {
  return {name, [=](auto list, const GradientControl& c) { update(list, o, c); },
          [=](Reference& r, const Numbers& g) { r.step(o, g); }};
}

std::vector<Rule> rules() {
  return {
      rule("sgd", sgd_update, SgdOptions{.lr = 0.1}),
      rule("sgd decay", sgd_update, SgdOptions{.lr = 0.1, .weight_decay = 0.3}),
      rule("sgd momentum", sgd_update, SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.3}),
      rule("sgd nesterov", sgd_update,
           SgdOptions{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.3, .nesterov = true}),
      rule("sgd decoupled", sgd_update,
           SgdOptions{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.3, .decoupled = true}),
      rule("adamw", adamw_update, AdamWOptions{.lr = 0.1, .beta2 = 0.99, .weight_decay = 0.2}),
      rule("lion", lion_update, LionOptions{.lr = 0.1, .weight_decay = 0.2}),
  };
}

Tensor tensor_of(const Numbers& values, const Shape& shape, DType dtype, Device device) {
  return from(values, shape, dtype, device);
}

/// A parameter with its gradient and a memory that is not zero.
ParameterUpdate make_update(const Shape& shape, DType dtype, DType gradient, Device device,
                            std::uint64_t seed = 1) {
  const auto n = static_cast<std::size_t>(numel(shape));
  const DType wide = compute_type(dtype);
  Numbers squares = numbers(n, seed + 3);
  for (double& v : squares) v = v * v + 0.01;
  return {.parameter = tensor_of(numbers(n, seed), shape, dtype, device),
          .gradient = tensor_of(numbers(n, seed + 1), shape, gradient, device),
          .first = tensor_of(numbers(n, seed + 2), shape, wide, device),
          .second = tensor_of(squares, shape, wide, device),
          .step = full({}, 4, i64, device)};
}

/// As the update left it, by the plain loops.
Reference expected(const Rule& r, const ParameterUpdate& u, double scale = 1) {
  Reference result((u.master.defined() ? u.master : u.parameter).to_vector());
  result.first = u.first.to_vector();
  result.second = u.second.to_vector();
  result.steps = 4;
  Numbers g = u.gradient.to_vector();
  for (double& v : g) v *= scale;
  r.reference(result, g);
  return result;
}

/// Within a few roundings of the type that it was computed in and one of its own.
void check_close(const Tensor& got, const Numbers& wanted) {
  const Tensor exact = tensor_of(wanted, got.shape(), f64, got.device());
  const double wide = epsilon_of(compute_type(got.dtype()));
  const double own = is_reduced(got.dtype()) ? epsilon_of(got.dtype()) / 2 : 0;
  const Difference d =
      compare(got.to(f64), exact, {.relative = own + 8 * wide, .absolute = 8 * wide});
  CHECK_MESSAGE(d.ok, d.text);
}

void check_result(const Rule& r, const ParameterUpdate& u, const Reference& wanted) {
  CAPTURE(std::string(r.name));
  check_close(u.parameter, wanted.p);
  check_close(u.first, wanted.first);
  check_close(u.second, wanted.second);
  if (std::string(r.name) == "adamw") CHECK(u.step.item_int() == wanted.steps);
}

ParameterUpdate copy_of(const ParameterUpdate& u) {
  ParameterUpdate c = u;
  for (Tensor* t : {&c.parameter, &c.gradient, &c.first, &c.second, &c.master, &c.step}) {
    if (t->defined()) *t = t->clone();
  }
  return c;
}

bool same(const ParameterUpdate& a, const ParameterUpdate& b) {
  return same_bits(a.parameter, b.parameter) && same_bits(a.first, b.first) &&
         same_bits(a.second, b.second) && a.step.item_int() == b.step.item_int();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: one step of every rule, type and size") {
  for (const Rule& r : rules()) {
    for (const DType dtype : {f64, f32, bf16, f16}) {
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{33, 65}, Shape{3, 0, 2}}) {
        for (const DType gradient : {dtype, f32}) {
          const ParameterUpdate u = make_update(shape, dtype, gradient, device);
          Reference wanted = expected(r, u);
          if (numel(shape) == 0) wanted.steps = 4;
          r.update({&u, 1}, {});
          CAPTURE(dtype);
          CAPTURE(shape);
          check_result(r, u, wanted);
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: the comparison catches a step that is off") {
  const ParameterUpdate u = make_update({100}, f32, f32, device);
  const Rule off = rule("sgd", sgd_update, SgdOptions{.lr = 0.1 * (1 + 1e-4)});
  const Reference wanted = expected(rules()[0], u);
  off.update({&u, 1}, {});
  const Tensor exact = tensor_of(wanted.p, {100}, f64, device);
  CHECK_FALSE(compare(u.parameter.to(f64), exact, {.relative = 1e-6, .absolute = 1e-6}));
}

TEST_CASE_FIXTURE(EachDevice,
                  "optimizer updates: the master copy is updated, the parameter is it") {
  for (const Rule& r : rules()) {
    for (const DType dtype : {bf16, f16}) {
      ParameterUpdate u = make_update({5, 300}, dtype, dtype, device);
      u.master = tensor_of(numbers(1500, 1), {5, 300}, f32, device);
      const Reference wanted = expected(r, u);
      r.update({&u, 1}, {});
      check_close(u.master, wanted.p);
      CHECK(same_bits(u.parameter, u.master.to(dtype)));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: gradients are scaled on the device") {
  for (const Rule& r : rules()) {
    for (const DType scale : {f32, f64}) {
      const ParameterUpdate u = make_update({70}, f32, f32, device);
      const Reference wanted = expected(r, u, 0.125);
      r.update({&u, 1}, {.scale = full({}, 0.125, scale, device)});
      check_result(r, u, wanted);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: a skipped one changes nothing") {
  for (const Rule& r : rules()) {
    ParameterUpdate u = make_update({2000}, bf16, f32, device);
    u.gradient.fill_(infinity);
    u.master = u.parameter.to(f32);
    const ParameterUpdate before = copy_of(u);
    r.update({&u, 1}, {.skip = full({}, true, boolean, device)});
    CHECK(same(u, before));
    CHECK(same_bits(u.master, before.master));
    r.update({&u, 1}, {.skip = full({}, false, boolean, device)});
    CHECK_FALSE(same_bits(u.parameter, before.parameter));
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: a list gives the bits of single calls") {
  for (const Rule& r : rules()) {
    std::vector<ParameterUpdate> list, alone;
    std::uint64_t seed = 10;
    for (const std::int64_t n : {1, 5, 40000, 0, 1023, 32768, 3}) {
      list.push_back(make_update({n}, n == 5 ? f64 : n == 1023 ? bf16 : f32, f32, device, ++seed));
      alone.push_back(copy_of(list.back()));
    }
    r.update(list, {});
    for (std::size_t i = 0; i < list.size(); ++i) {
      r.update({&alone[i], 1}, {});
      CHECK(same(list[i], alone[i]));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: the same bits on 1, 2 and 3 threads") {
  for (const Rule& r : rules()) {
    const ParameterUpdate start = make_update({331, 311}, f32, f32, device);
    const int before = set_num_threads(1);
    const ParameterUpdate alone = copy_of(start);
    r.update({&alone, 1}, {});
    const Tensor norm = global_norm({&alone.parameter, 1});
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      const ParameterUpdate several = copy_of(start);
      r.update({&several, 1}, {});
      CHECK(same(alone, several));
      CHECK(same_bits(norm, global_norm({&several.parameter, 1})));
    }
    set_num_threads(before);
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: any strides") {
  const Shape shape{37, 41};
  for (const Rule& r : rules()) {
    for (const DType dtype : {f64, f32, bf16}) {
      const ParameterUpdate dense = make_update(shape, dtype, dtype, device);
      const ParameterUpdate start = copy_of(dense);
      r.update({&dense, 1}, {});
      for (std::size_t way = 0; way < 3; ++way) {
        ParameterUpdate u = copy_of(start);
        u.parameter = other_layouts(start.parameter)[way];
        u.gradient = other_layouts(start.gradient)[(way + 1) % 3];
        r.update({&u, 1}, {});
        CHECK(same(u, dense));
        u = copy_of(start);
        u.first = other_layouts(start.first)[way];
        u.second = other_layouts(start.second)[(way + 2) % 3];
        r.update({&u, 1}, {});
        CHECK(same(u, dense));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: an expanded gradient is only read") {
  const ParameterUpdate dense = make_update({6, 5}, f32, f32, device);
  ParameterUpdate u = copy_of(dense);
  u.gradient = from({0.5f}).to(device).expand({6, 5});
  dense.gradient.fill_(0.5);
  rules()[5].update({&u, 1}, {});
  rules()[5].update({&dense, 1}, {});
  CHECK(same(u, dense));
}

TEST_CASE_FIXTURE(EachDevice, "optimizer updates: NaN in a gradient shows in the parameter") {
  for (const Rule& r : rules()) {
    const ParameterUpdate u = make_update({40}, f32, f32, device);
    u.gradient.slice(0, 7, 8).fill_(std::numeric_limits<double>::quiet_NaN());
    r.update({&u, 1}, {});
    const Numbers p = u.parameter.to_vector();
    CAPTURE(std::string(r.name));
    for (std::size_t i = 0; i < p.size(); ++i) CHECK(std::isnan(p[i]) == (i == 7));
  }
}

TEST_CASE("optimizer updates: on meta they check and allocate nothing") {
  for (const Rule& r : rules()) {
    ParameterUpdate u;
    u.parameter = empty({64, 64}, bf16, meta_cpu);
    u.gradient = empty({64, 64}, bf16, meta_cpu);
    for (Tensor* t : {&u.first, &u.second, &u.master}) *t = empty({64, 64}, f32, meta_cpu);
    u.step = zeros({}, i64, meta_cpu);
    const GradientControl control{zeros({}, f32, meta_cpu), zeros({}, boolean, meta_cpu)};
    const PeakMemory peak(meta_cpu);
    r.update({&u, 1}, control);
    CHECK(peak.bytes_above() == 0);
  }
}

TEST_CASE_FIXTURE(EachDevice, "global_norm: sums squares of everything in f64") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    std::vector<Tensor> list;
    double squares = 0;
    for (const std::int64_t n : {1, 100, 0, 70000, 33}) {
      list.push_back(
          tensor_of(numbers(static_cast<std::size_t>(n), 5), {n}, f32, device).to(dtype));
      for (const double v : list.back().to_vector()) squares += v * v;
    }
    list.push_back(list[1].reshape({10, 10}).t().slice(0, 0, {}, 3));
    for (const double v : list.back().to_vector()) squares += v * v;
    const Tensor norm = global_norm(list);
    CHECK(norm.dtype() == (dtype == f64 ? f64 : f32));
    CHECK(norm.shape() == Shape{});
    CHECK(std::abs(norm.item() - std::sqrt(squares)) <=
          (dtype == f64 ? 1e-13 : 1e-7) * std::sqrt(squares));
  }
}

TEST_CASE_FIXTURE(EachDevice, "global_norm: large numbers do not overflow, infinities show") {
  const Tensor large = full({4}, 1e30, f32, device);
  CHECK(global_norm({&large, 1}).item() == doctest::Approx(2e30));
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = ones({50000}, f32, device);
    x.slice(0, 40001, 40002).fill_(bad);
    CHECK_FALSE(std::isfinite(global_norm({&x, 1}).item()));
  }
  const Tensor none = zeros({0}, f32, device);
  CHECK(global_norm({&none, 1}).item() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "global_norm: meta counts its workspace") {
  const auto peak_on = [](Device where) {
    const Tensor x = zeros({300000}, f32, where);
    const PeakMemory peak(where);
    global_norm({&x, 1});
    return peak.bytes_above();
  };
  CHECK(peak_on(meta_of(device)) == peak_on(device));
}

TEST_CASE("optimizer updates: say what does not fit") {
  const auto with = [](auto change) {
    ParameterUpdate u = make_update({2, 3}, f32, f32, cpu);
    change(u);
    adamw_update({&u, 1}, {});
  };
  expect_error([&] { with([](auto& u) {
                       u.gradient = ones({3, 2});
                     }); }, "adamw_update",
               "gradient of parameter 0 has shape (3, 2), but the parameter has shape (2, 3)");
  expect_error([&] { with([](auto& u) {
                       u.gradient = ones({2, 3}, bf16);
                     }); },
               "gradient of parameter 0 is bf16, but f32");
  expect_error([&] { with([](auto& u) { u.gradient = {}; }); }, "parameter 0 has no gradient");
  expect_error([&] { with([](auto& u) { u.second = {}; }); }, "parameter 0 has no second");
  expect_error([&] { with([](auto& u) {
                       u.first = ones({2, 3}, f64);
                     }); },
               "first of parameter 0 is f64, but for a parameter of type f32 it is kept in f32");
  expect_error([&] { with([](auto& u) { u.master = ones({2, 3}); }); }, "needs no master copy");
  expect_error([&] { with([](auto& u) { u.step = ones({1}, i64); }); }, "step of parameter 0");
  expect_error([&] { with([](auto& u) {
                       u.parameter = zeros({2, 3}, i64);
                     }); },
               "parameter 0 is i64");
  expect_error([&] { with([](auto& u) {
                       u.parameter = ones({1}).expand({2, 3});
                     }); },
               "parameter 0 is expanded along dimension 0");
  expect_error([&] { with([](auto& u) {
                       u.first = zeros({2, 3}, f32, meta_cpu);
                     }); },
               "first of parameter 0 is on meta");

  const ParameterUpdate u = make_update({2}, f32, f32, cpu);
  expect_error([&] { sgd_update({&u, 1}, {.lr = infinity}); }, "sgd_update", "lr is inf");
  expect_error([&] { sgd_update({&u, 1}, {.momentum = 1}); }, "momentum is 1");
  expect_error([&] { sgd_update({&u, 1}, {.nesterov = true}); }, "nesterov");
  expect_error([&] { lion_update({&u, 1}, {.beta1 = -0.1}); }, "lion_update", "beta1 is -0.1");
  expect_error([&] { adamw_update({&u, 1}, {.eps = -1}); }, "eps is -1");
  expect_error([&] { adamw_update({&u, 1}, {}, {.scale = ones({1})}); }, "scale has shape (1,)");
  expect_error([&] { adamw_update({&u, 1}, {}, {.skip = ones({})}); }, "skip is f32");
  expect_error([&] { global_norm({}); }, "global_norm", "empty");
  const Tensor whole = ones({2}, i64);
  expect_error([&] { global_norm({&whole, 1}); }, "tensor 0 is i64");
}

TEST_CASE("optimizer updates: a parameter that a tape may need is protected") {
  const ParameterUpdate u = make_update({2}, f32, f32, cpu);
  u.parameter.set_requires_grad();
  Tape tape;
  expect_error([&] { sgd_update({&u, 1}, {}); }, "sgd_update", "NoGrad");
  const Tensor loss = sum(u.parameter * u.parameter);
  {
    const NoGrad pause;
    sgd_update({&u, 1}, {});
  }
  expect_error([&] { tape.backward(loss); }, "changed in place by sgd_update");
}
