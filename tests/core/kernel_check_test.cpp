// The reference and the check of kernels: which kernels run, and that a wrong one is named. Faults
// are planted in the table: a kernel that does its work and then spoils one element of one operand.
#include <quipu/quipu.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/act_kernels.h"
#include "quipu/ops/attention_kernels.h"
#include "quipu/ops/dropout_kernels.h"
#include "quipu/ops/flao/kernels.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/index/sample_kernels.h"
#include "quipu/ops/index/top_k_kernels.h"
#include "quipu/ops/loss/cross_entropy_kernels.h"
#include "quipu/ops/lrpe/kernels.h"
#include "quipu/ops/matmul/kernels.h"
#include "quipu/ops/norm_kernels.h"
#include "quipu/ops/optimizer_kernels.h"
#include "quipu/ops/pointwise/kernels.h"
#include "quipu/ops/reduce/kernels.h"
#include "quipu/ops/tpa_decode/kernels.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

thread_local bool spoiling = false;

/// The last element of a view, on its device, becomes something near it.
void spoil(View view) {
  spoiling = true;  // kernels work while one is used for this
  std::int64_t last = 0;
  for (int d = 0; d < view.dim(); ++d) last += (view.size(d) - 1) * view.stride(d);
  view.data = view.as<char>() + last * static_cast<std::int64_t>(size_of(view.dtype));
  view.shape = {};
  view.strides = {};
  const bool real = is_floating(view.dtype);
  pointwise_kernel(Target::write_to(view), real ? Pointwise::mul : Pointwise::add,
                   {view, real ? Operand(1.003) : Operand(Scalar(1))});
  spoiling = false;
}

/// While it lives, the kernel spoils the operand of this name.
template <auto& kernel, class = std::remove_cvref_t<decltype(kernel)>>
class Planted;
template <auto& kernel, class... Args>
class Planted<kernel, Kernel<void(Args...)>> {
 public:
  Planted(Device device, const char* operand) : variant_(fast_variant(device.kind())) {
    ensure_kernels_registered();
    name = operand;
    original = kernel.function(variant_);
    kernel.provide(variant_, broken);
  }
  ~Planted() { kernel.provide(variant_, original); }
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;

 private:
  static void broken(Args... args) {
    original(args...);
    if (spoiling) return;
    const KernelCallOf<Args...> call(nullptr, kernel.arguments(), args...);
    for (const KernelOperand& o : call.operands) {
      if (o.name == name) spoil(*o.view);
    }
  }
  static inline const char* name = nullptr;
  static inline void (*original)(Args...) = nullptr;
  Variant variant_;
};

/// The call is right without a fault, and the first wrong one is named with it.
template <auto& kernel, class F>
void expect_found(Device device, const char* operand, F&& call) {
  const std::string fault_in = std::string(kernel.name()) + " " + operand;
  CAPTURE(fault_in);
  const KernelCheck check;
  REQUIRE_NOTHROW(call());
  const Planted<kernel> fault(device, operand);
  const std::string named = std::string("kernel ") + kernel.name() + " (scope layer3): " + operand;
  expect_error(
      [&] {
        const MemoryScope scope("layer3");
        call();
      },
      "found by the check of kernels", named, to_string(device));
}

/// Differentiates f of tensors of these shapes, twice, so that gradients are added to.
template <class F>
auto trained(Device device, std::initializer_list<Shape> shapes, F f) {
  std::vector<Tensor> inputs;
  for (const Shape& s : shapes) {
    inputs.push_back((rand(s, f32, device) + 0.5).detach().set_requires_grad());
  }
  return [=] {
    Tape tape;
    const Tensor o = f(inputs);
    const Tensor upstream = rand(o.shape(), o.dtype(), device) + 0.5;
    for (int walk = 0; walk < 2; ++walk) tape.backward(o, {upstream, true});
  };
}

using In = const std::vector<Tensor>&;

}  // namespace

TEST_CASE("reference: every kernel of the CPU has one, and nothing else has") {
  for (const AnyKernel* kernel : all_kernels()) {
    CAPTURE(kernel->name());
    CHECK(kernel->provided(Variant::reference) == kernel->provided(Variant::cpu));
  }
  CHECK(all_kernels().size() >= 40);
}

