// Lines of the lengths that CUDA kernels treat differently (a warp, a block, several passes), in
// every type, beside the reference.
#include <quipu/quipu.h>

#include <functional>
#include <utility>

#include "ops/loss_checks.h"
#include "quipu/core/kernel_modes.h"

using namespace quipu;
using namespace quipu::loss_testing;

namespace {

/// Forward and backward, each kernel beside the reference.
void run_checked(const Function& f, const Inputs& in) {
  for (const Tensor& x : in) x.set_requires_grad(is_floating(x.dtype()));
  const KernelCheck check;
  Tape tape;
  const Tensor o = f(in);
  const Tensor upstream = linspace(0.25, 1, o.numel(), f32, o.device()).to(o.dtype());
  tape.backward(o, {upstream.reshape(o.shape()), false});
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "long lines: softmax along rows and columns") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const std::int64_t length : {600, 1000, 1500, 2200, 3000, 5000, 12000, 20000}) {
      CAPTURE(dtype);
      CAPTURE(length);
      const auto rows = [](const Inputs& in) { return act(in[0], Act::softmax, 1); };
      const auto columns = [](const Inputs& in) { return act(in[0], Act::softmax, 0); };
      CHECK_NOTHROW(run_checked(rows, {normals({1, length}, dtype, device)}));
      CHECK_NOTHROW(run_checked(columns, {normals({length, 8}, dtype, device)}));
    }
  }
  const auto row = [](const Inputs& in) { return act(in[0], Act::softmax, 1); };
  CHECK_NOTHROW(run_checked(row, {normals({1, 40000}, f16, device)}));
}

TEST_CASE_FIXTURE(EachDevice, "long lines: rms_norm and cross_entropy") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const std::int64_t length : {64, 1000, 2000, 3000, 4000, 6000, 12000}) {
      CAPTURE(dtype);
      CAPTURE(length);
      const Tensor x = normals({2, length}, dtype, device);
      const auto norm = [](const Inputs& in) { return rms_norm(in[0], in[1]); };
      CHECK_NOTHROW(run_checked(norm, {x, normals({length}, dtype, device, 5)}));
      // A weight that does not begin where 16 bytes do.
      const Tensor aside = normals({length + 1}, dtype, device, 5).slice(0, 1);
      CHECK_NOTHROW(run_checked([&](const Inputs& in) { return rms_norm(in[0], aside); }, {x}));
      const auto loss = [](const Inputs& in) { return cross_entropy(in[0], in[1]); };
      CHECK_NOTHROW(run_checked(loss, {x, from({3, 60}, {2}, i64, device)}));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "long lines: rows that begin anywhere") {
  using Call = std::pair<const char*, std::function<Tensor(const Tensor&)>>;
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const int length : {131, 1500, 2053}) {
      CAPTURE(dtype);
      CAPTURE(length);
      const Tensor targets = from({0, 60, length - 1}, {3}, i64, device);
      const Tensor weight = normals({length}, dtype, device, 5);
      const Call calls[] = {
          {"cross_entropy", [&](const Tensor& x) { return cross_entropy(x, targets); }},
          {"softmax", [](const Tensor& x) { return act(x, Act::softmax, 1); }},
          {"max", [](const Tensor& x) { return max(x, 1); }},
          {"cumsum", [](const Tensor& x) { return cumsum(x, 1); }},
          {"top_k", [](const Tensor& x) { return top_k(x, 5, 1).values; }},
          {"rms_norm", [&](const Tensor& x) { return rms_norm(x, weight); }},
          {"layer_norm", [](const Tensor& x) { return layer_norm(x); }},
      };
      const Tensor wide = normals({3, 2 * length}, dtype, device);
      for (const Tensor& x : {normals({3, length}, dtype, device), wide.slice(1, 1, 1 + length),
                              wide.slice(1, 5, 5 + length), wide.slice(1, 0, {}, 2)}) {
        for (const Call& call : calls) {
          CAPTURE(std::string(call.first));
          CHECK_NOTHROW(
              run_checked([&](const Inputs& in) { return call.second(in[0]); }, {x.detach()}));
        }
      }
    }
  }
}

/// Few rows, which several blocks share, and rows that are read twice.
TEST_CASE_FIXTURE(EachDevice, "long lines: long rows that begin anywhere") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    for (const std::int64_t length : {5003, 9001, 20011, 70003}) {
      CAPTURE(length);
      const auto softmax = [](const Inputs& in) { return act(in[0], Act::softmax, 1); };
      const auto largest = [](const Inputs& in) { return max(in[0], 1); };
      const auto norm = [](const Inputs& in) { return layer_norm(in[0]); };
      // Rows of input and output begin alike, or not.
      const Tensor behind = normals({1, length + 3}, dtype, device).slice(1, 3).detach();
      for (const Tensor& x : {normals({2, length}, dtype, device), behind}) {
        x.slice(1, length - 1).fill_(9);  // the largest is the last
        CHECK_NOTHROW(run_checked(softmax, {x}));
        CHECK_NOTHROW(run_checked(largest, {x}));
      }
      CHECK_NOTHROW(run_checked(norm, {behind}));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "long lines: sums") {
  for (const DType dtype : {f64, f32, bf16, f16, i64}) {
    CAPTURE(dtype);
    const Tensor x = (normals({4, 4096}, f32, device) * 4).to(dtype);
    const Tensor aside = x.reshape({2048, 8});
    const KernelCheck check;
    CHECK_NOTHROW(sum(x, {1}));
    CHECK_NOTHROW(sum(aside, {0}));
    CHECK_NOTHROW(sum(x, {}));
  }
}
