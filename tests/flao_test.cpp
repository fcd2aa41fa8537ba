// Gated linear attention: activations, position encodings, what is kept.
#include <quipu/quipu.h>

#include <cmath>
#include <string>
#include <vector>

#include "support.h"

using namespace quipu;

namespace {

constexpr Device meta_cpu(DeviceKind::cpu, 0, true);

struct Sizes {
  std::int64_t b, h, n, m, d, e;
};

std::string text_of(const Sizes& s) {
  std::string text;
  for (const std::int64_t size : {s.b, s.h, s.n, s.m, s.d, s.e}) text += std::to_string(size) + " ";
  return text;
}

/// Numbers of either sign, away from the kink of relu.
Tensor values(const Shape& shape, Device device, Generator& g) {
  const Tensor x = rand(shape, f64, device, g) * 2 - 1;
  return where(x < 0, x - 0.05, x + 0.05);
}

/// q, k, v, g
std::vector<Tensor> inputs_of(const Sizes& s, DType dtype, Device device, unsigned subset = 15) {
  Generator g(2024);
  std::vector<Tensor> in{
      values({s.b, s.h, s.n, s.d}, device, g), values({s.b, s.h, s.m, s.d}, device, g),
      values({s.b, s.h, s.m, s.e}, device, g), values({s.b, s.h, s.n, s.e}, device, g)};
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = in[i].to(dtype).detach();
    in[i].set_requires_grad((subset >> i & 1u) != 0);
  }
  return in;
}

Tensor upstream_of(const Sizes& s, DType dtype, Device device) {
  Generator g(7);
  return values({s.b, s.h, s.n, s.e}, device, g).to(dtype);
}

DType theta_type(DType dtype) {
  return dtype == f64 ? f64 : f32;
}
Tensor theta_of(const Shape& shape, DType dtype, Device device) {
  Generator g(11);
  return rand(shape, f64, device, g).to(theta_type(dtype));
}

using Operation = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const FlaoOptions&);

/// The output and the gradients of q, k, v, g that are wanted.
std::vector<Tensor> run(Operation f, const std::vector<Tensor>& in, const FlaoOptions& options,
                        const Tensor& upstream) {
  std::vector<Tensor> leaves, wanted;
  for (const Tensor& x : in) {
    leaves.push_back(x.detach());
    leaves.back().set_requires_grad(x.requires_grad());
    if (x.requires_grad()) wanted.push_back(leaves.back());
  }
  Tape tape;
  const Tensor o = f(leaves[0], leaves[1], leaves[2], leaves[3], options);
  std::vector<Tensor> results = tape.gradients(o, wanted, {upstream, false});
  results.insert(results.begin(), o.detach());
  return results;
}

double largest(const Tensor& x) {
  double most = 0;
  for (const double value : x.to(f64).to_vector()) {
    if (!(std::abs(value) <= most)) most = std::abs(value);
  }
  return most;
}

/// The largest difference as a part of the largest entry.
double error(const Tensor& got, const Tensor& wanted) {
  const Tensor exact = wanted.to(f64);
  const double scale = largest(exact);
  return largest(got.to(f64) - exact) / (scale > 0 ? scale : 1);
}

struct Variant {
  std::string name;
  FlaoOptions options;
};

