// Gated linear attention: values, layouts, errors.
#include "flao_support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing::gated;

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
  FlaoOptions options{.q_act = Act::softmax,
                      .q_dim = -2,
                      .k_act = Act::softmax,
                      .k_dim = -2,
                      .v_act = Act::softmax,
                      .v_dim = -2,
                      .g_act = Act::softmax,
                      .g_dim = -2,
                      .lrpe = FlaoLrpe::cosine,
                      .theta = theta_of({1, 1}, f64, device),
                      .offset = 40};
  // The last one is so long that devices cut it into parts.
  for (const Sizes& s : {Sizes{1, 2, 301, 301, 20, 18}, Sizes{1, 1, 600, 530, 3, 6}}) {
    CAPTURE(text_of(s));
    const auto in = inputs_of(s, f64, device);
    const Tensor upstream = upstream_of(s, f64, device);
    const auto got = run(flao, in, options, upstream);
    const auto wanted = run(flao_composed, in, options, upstream);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(error(got[i], wanted[i]) <= 1e-12);
  }
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

TEST_CASE("flao: a head alone, which is cut into pieces, has the bits that it has among many") {
  const Sizes many{1, 32, 300, 270, 72, 80};
  FlaoOptions silu{
      .q_act = Act::silu, .k_act = Act::silu, .g_act = Act::silu, .keep = FlaoKeep::kv};
  FlaoOptions rotated = silu;
  rotated.lrpe = FlaoLrpe::rotate;
  rotated.theta = theta_of({1, 36}, f32, cpu);
  rotated.keep = FlaoKeep::kv_and_qkv;
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(dtype);
    const auto in = inputs_of(many, dtype, cpu);
    const Tensor upstream = upstream_of(many, dtype, cpu);
    const auto one = [](const Tensor& x) { return x.detach().slice(1, 3, 4).clone(); };
    std::vector<Tensor> alone;
    for (const Tensor& x : in) alone.push_back(one(x).set_requires_grad());
    for (const FlaoOptions& options : {FlaoOptions{}, silu, rotated}) {
      const auto wanted = run(flao, in, options, upstream);
      const auto got = run(flao, alone, options, one(upstream));
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(same_bits(got[i], one(wanted[i])));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: rows of any width in f32") {
  const FlaoOptions plain{.k_act = Act::softmax, .k_dim = -1, .g_act = Act::silu};
  FlaoOptions doubled{.q_act = Act::softmax, .q_dim = -1, .lrpe = FlaoLrpe::cosine};
  for (const Sizes& s : {Sizes{1, 1, 70, 70, 128, 128}, Sizes{1, 1, 70, 30, 132, 140},
                         Sizes{1, 2, 30, 40, 99, 301}, Sizes{1, 1, 9, 5, 330, 300}}) {
    CAPTURE(text_of(s));
    doubled.theta = theta_of({1, s.d}, f32, device);
    for (const FlaoOptions& options : {plain, doubled}) {
      const auto in = inputs_of(s, f32, device);
      const Tensor upstream = upstream_of(s, f32, device);
      const auto got = run(flao, in, options, upstream);
      std::vector<Tensor> wide;
      for (const Tensor& x : in) wide.push_back(x.detach().to(cpu).to(f64).set_requires_grad());
      FlaoOptions exactly = options;
      if (options.theta.defined()) exactly.theta = options.theta.to(cpu).to(f64);
      const auto exact = run(flao_composed, wide, exactly, upstream.to(cpu).to(f64));
      // Entries grow with their sums as rounding does; angles are rounded at up to 70.
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(error(got[i].to(cpu), exact[i]) <= 64 * std::exp2(-23));
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

TEST_CASE_FIXTURE(EachDevice,
                  "flao: on a grid, theta may have more columns than there are features") {
  const Tensor x = randn({1, 2, 6, 4}, f64, device), theta = randn({2, 9}, f64, device);
  const FlaoOptions wide{.lrpe = FlaoLrpe::cosine_md, .theta = theta, .shape = {2, 3}};
  FlaoOptions narrow = wide;
  narrow.theta = theta.slice(1, 0, 4).contiguous();
  CHECK(same_bits(flao(x, x, x, x, wide), flao(x, x, x, x, narrow)));
  CHECK(allclose(flao(x, x, x, x, wide), flao_composed(x, x, x, x, wide)));
  const auto f = [&](const std::vector<Tensor>& in) { return flao(in[0], x, x, x, wide); };
  CHECK(gradcheck(f, {x.detach().set_requires_grad()}));
}