TEST_CASE_FIXTURE(EachDevice, "reference: runs while it lives, on this thread") {
  const Tensor x = rand({5, 7}, f32, device);
  const Tensor right = exp(x).to(f64);
  const Planted<pointwise_kernel> fault(device, "o");
  const auto is_right = [&] { return !(exp(x).to(cpu)[4][6].item() > 1.002 * right[4][6].item()); };
  CHECK_FALSE(is_right());
  {
    const ReferenceKernels reference;
    const Tensor y = exp(x);
    std::thread([&] { CHECK_FALSE(is_right()); }).join();
    CHECK(allclose(y, right.to(f32)));
  }
  CHECK_FALSE(is_right());
}

TEST_CASE_FIXTURE(EachDevice, "reference: trains as the fast kernels do") {
  const auto losses = [&] {
    manual_seed(3);
    const Tensor x = randn({16, 8}, f32, device), y = randn({16, 3}, f32, device);
    nn::Linear layer(8, 3);
    layer.to(device);
    nn::AdamW optimizer(layer.parameters(), {.lr = 0.05});
    std::vector<double> seen;
    for (int step = 0; step < 5; ++step) {
      Tape tape;
      const Tensor loss = mse_loss(layer(x), y);
      tape.backward(loss);
      optimizer.step({.max_norm = 1});
      optimizer.zero_grad();
      seen.push_back(loss.item());
    }
    return seen;
  };
  const std::vector<double> fast = losses();
  const ReferenceKernels reference;
  const std::vector<double> plain = losses();
  for (std::size_t i = 0; i < fast.size(); ++i) CHECK(std::abs(fast[i] - plain[i]) <= 1e-5);
}

TEST_CASE_FIXTURE(EachDevice,
                  "kernel check: names the first wrong call, pointwise and reductions") {
  const Tensor x = rand({5, 70}, f32, device);
  expect_found<pointwise_kernel>(device, "o", [&] { exp(x); });
  expect_found<pointwise_kernel>(device, "a", [&] { exp(x); });  // an input that changes
  expect_found<pointwise_sum_kernel>(device, "o", [&] { sum(x, 0); });
  expect_found<extreme_kernel>(device, "values", [&] { max(x, 1); });
  expect_found<extreme_kernel>(device, "index", [&] { argmax(x, 1); });
  expect_found<cumsum_kernel>(device, "o", [&] { cumsum(x, 1); });
  expect_found<fill_kernel>(device, "o", [&] { full({3, 5}, 2.0, f32, device); });
  expect_found<copy_kernel>(device, "o", [&] { x.transpose(0, 1).contiguous(); });
  expect_found<random_uniform_kernel>(device, "o", [&] { rand({9}, f32, device); });
  expect_found<dropout_kernel>(device, "x", [&] { dropout(x, 0.5); });
  expect_found<top_k_kernel>(device, "indices", [&] { top_k(x, 3); });
  expect_found<sample_kernel>(device, "o", [&] { sample(x); });
}

TEST_CASE_FIXTURE(EachDevice, "kernel check: names the first wrong call, products, norms, losses") {
  const Tensor rows = from<std::int64_t>({1, 0, 3, 3}, {4}, i64, device);
  expect_found<matmul_kernel>(
      device, "o", trained(device, {{5, 33}, {33, 7}}, [](In in) { return matmul(in[0], in[1]); }));
  const auto norm =
      trained(device, {{6, 40}, {40}}, [](In in) { return layer_norm(in[0], in[1]); });
  expect_found<norm_forward_kernel>(device, "o", norm);
  expect_found<norm_backward_kernel>(device, "d_x", norm);
  expect_found<norm_backward_kernel>(device, "d_weight", norm);
  const auto loss = trained(device, {{4, 9}}, [&](In in) { return cross_entropy(in[0], rows); });
  expect_found<cross_entropy_rows_kernel>(device, "losses", loss);
  expect_found<cross_entropy_gradient_kernel>(device, "d_logits", loss);
  expect_found<index_add_kernel>(
      device, "o", trained(device, {{4, 6}}, [&](In in) { return embedding(in[0], rows); }));
  const Tensor w = rand({7, 5}, f32, device), g = rand({7, 5}, f32, device);
  const Tensor first = zeros({7, 5}, f32, device);
  expect_found<lion_kernel>(device, "first moment 0", [&] {
    lion_update(std::vector{ParameterUpdate{.parameter = w, .gradient = g, .first = first}}, {});
  });
}