/// Every pair of an activation somewhere and an encoding, on n = m = 6 tokens, d = 4, h = 2.
std::vector<Variant> variants(DType dtype, Device device) {
  const Act acts[] = {Act::none, Act::relu, Act::sigmoid, Act::silu, Act::softmax, Act::softmax};
  const FlaoLrpe encodings[] = {FlaoLrpe::none, FlaoLrpe::rotate, FlaoLrpe::cosine,
                                FlaoLrpe::cosine_md};
  std::vector<Variant> found;
  for (int a = 0; a < 6; ++a) {
    for (int p = 0; p < 4; ++p) {
      FlaoOptions o;
      // Shifted against each other, so that all pairs of two inputs come along.
      const auto choose = [&](int shift, Act& act, std::optional<int>& dim) {
        const int choice = (a + shift * (p + 1)) % 6;
        act = acts[choice];
        if (act == Act::softmax) dim = choice == 4 ? -1 : -2;
      };
      choose(0, o.q_act, o.q_dim);
      choose(1, o.k_act, o.k_dim);
      choose(2, o.v_act, o.v_dim);
      choose(3, o.g_act, o.g_dim);
      o.lrpe = encodings[p];
      o.keep = static_cast<FlaoKeep>((a + p) % 3);
      if (o.lrpe == FlaoLrpe::rotate) {
        o.theta = theta_of({2, 2}, dtype, device);
        o.offset = 3;
      } else if (o.lrpe == FlaoLrpe::cosine) {
        o.theta = theta_of({1, 4}, dtype, device);
        o.offset = a;
      } else if (o.lrpe == FlaoLrpe::cosine_md) {
        o.theta = theta_of({2, 2}, dtype, device);
        o.shape = {2, 2};
        o.l = 2;
      }
      found.push_back({std::to_string(a) + " " + std::to_string(p), o});
    }
  }
  return found;
}

constexpr Sizes variant_sizes{2, 2, 6, 6, 4, 3};

DifferentiableFunction function_of(const FlaoOptions& options) {
  return [options](const std::vector<Tensor>& in) {
    return flao(in[0], in[1], in[2], in[3], options);
  };
}

const Sizes shapes[] = {
    {1, 1, 1, 1, 1, 1},  {1, 1, 1, 1, 2, 3},  {2, 1, 3, 2, 1, 1},  {1, 2, 2, 5, 3, 1},
    {2, 2, 3, 4, 2, 5},  {1, 1, 7, 1, 4, 2},  {1, 1, 1, 7, 2, 4},  {3, 1, 2, 2, 5, 2},
    {1, 3, 4, 4, 4, 4},  {2, 2, 2, 2, 2, 2},  {1, 1, 13, 5, 2, 2}, {1, 1, 5, 13, 2, 2},
    {1, 1, 3, 3, 17, 2}, {1, 1, 3, 3, 2, 17}, {2, 3, 3, 5, 3, 5},  {1, 2, 6, 1, 1, 6},
    {1, 1, 8, 8, 3, 3},  {4, 1, 2, 3, 2, 1},  {1, 4, 3, 2, 1, 2},  {1, 1, 9, 4, 4, 1},
    {1, 1, 2, 3, 8, 8},  {2, 1, 5, 5, 2, 3},  {1, 2, 4, 7, 2, 3},  {1, 1, 16, 16, 2, 2},
    {1, 1, 31, 3, 1, 2}, {1, 1, 3, 31, 2, 1}, {1, 1, 2, 2, 33, 1}, {1, 1, 2, 2, 1, 33},
    {5, 1, 2, 2, 2, 2},  {1, 5, 2, 2, 2, 2},
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "flao: agrees with its composition in f64, forward and backward") {
  for (const Sizes& s : {Sizes{2, 3, 70, 50, 24, 9}, Sizes{1, 2, 130, 260, 16, 33},
                         Sizes{1, 1, 300, 7, 130, 140}, Sizes{1, 1, 5, 5, 512, 512}}) {
    CAPTURE(text_of(s));
    for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
      for (const Act act : {Act::none, Act::silu}) {
        const FlaoOptions options{.q_act = act, .k_act = act, .g_act = act, .keep = keep};
        const auto in = inputs_of(s, f64, device);
        const Tensor upstream = upstream_of(s, f64, device);
        const auto got = run(flao, in, options, upstream);
        const auto wanted = run(flao_composed, in, options, upstream);
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(error(got[i], wanted[i]) <= 1e-12);
      }
    }
  }
  for (const Variant& variant : variants(f64, device)) {
    CAPTURE(variant.name);
    const FlaoOptions& options = variant.options;
    const auto in = inputs_of(variant_sizes, f64, device);
    const Tensor upstream = upstream_of(variant_sizes, f64, device);
    const auto got = run(flao, in, options, upstream);
    const auto wanted = run(flao_composed, in, options, upstream);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(error(got[i], wanted[i]) <= 1e-12);
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: long sequences under softmax over them") {
  const Sizes s{1, 2, 301, 301, 20, 18};
  FlaoOptions options{.q_act = Act::softmax,
                      .q_dim = -2,
                      .k_act = Act::softmax,
                      .k_dim = -2,
                      .v_act = Act::softmax,
                      .v_dim = -2,
                      .g_act = Act::softmax,
                      .g_dim = -2,
                      .lrpe = FlaoLrpe::cosine,
                      .theta = theta_of({2, 1}, f64, device),
                      .offset = 40};
  const auto in = inputs_of(s, f64, device);
  const Tensor upstream = upstream_of(s, f64, device);
  const auto got = run(flao, in, options, upstream);
  const auto wanted = run(flao_composed, in, options, upstream);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(error(got[i], wanted[i]) <= 1e-12);
}

