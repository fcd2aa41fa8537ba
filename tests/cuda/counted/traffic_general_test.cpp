// Counted traffic of the general operators on the emulated device: every operand of a dense
// operation moves once, in whole sectors.
#include <quipu/quipu.h>

#include "support/support.h"

#include "quipu/ops/norm_kernels.h"
#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

const Device cuda("cuda");

Tensor values(const Shape& shape, DType dtype) {
  Generator generator(3);
  return randn(shape, f32, cuda, generator).to(dtype);
}

/// What f moves, as bytes per element of n.
template <class F>
void check_traffic(std::int64_t n, double bytes_per_element, F f) {
  const Traffic t = traffic_of(f);
  check_bytes(t, bytes_per_element * static_cast<double>(n), 0.02);
  CHECK(faults_of(t) == "");
}

}  // namespace

TEST_CASE("traffic: pointwise functions and casts") {
  const std::int64_t n = 64 * 1024;
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(to_string(dtype));
    const Tensor a = values({64, 1024}, dtype), b = values({64, 1024}, dtype);
    const auto size = static_cast<double>(size_of(dtype));
    check_traffic(n, 3 * size, [&] { a + b; });
    check_traffic(n, 2 * size, [&] { exp(a); });
    check_traffic(n, 2 * size, [&] { a.add_(1); });
    check_traffic(n, 3 * size, [&] { a.add_(b, 0.5); });
    for (const DType other : {f64, f32, bf16, i64, u8}) {
      CAPTURE(to_string(other));
      const auto both = static_cast<double>(size_of(dtype) + size_of(other));
      if (other != dtype) check_traffic(n, both, [&] { a.to(other); });
    }
  }
}

TEST_CASE("traffic: sums, running sums and extremes read once") {
  const std::int64_t rows = 64, columns = 2048, n = rows * columns;
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(to_string(dtype));
    const Tensor x = values({rows, columns}, dtype);
    const auto size = static_cast<double>(size_of(dtype));
    check_traffic(n, size, [&] { sum(x, 1); });
    check_traffic(n, size, [&] { sum(x, 0); });
    check_traffic(n, size, [&] { max(x, 1); });
    check_traffic(n, 2 * size, [&] { cumsum(x, 1); });
    check_traffic(n, 2 * size, [&] { cumsum(x, 0); });
  }
}

/// Requests of warps for device memory.
template <class F>
double requests_of(F f) {
  const emulator::Counters c = traffic_of(f).counters;
  return static_cast<double>(c.load.requests + c.store.requests);
}

/// Rows of a vocabulary that is no multiple of 8 begin anywhere; those beside them do not.
TEST_CASE("traffic: rows that begin anywhere move 16 bytes a lane, as others do") {
  const std::int64_t rows = 4, vocabulary = 50257, even = 50264;
  const Tensor targets = zeros({rows}, i64, cuda);
  const auto check_requests = [&](const char* name, double most, auto f) {
    CAPTURE(name);
    const auto run = [&](std::int64_t n) {
      const Tensor x = values({rows, n}, bf16).set_requires_grad();
      return requests_of([&] { f(x); });
    };
    CHECK(run(vocabulary) <= most * run(even));
    return run(even);
  };
  const double least = static_cast<double>(rows * even * 2) / 512;
  CHECK(check_requests("sum of rows", 1.05, [](const Tensor& x) { sum(x, 1); }) <= 1.05 * least);
  CHECK(check_requests("sum", 1.05, [](const Tensor& x) { sum(x); }) <= 1.05 * least);
  check_requests("cross_entropy", 1.2, [&](const Tensor& x) {
    Tape tape;
    tape.backward(cross_entropy(x, targets));
  });
  check_requests("softmax", 1.05, [](const Tensor& x) {
    Tape tape;
    tape.backward(act(x, Act::softmax, 1), {x.detach(), false});
  });
  check_requests("max", 1.2, [](const Tensor& x) { max(x, 1); });
  check_requests("cumsum", 1.2, [](const Tensor& x) { cumsum(x, 1); });
  check_requests("top_k", 1.2, [](const Tensor& x) { top_k(x, 5, 1); });
  check_requests("layer_norm", 1.2, [](const Tensor& x) {
    Tape tape;
    tape.backward(layer_norm(x), {x.detach(), false});
  });
  check_requests("sample", 1.2, [](const Tensor& x) { sample(x, {.top_k = 9}); });
  const Tensor columns = values({2048, 64}, bf16);
  CHECK(requests_of([&] { sum(columns, 0); }) <= 1.2 * 2048 * 64 * 2 / 512);
}