TEST_CASE_FIXTURE(EachDevice, "kernel check: names the first wrong call, the fused families") {
  const auto softmax =
      trained(device, {{6, 40}}, [](In in) { return act(in[0], Act::softmax, 1); });
  expect_found<softmax_forward_kernel>(device, "o", softmax);
  expect_found<softmax_backward_kernel>(device, "d_x", softmax);
  const Tensor theta = rand({2, 4}, f32, device);
  const auto rotate = trained(device, {{2, 7, 2, 8}},
                              [=](In in) { return lrpe_rotate(in[0], theta, {.act = Act::silu}); });
  expect_found<lrpe_forward_kernel>(device, "o", rotate);
  expect_found<lrpe_backward_kernel>(device, "d_x", rotate);
  const auto learned =
      trained(device, {{2, 7, 2, 8}, {2, 4}}, [](In in) { return lrpe_rotate(in[0], in[1]); });
  expect_found<lrpe_theta_kernel>(device, "d_theta", learned);
  const auto gated = trained(device, {{1, 2, 9, 8}, {1, 2, 11, 8}, {1, 2, 11, 5}, {1, 2, 9, 5}},
                             [](In in) { return flao(in[0], in[1], in[2], in[3]); });
  expect_found<flao_forward_kernel>(device, "o", gated);
  for (const char* d : {"d_q", "d_k", "d_v", "d_g"}) {
    expect_found<flao_backward_kernel>(device, d, gated);
  }
  const auto attend = trained(device, {{1, 2, 9, 8}, {1, 2, 11, 8}, {1, 2, 11, 5}},
                              [](In in) { return attention(in[0], in[1], in[2]); });
  expect_found<attention_forward_kernel>(device, "o", attend);
  expect_found<attention_forward_kernel>(device, "lse", attend);
  expect_found<attention_backward_kernel>(device, "d_v", attend);
  const auto decode =
      trained(device, {{2, 1, 3, 2}, {2, 9, 3}, {2, 9, 3}, {2, 1, 2, 8}, {2, 9, 8}, {2, 9, 5}},
              [](In in) { return tpa_decode(in[0], in[1], in[2], in[3], in[4], in[5]); });
  expect_found<tpa_decode_forward_kernel>(device, "o", decode);
  expect_found<tpa_decode_backward_kernel>(device, "d_bk", decode);
}

TEST_CASE_FIXTURE(EachDevice, "kernel check: an error stays an error, and the state is usable") {
  const KernelCheck check;
  const Tensor x = rand({3, 4}, f32, device), index = full({2}, 7, i64, device);
  expect_error([&] { index_select(x, 0, index); }, "index_select", "7");
  {
    const Planted<pointwise_kernel> fault(device, "o");
    expect_error([&] { exp(x); }, "exp", "kernel pointwise: o[2, 3] is", "the reference has",
                 "allowed");
  }
  CHECK_NOTHROW(exp(x));
}

TEST_CASE_FIXTURE(EachDevice, "kernel check: trains with recompute without a word") {
  const KernelCheck check;
  const Tensor x = randn({6, 8}, bf16, device);
  nn::Linear in(8, 8), out(8, 8);
  in.to(bf16), out.to(bf16);
  in.to(device), out.to(device);
  nn::AdamW optimizer(in.parameters(), {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    Tape tape;
    const Tensor h = recompute([&](In t) { return dropout(gelu(in(t[0])), 0.1); }, {x});
    tape.backward(mean(out(h)));
    optimizer.step();
    optimizer.zero_grad();
  }
}