TEST_CASE_FIXTURE(EachDevice, "flao: no further from the truth than its composition") {
  const Sizes s{2, 3, 70, 50, 24, 16};
  for (const DType dtype : {f32, bf16, f16}) {
    CAPTURE(dtype);
    for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
      FlaoOptions options{.q_act = Act::silu,
                          .k_act = Act::softmax,
                          .k_dim = -1,
                          .g_act = Act::sigmoid,
                          .lrpe = FlaoLrpe::rotate,
                          .theta = theta_of({3, 12}, dtype, device),
                          .keep = keep};
      const auto in = inputs_of(s, dtype, device);
      const Tensor upstream = upstream_of(s, dtype, device);
      const auto got = run(flao, in, options, upstream);
      const auto composed = run(flao_composed, in, options, upstream);
      std::vector<Tensor> wide;
      for (const Tensor& x : in) wide.push_back(x.detach().to(f64).set_requires_grad());
      options.theta = options.theta.to(f64);
      const auto exact = run(flao_composed, wide, options, upstream.to(f64));
      const double epsilon = dtype == bf16  ? 1.0 / 256
                             : dtype == f16 ? 1.0 / 2048
                                            : 1e-6;  // angles
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(error(got[i], exact[i]) <= 2 * epsilon);
        CHECK(error(got[i], exact[i]) <= error(composed[i], exact[i]) + epsilon);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: gradients, many shapes") {
  for (const Sizes& s : shapes) {
    CAPTURE(text_of(s));
    CHECK(gradcheck(function_of({}), inputs_of(s, f64, device)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: gradients, pairs of options") {
  for (const Variant& variant : variants(f64, device)) {
    CAPTURE(variant.name);
    const FlaoOptions& options = variant.options;
    CHECK(gradcheck(function_of(options), inputs_of(variant_sizes, f64, device)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: gradients, every subset of inputs") {
  for (const Sizes& s : {Sizes{1, 2, 3, 5, 4, 3}, Sizes{2, 1, 6, 2, 2, 5}}) {
    for (unsigned subset = 1; subset < 16; ++subset) {
      for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
        CAPTURE(subset);
        FlaoOptions options{.keep = keep};
        const auto in = inputs_of(s, f64, device, subset);
        CHECK(gradcheck(function_of(options), in));
        options.q_act = options.k_act = Act::silu;
        options.v_act = Act::sigmoid;
        options.g_act = Act::softmax;
        options.g_dim = -2;
        options.lrpe = FlaoLrpe::rotate;
        options.theta = theta_of({1, s.d / 2}, f64, device);
        CHECK(gradcheck(function_of(options), in));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: any strides, and one tensor as all inputs") {
  const Sizes s{2, 3, 5, 5, 4, 4};
  const auto in = inputs_of(s, f64, device);
  const Tensor theta = theta_of({3, 4}, f64, device);
  for (const FlaoOptions& options :
       {FlaoOptions{},
        FlaoOptions{
            .k_act = Act::softmax, .k_dim = -2, .lrpe = FlaoLrpe::cosine, .theta = theta}}) {
    std::vector<Tensor> turned;
    for (const Tensor& x : in) {
      turned.push_back(x.detach().transpose(1, 3).contiguous().transpose(1, 3));
      turned.back().set_requires_grad();
    }
    const Tensor upstream = upstream_of(s, f64, device);
    const auto wanted = run(flao, in, options, upstream);
    const auto got =
        run(flao, turned, options, upstream.transpose(0, 2).contiguous().transpose(0, 2));
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(error(got[i], wanted[i]) <= 1e-14);
    const auto square = [&](const std::vector<Tensor>& x) {
      return flao(x[0], x[0], x[0].transpose(2, 3).transpose(2, 3), x[0], options);
    };
    CHECK(gradcheck(square, {in[0]}));
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: nothing in, zeros or nothing out") {
  for (const Sizes& s :
       {Sizes{0, 2, 3, 3, 4, 2}, Sizes{2, 0, 3, 3, 4, 2}, Sizes{2, 2, 0, 3, 4, 2},
        Sizes{2, 2, 3, 0, 4, 2}, Sizes{2, 2, 3, 3, 0, 2}, Sizes{2, 2, 3, 3, 4, 0}}) {
    CAPTURE(text_of(s));
    for (const Act act : {Act::none, Act::silu, Act::softmax}) {
      const std::optional<int> dim = act == Act::softmax ? std::optional<int>(-2) : std::nullopt;
      const FlaoOptions options{
          .q_act = act, .q_dim = dim, .k_act = act, .k_dim = dim, .keep = FlaoKeep::kv_and_qkv};
      const auto got = run(flao, inputs_of(s, f64, device), options, upstream_of(s, f64, device));
      CHECK(got[0].shape() == Shape{s.b, s.h, s.n, s.e});
      for (const Tensor& x : got) CHECK((x.numel() == 0 || largest(x) == 0));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: the number of threads changes nothing") {
  const Sizes s{2, 2, 90, 77, 40, 24};
  for (const DType dtype : {f64, f32, bf16}) {
    const FlaoOptions options{.q_act = Act::softmax,
                              .q_dim = -2,
                              .k_act = Act::silu,
                              .lrpe = FlaoLrpe::rotate,
                              .theta = theta_of({2, 20}, dtype, device)};
    const auto in = inputs_of(s, dtype, device);
    const Tensor upstream = upstream_of(s, dtype, device);
    const int threads = set_num_threads(1);
    const auto alone = run(flao, in, options, upstream);
    for (const int count : {2, 3}) {
      set_num_threads(count);
      const auto together = run(flao, in, options, upstream);
      for (std::size_t i = 0; i < alone.size(); ++i) CHECK(same_bits(alone[i], together[i]));
    }
    set_num_threads(threads);
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: saves what it says and nothing else") {
  const Sizes s{2, 3, 70, 50, 24, 16};
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  for (const DType dtype : {f64, f32, bf16}) {
    const std::size_t io = size_of(dtype), wide = dtype == f64 ? 8 : 4;
    const std::size_t q = io * count(s.b * s.h * s.n * s.d), k = io * count(s.b * s.h * s.m * s.d);
    const std::size_t v = io * count(s.b * s.h * s.m * s.e), g = io * count(s.b * s.h * s.n * s.e);
    const std::size_t kv = wide * count(s.b * s.h * s.d * s.e);
    const auto saved = [&](unsigned subset, const FlaoOptions& options) {
      const auto in = inputs_of(s, dtype, device, subset);
      Tape tape;
      const Tensor o = flao(in[0], in[1], in[2], in[3], options);
      CHECK(tape.size() == 1);
      return tape.saved_bytes();
    };
    CHECK(saved(15, {}) == q + k + v + g);
    CHECK(saved(15, {.keep = FlaoKeep::kv}) == q + k + v + g + kv);
    CHECK(saved(15, {.keep = FlaoKeep::kv_and_qkv}) == q + k + v + g + kv + g);
    // Only what the wanted gradients need.
    CHECK(saved(1, {}) == g + k + v);
    CHECK(saved(1, {.keep = FlaoKeep::kv}) == g + kv);
    CHECK(saved(1, {.q_act = Act::silu, .keep = FlaoKeep::kv}) == q + g + kv);
    CHECK(saved(2, {}) == q + g + v);
    CHECK(saved(4, {}) == q + g + k);
    CHECK(saved(8, {}) == q + k + v);
    CHECK(saved(8, {.keep = FlaoKeep::kv_and_qkv}) == g);
    const Tensor theta = theta_of({3, 12}, dtype, device);
    const FlaoOptions rotated{.lrpe = FlaoLrpe::rotate, .theta = theta};
    CHECK(saved(15, rotated) == q + k + v + g + wide * 36);
    const FlaoOptions doubled{.lrpe = FlaoLrpe::cosine, .theta = theta, .keep = FlaoKeep::kv};
    CHECK(saved(15, doubled) == q + k + v + g + 2 * kv + wide * 36);
  }
}

TEST_CASE("flao: memory on meta is that on the cpu, and less than the composition takes") {
  const Sizes s{2, 3, 512, 512, 64, 64};
  const auto peak = [&](Operation f, Device device, const FlaoOptions& options) {
    const auto in = inputs_of(s, f32, device);
    const Tensor upstream = upstream_of(s, f32, device);
    const auto step = [&] {
      Tape tape;
      const Tensor o = f(in[0], in[1], in[2], in[3], options);
      tape.backward(o, {upstream, false});
    };
    step();  // gradients are there from now on
    const PeakMemory memory(device);
    step();
    return memory.bytes_above();
  };
  for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
    for (const bool encoded : {false, true}) {
      const auto options = [&](Device device) {
        if (!encoded) return FlaoOptions{.keep = keep};
        return FlaoOptions{.q_act = Act::silu,
                           .k_act = Act::softmax,
                           .k_dim = -2,
                           .lrpe = FlaoLrpe::cosine,
                           .theta = theta_of({3, 64}, f32, device),
                           .keep = keep};
      };
      const std::size_t real = peak(flao, cpu, options(cpu));
      CHECK(real == peak(flao, meta_cpu, options(meta_cpu)));
      CHECK(real < peak(flao_composed, cpu, options(cpu)));
      // The output, kv and d_kv, and what is kept.
      const std::size_t u = 2 * 3 * 512 * 64 * 4, kv = 2 * 3 * 64 * 64 * 4 * (encoded ? 2 : 1);
      CHECK(real == u + 2 * kv + (keep == FlaoKeep::kv_and_qkv ? u : 0));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: backward without a tape adds or writes") {
  const Sizes s{2, 3, 20, 13, 8, 6};
  const auto in = inputs_of(s, f64, device);
  const Tensor upstream = upstream_of(s, f64, device);
  const FlaoOptions options{.k_act = Act::silu};
  const auto wanted = run(flao, in, options, upstream);
  std::vector<Tensor> d;
  for (const Tensor& x : in) d.push_back(ones(x.shape(), f64, device));
  flao_backward(in[0], in[1], in[2], in[3], upstream, Grad::write_to(d[0]), Grad::add_to(d[1]),
                Grad::write_to(d[2]), Grad::add_to(d[3]), options);
  CHECK(error(d[0], wanted[1]) <= 1e-14);
  CHECK(error(d[1] - 1, wanted[2]) <= 1e-14);
  CHECK(error(d[2], wanted[3]) <= 1e-14);
  CHECK(error(d[3] - 1, wanted[4]) <= 1e-14);
  flao_backward(in[0], in[1], in[2], in[3], upstream, {}, {}, {}, {}, options);
}

TEST_CASE("flao: says what does not fit") {
  const Tensor x = ones({2, 3, 4, 6});
  const Tensor theta = ones({3, 3});
  const auto call = [&](const FlaoOptions& options) { flao(x, x, x, x, options); };
  expect_error([&] { flao(ones({4, 6}), x, x, x); }, "flao", "q has shape (4, 6)", "(b, h, n, d)");
  expect_error(
      [&] {
        flao(x, ones({2, 3, 4, 5}), x, x);
      },
      "k has shape (2, 3, 4, 5)", "the head dimension");
  expect_error([&] { flao(x, x, ones({2, 3, 5, 6}), x); }, "v and k must agree in the sequence");
  expect_error([&] { flao(x, x, x, ones({2, 3, 4, 5})); }, "g and v must agree in the features");
  expect_error([&] { flao(x, ones({1, 3, 4, 6}), x, x); }, "agree in the batch");
  expect_error([&] { flao(x, x, x, x.to(f64)); }, "flao", "f64");
  expect_error([&] { flao(x, x, x, ones({2, 3, 4, 6}, f32, meta_cpu)); }, "flao", "meta");
  expect_error([&] { flao(ones({1, 1, 1, 1025}), ones({1, 1, 1, 1025}), x, x); }, "flao");
  const Tensor wide = ones({1, 1, 1, 1025});
  expect_error([&] { flao(wide, wide, wide, wide); }, "at most 1024 are possible in f32");
  expect_error([&] { call({.q_act = Act::softmax}); }, "q_act is softmax and needs q_dim");
  expect_error([&] { call({.g_act = Act::softmax, .g_dim = 1}); }, "g_dim is 1");
  expect_error([&] { call({.v_act = Act::silu, .v_dim = -1}); }, "only softmax takes a dim");
  expect_error([&] { call({.theta = theta}); }, "theta is given, but lrpe is none");
  expect_error([&] { call({.lrpe = FlaoLrpe::rotate}); }, "theta is not given");
  expect_error(
      [&] {
        call({.lrpe = FlaoLrpe::rotate, .theta = ones({3, 4})});
      },
      "no more than 3 angles");
  expect_error([&] { call({.lrpe = FlaoLrpe::cosine, .theta = ones({2, 3})}); }, "q has 3 heads");
  expect_error(
      [&] {
        call({.lrpe = FlaoLrpe::cosine, .theta = ones({3, 3}, f64)});
      },
      "theta is f64");
  expect_error([&] { call({.lrpe = FlaoLrpe::cosine, .theta = theta, .shape = {4}}); },
               "only cosine_md has a grid");
  expect_error([&] { call({.lrpe = FlaoLrpe::cosine_md, .theta = theta, .shape = {3}}); },
               "q has 4 tokens, but l = 0");
  expect_error([&] { call({.lrpe = FlaoLrpe::cosine_md, .theta = theta, .shape = {4}}); },
               "need at least 6 columns");
  expect_error(
      [&] {
        call({.lrpe = FlaoLrpe::cosine_md, .theta = theta, .offset = 1, .shape = {2, 2}});
      },
      "offset is 1, but a grid has none");
  const Tensor more = ones({2, 3, 5, 6});
  expect_error(
      [&] {
        flao(x, more, more, x, {.lrpe = FlaoLrpe::cosine_md, .theta = theta, .shape = {2, 2}});
      },
      "k has 5 tokens");
  expect_error([&] { flao_backward(x, x, x, x, more, {}, {}, {}, {}); }, "flao_backward",
               "d_o has shape (2, 3, 5, 6)");
}
