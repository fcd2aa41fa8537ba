// The mean square error: values, gradients, memory, messages.
#include "quipu/ops/loss/mse_loss.h"

#include "loss_checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

constexpr LossReduction all_reductions[] = {LossReduction::mean, LossReduction::sum,
                                            LossReduction::none};

std::vector<Shape> shapes() {
  return {{}, {1}, {7}, {5, 3}, {2, 3, 4}, {1, 1, 1}, {0}, {3, 0, 2}, {33}, {129}, {2, 1, 3, 2}};
}
Inputs pair_of(const Shape& shape, DType dtype, Device device) {
  return {normals(shape, dtype, device, 1), normals(shape, dtype, device, 2)};
}
Function fused(LossReduction reduction) {
  return [=](const Inputs& in) { return mse_loss(in[0], in[1], reduction); };
}
Function composed(LossReduction reduction) {
  return [=](const Inputs& in) {
    const Tensor difference = (in[0] - in[1]).to(compute_type(in[0].dtype()));
    const Tensor squares = difference * difference;
    if (reduction == LossReduction::none) return squares;
    const auto count = static_cast<double>(std::max<std::int64_t>(1, in[0].numel()));
    return sum(squares) * (reduction == LossReduction::mean ? 1 / count : 1);
  };
}

/// Calls f(shape, reduction) for all of them.
template <class F>
void each_case(F f) {
  for (const Shape& shape : shapes()) {
    for (const LossReduction reduction : all_reductions) {
      CAPTURE(to_string(shape));
      CAPTURE(static_cast<int>(reduction));
      f(shape, reduction);
    }
  }
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "mse_loss: gradients of every subset") {
  each_case([&](const Shape& shape, LossReduction reduction) {
    expect_gradients_of_subsets(fused(reduction), pair_of(shape, f64, device));
  });
}

TEST_CASE_FIXTURE(EachDevice, "mse_loss: agrees with its composition") {
  each_case([&](const Shape& shape, LossReduction reduction) {
    check_composition(fused(reduction), composed(reduction), pair_of(shape, f64, device));
  });
  const Inputs large = pair_of({sized<std::int64_t>(300, 20), 1001}, f64, device);
  for (const LossReduction r : all_reductions) check_composition(fused(r), composed(r), large);
}

TEST_CASE_FIXTURE(EachDevice, "mse_loss: f16 neither overflows nor vanishes") {
  const Tensor x = full({1000}, 300, f16, device).set_requires_grad();
  Tape tape;
  const Tensor loss = mse_loss(x, zeros({1000}, f16, device));
  CHECK(loss.dtype() == f32);
  CHECK(loss.item() == 90000);
  tape.backward(loss);
  CHECK(allclose(x.grad(), full({1000}, 0.6, f16, device)));
}

TEST_CASE_FIXTURE(EachDevice, "mse_loss: any strides") {
  each_case([&](const Shape& shape, LossReduction reduction) {
    check_layouts(fused(reduction), pair_of(shape, f64, device));
  });
  const auto parts_of_one = [](const Inputs& in) {
    return mse_loss(in[0].slice(1, 0, 3), in[0].slice(1, 2, 5)) +
           mse_loss(in[0], in[0].select(0, 0).expand({4, 5}));
  };
  expect_gradients(parts_of_one, {normals({4, 5}, f64, device)});
}

TEST_CASE_FIXTURE(EachDevice, "mse_loss: backward without a tape adds to what is there") {
  each_case([&](const Shape& shape, LossReduction reduction) {
    const Inputs in = pair_of(shape, f64, device);
    const auto wanted = outcome(fused(reduction), in);
    const Tensor up = normals(wanted[0].shape(), f32, device, 7).to(bf16).to(f64);
    const Tensor d_x = ones(shape, f64, device), d_y = full(shape, 77, f64, device);
    mse_loss_backward(in[0], in[1], up, Grad::add_to(d_x), Grad::write_to(d_y), reduction);
    CHECK(allclose(d_x.add_(-1), wanted[1], {1e-12, 1e-12}));
    CHECK(same_bits(d_y, wanted[2]));
  });
}

TEST_CASE_FIXTURE(EachDevice, "mse_loss: keeps x and y") {
  each_case([&](const Shape& shape, LossReduction reduction) {
    for (const DType dtype : {f64, f32, bf16}) {
      const Inputs in = pair_of(shape, dtype, device);
      CHECK(saved_bytes(fused(reduction), in) == in[0].nbytes() + in[1].nbytes());
    }
  });
}

TEST_CASE_FIXTURE(EachDevice, "mse_loss: the same bits for any number of threads") {
  for (const DType dtype : {f32, bf16}) {
    for (const LossReduction r : all_reductions) {
      check_threads(fused(r), pair_of({3, sized<std::int64_t>(70001, 5001)}, dtype, device));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice,
                  "mse_loss: meta knows the peak, which is no higher than the composition's") {
  for (const LossReduction r : all_reductions) {
    const Inputs in = pair_of({30, 1001}, f32, device);
    check_peak_on_meta(fused(r), in);
    CHECK(training_peak(fused(r), in, device) <= training_peak(composed(r), in, device));
  }
}

TEST_CASE("mse_loss: says what does not fit") {
  const Tensor x = ones({2, 3}), d = zeros({2, 3});
  expect_error([] { mse_loss(arange(3), arange(3)); }, "mse_loss", "x is i64");
  expect_error([&] { mse_loss(x, ones({3})); }, "mse_loss", "y has shape (3,)", "(2, 3)");
  expect_error([&] { mse_loss(x, x.to(f64)); }, "mse_loss", "y is f64");
  expect_error([&] { mse_loss(x, x.to(Device("meta:cpu"))); }, "mse_loss", "meta");
  expect_error([&] { mse_loss_backward(x, x, ones({2}), {}, {}); }, "d_o has shape (2,)");
  expect_error([&] { mse_loss_backward(x, x, ones({}), Grad::write_to(d[0]), {}); },
               "d_x has shape (3,)");
}
