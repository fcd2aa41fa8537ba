// Counted launches on the emulated device: a step of an optimizer does not cost one a parameter.
#include <quipu/quipu.h>

#include <cmath>

#include "support/support.h"

#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

const Device cuda("cuda");

Tensor values(const Shape& shape, DType dtype, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, f32, cuda, generator).to(dtype);
}

/// Parameters of many shapes, in turn of the types, reduced ones with and without a master copy.
std::vector<ParameterUpdate> parameters(int count, const std::vector<DType>& types) {
  const Shape shapes[] = {{}, {7}, {64, 32}, {3, 5, 11}, {768}, {9001}};
  std::vector<ParameterUpdate> all;
  for (int i = 0; i < count; ++i) {
    const auto k = static_cast<std::size_t>(i);
    const DType dtype = types[k % types.size()];
    const Shape& shape = shapes[k % std::size(shapes)];
    ParameterUpdate u;
    u.parameter = values(shape, dtype, k);
    u.gradient = values(shape, i % 4 == 0 && dtype != f64 ? f32 : dtype, k + 1000);
    u.first = values(shape, compute_type(dtype), k + 2000);
    u.second = abs(values(shape, compute_type(dtype), k + 3000));
    u.step = full({}, i, i64, cuda);
    if (is_reduced(dtype) && i % 3 != 0) u.master = u.parameter.to(f32);
    all.push_back(u);
  }
  return all;
}

std::vector<ParameterUpdate> copies_of(const std::vector<ParameterUpdate>& list) {
  std::vector<ParameterUpdate> result = list;
  for (ParameterUpdate& u : result) {
    for (Tensor* t : {&u.parameter, &u.first, &u.second, &u.master, &u.step}) {
      if (t->defined()) *t = t->clone();
    }
  }
  return result;
}

/// The same values behind an element that does not belong to them: dense, but not aligned.
Tensor shifted(const Tensor& t) {
  if (!t.defined()) return t;
  const Tensor place = zeros({t.numel() + 1}, t.dtype(), t.device());
  return place.slice(0, 1).view(t.shape()).copy_from(t);
}

void check_same(const std::vector<ParameterUpdate>& a, const std::vector<ParameterUpdate>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i].parameter, b[i].parameter));
    CHECK(same_bits(a[i].first, b[i].first));
    CHECK(same_bits(a[i].second, b[i].second));
    if (a[i].master.defined()) CHECK(same_bits(a[i].master, b[i].master));
    CHECK(a[i].step.item_int() == b[i].step.item_int());
  }
}

template <class Update>
std::size_t launches_of(Update update) {
  return traffic_of(update).launches.size();
}

}  // namespace

TEST_CASE("launches: an optimizer's step has a handful, whatever the number of parameters") {
  if (!is_available(cuda)) return;
  const std::vector<ParameterUpdate> mixed = parameters(150, {f32, bf16, f16});
  CHECK(launches_of([&] { adamw_update(mixed, {}); }) <= 3);
  CHECK(launches_of([&] { lion_update(mixed, {}); }) <= 2);
  CHECK(launches_of([&] { sgd_update(mixed, {.momentum = 0.9}); }) <= 2);
  CHECK(launches_of([&] { sgd_update(mixed, {}); }) <= 2);
  const std::vector<ParameterUpdate> wide = parameters(150, {f32, f64, bf16});
  CHECK(launches_of([&] { adamw_update(wide, {}); }) <= 4);
  std::vector<Tensor> gradients;
  for (const ParameterUpdate& u : wide) gradients.push_back(u.gradient);
  CHECK(launches_of([&] { global_norm(gradients); }) <= 2);
}

TEST_CASE("launches: parameters in one launch get the bits that each gets alone") {
  if (!is_available(cuda)) return;
  // more than the steps of one launch
  const std::vector<ParameterUpdate> together = parameters(270, {f32, bf16, f64, f16});
  const std::vector<ParameterUpdate> alone = copies_of(together);
  std::vector<ParameterUpdate> unaligned = copies_of(together);
  for (ParameterUpdate& u : unaligned) u.parameter = shifted(u.parameter);
  const Tensor scale = full({}, 0.5, f32, cuda);
  adamw_update(together, {}, {.scale = scale});
  for (const ParameterUpdate& u : alone) adamw_update({&u, 1}, {}, {.scale = scale});
  adamw_update(unaligned, {}, {.scale = scale});
  check_same(together, alone);
  check_same(together, unaligned);
}

TEST_CASE("launches: the norm of tensors in two tables, across parts and of any layout") {
  if (!is_available(cuda)) return;
  std::vector<Tensor> tensors;
  double squares = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const DType dtype = i % 5 == 0 ? f64 : i % 5 == 1 ? bf16 : f32;
    Tensor t =
        values(i % 7 == 3 ? Shape{40, 50} : Shape{static_cast<std::int64_t>(997 + i)}, dtype, i);
    if (i % 7 == 3) t = t.transpose(0, 1);
    if (i % 11 == 4) t = t.slice(0, 1, t.dim() == 1 ? 900 : 30);
    tensors.push_back(t);
    for (const double v : t.to_vector()) squares += v * v;
  }
  const Tensor norm = global_norm(tensors);
  CHECK(norm.dtype() == f64);
  // each of 400 000 squares is rounded, and so is every sum of 400 000 / 256 of them in a row
  CHECK(std::abs(norm.item() / std::sqrt(squares) - 1) <= 1600 * epsilon_of(f64));
  CHECK(same_bits(norm, global_norm(tensors)));
}