TEST_CASE("traffic: gradients of norms move x, d_o and d_x once, and the parts' sums") {
  const std::int64_t rows = 512, columns = 1024;
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(to_string(dtype));
    const Tensor x = values({rows, columns}, dtype).set_requires_grad();
    const Tensor weight = values({columns}, dtype).set_requires_grad();
    const Tensor bias = values({columns}, dtype).set_requires_grad();
    const Tensor d_o = values({rows, columns}, dtype);
    const auto check_backward = [&](double sums, double statistics, auto f) {
      for (const Tensor& leaf : {x, weight, bias}) leaf.zero_grad();  // else they are added to
      Tape tape;
      const Tensor o = f();
      const Traffic t = traffic_of([&] { tape.backward(o, {d_o, false}); });
      const auto parts = static_cast<double>(norm_backward_parts(DeviceKind::cuda, rows, columns));
      check_bytes(t,
                  3 * static_cast<double>(x.nbytes()) +
                      2 * parts * sums * 4 * static_cast<double>(columns) +
                      statistics * 4 * static_cast<double>(rows),
                  0.02);
      CHECK(faults_of(t) == "");
    };
    check_backward(1, 1, [&] { return rms_norm(x, weight); });
    check_backward(2, 2, [&] { return layer_norm(x, weight, bias); });
  }
}

TEST_CASE("traffic: random numbers and dropout") {
  const std::int64_t n = 64 * 1024;
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(to_string(dtype));
    const Tensor x = values({n}, dtype);
    const auto size = static_cast<double>(size_of(dtype));
    Generator generator(5);
    check_traffic(n, size, [&] { rand({n}, dtype, cuda, generator); });
    check_traffic(n, size, [&] { randn({n}, dtype, cuda, generator); });
    check_traffic(n, 2 * size, [&] { dropout(x, 0.5, generator); });
  }
}

TEST_CASE("traffic: rows of a table") {
  const std::int64_t rows = 512, columns = 256, n = rows * columns;
  const Tensor table = values({rows, columns}, bf16);
  Generator generator(7);
  const Tensor index = randperm(rows, cuda, generator);
  check_traffic(n, 4 + 8.0 / static_cast<double>(columns), [&] { index_select(table, 0, index); });
}

TEST_CASE("traffic: optimizers") {
  const std::int64_t n = 128 * 1024;
  const auto update = [&](DType dtype, bool has_master) {
    ParameterUpdate u;
    u.parameter = values({n}, dtype);
    u.gradient = values({n}, dtype);
    u.first = zeros({n}, f32, cuda);
    u.second = zeros({n}, f32, cuda);
    if (has_master) u.master = u.parameter.to(f32);
    u.step = zeros({}, i64, cuda);
    return u;
  };
  const std::vector<ParameterUpdate> plain{update(f32, false)}, mixed{update(bf16, true)};
  check_traffic(n, 28, [&] { adamw_update(plain, {}); });
  check_traffic(n, 20, [&] { lion_update(plain, {}); });
  check_traffic(n, 20, [&] { sgd_update(plain, {.momentum = 0.9}); });
  check_traffic(n, 28, [&] { adamw_update(mixed, {}); });  // 2 of the gradient, 2 of the parameter
  const std::vector<Tensor> gradients{plain[0].gradient};
  check_traffic(n, 4, [&] { global_norm(gradients); });
}
