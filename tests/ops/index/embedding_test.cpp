// Rows of a table: values, gradients, memory, messages.
#include "quipu/ops/index/embedding.h"

#include "ops/loss_checks.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/pointwise/arithmetic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

struct Lookup {
  Shape weight, indices;

  /// Some rows come several times, some never.
  Inputs inputs(DType dtype, Device device) const {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < numel(indices); ++i) values.push_back(i * i * 5 % weight[0]);
    return {normals(weight, dtype, device), from(values, indices, i64, device)};
  }
  std::string name() const { return to_string(weight) + " at " + to_string(indices); }
};

std::vector<Lookup> small_cases() {
  std::vector<Lookup> cases;
  for (const Shape& weight : {Shape{1, 1}, Shape{5, 3}, Shape{7, 1}, Shape{3, 129}, Shape{4, 0}}) {
    for (const Shape& indices :
         {Shape{}, Shape{1}, Shape{4}, Shape{2, 3}, Shape{0}, Shape{3, 0, 2}, Shape{2, 1, 3, 1}}) {
      cases.push_back({weight, indices});
    }
  }
  return cases;
}

Tensor lookup(const Inputs& in) {
  return embedding(in[0], in[1]);
}
Tensor composed(const Inputs& in) {
  Shape rows = in[1].shape();
  rows.push_back(in[0].size(1));
  return index_select(in[0], 0, in[1].flatten()).reshape(rows);
}

Lookup large(Device device) {
  return is_emulated(device) ? Lookup{{700, 70}, {20, 97}} : Lookup{{3000, 70}, {40, 97}};
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "embedding: gradients") {
  for (const Lookup& c : small_cases()) {
    CAPTURE(c.name());
    expect_gradients(lookup, c.inputs(f64, device));
  }
}

TEST_CASE_FIXTURE(EachDevice, "embedding: agrees with its composition") {
  std::vector<Lookup> cases = small_cases();
  cases.push_back(large(device));
  for (const Lookup& c : cases) {
    CAPTURE(c.name());
    check_composition(lookup, composed, c.inputs(f64, device), 0);
    const Inputs in = c.inputs(bf16, device);
    const auto got = outcome(lookup, in), wanted = outcome(composed, in);
    CHECK(same_bits(got[0], wanted[0]));
    CHECK(same_bits(got[1], wanted[1]));
    CHECK(same_bits(lookup({in[0], in[1].to(i32)}), wanted[0]));
  }
}

TEST_CASE_FIXTURE(EachDevice, "embedding: any strides") {
  for (const Lookup& c : small_cases()) {
    CAPTURE(c.name());
    check_layouts(lookup, c.inputs(f64, device));
  }
  const Tensor indices = from({std::int64_t{2}, std::int64_t{0}, std::int64_t{2}}, i64, device);
  const auto strided = [&](const Inputs& in) {
    return embedding(in[0].t().slice(1, 0, 4, 2), indices.unsqueeze(1).expand({3, 2}))
        .transpose(0, 2);
  };
  expect_gradients(strided, {normals({4, 3}, f64, device)});
}

TEST_CASE_FIXTURE(EachDevice, "embedding: backward without a tape adds to what is there") {
  for (const Lookup& c : small_cases()) {
    CAPTURE(c.name());
    const Inputs in = c.inputs(f64, device);
    const auto wanted = outcome(lookup, in);
    const Tensor up = normals(wanted[0].shape(), f32, device, 7).to(bf16).to(f64);
    const Tensor d = ones(c.weight, f64, device), fresh = full(c.weight, 77, f64, device);
    embedding_backward(in[1], up, Grad::add_to(d));
    embedding_backward(in[1], up, Grad::write_to(fresh));
    CHECK(allclose(d.add_(-1), wanted[1], {1e-12, 1e-12}));
    CHECK(same_bits(fresh, wanted[1]));
  }
}

TEST_CASE_FIXTURE(EachDevice, "embedding: keeps the indices alone") {
  for (const Lookup& c : small_cases()) {
    const Inputs in = c.inputs(bf16, device);
    CHECK(saved_bytes(lookup, in) == in[1].nbytes());
  }
  Tape tape;
  embedding(normals({3, 2}, f32, device), zeros({4}, i64, device));
  CHECK(tape.size() == 0);
}

TEST_CASE_FIXTURE(EachDevice, "embedding: the same bits for any number of threads") {
  for (const DType dtype : {f32, bf16}) check_threads(lookup, large(device).inputs(dtype, device));
}

TEST_CASE_FIXTURE(EachDevice, "embedding: meta knows the peak") {
  for (const DType dtype : {f32, bf16})
    check_peak_on_meta(lookup, large(device).inputs(dtype, device));
}

TEST_CASE("embedding: says what does not fit") {
  const Tensor weight = ones({5, 3}), indices = zeros({2, 3}, i64), d = zeros({5, 3});
  expect_error([&] { embedding(weight, indices.to(f32)); }, "embedding", "indices is f32");
  expect_error([&] { embedding(ones({5}), indices); }, "embedding", "weight has shape (5,)");
  expect_error([&] { embedding(weight.to(Device("meta:cpu")), indices); }, "embedding", "meta");
  for (const std::int64_t wrong : {5, -1}) {
    const Tensor bad = zeros({2, 3}, i64);
    bad[1][2].fill_(wrong);
    const std::string text = "indices at (1, 2) is " + std::to_string(wrong);
    expect_error([&] { embedding(weight, bad); }, "embedding", text, "weight has 5 rows");
    expect_error(
        [&] {
          embedding_backward(bad, ones({2, 3, 3}), Grad::write_to(d));
        },
        "embedding", text);
  }
  expect_error([&] { embedding(ones({0, 3}), zeros({1}, i64)); }, "weight has 0 rows");
  expect_error(
      [&] {
        embedding_backward(indices, ones({2, 3}), Grad::write_to(d));
      },
      "embedding_backward", "d_o has shape (2, 3)", "(2, 3, 3)");
}
