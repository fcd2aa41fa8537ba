// Backward of a softmax finds its weights again, as exponentials of scores less the log-sum-exp of
// forward. Where one score exceeds the others by far, its weight is 1 to the last digit, and stays
// so only if backward rounds that score as forward did: a difference in the last place of a score
// of 1000 is 6e-5 in f32.
#include "ops/loss_checks.h"
#include "quipu/core/kernel_modes.h"
#include "quipu/ops/attention.h"
#include "quipu/ops/loss/linear_cross_entropy.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/tpa_decode/tpa_decode.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

namespace {

Tensor positive(const Shape& shape, DType dtype, Device device, std::uint64_t seed) {
  return (abs(normals(shape, f64, device, seed)) + 0.3).to(dtype);
}

/// By the reference, in f64.
std::vector<Tensor> exact_outcome(const Function& f, const Inputs& in) {
  const ReferenceKernels reference;
  return outcome(f, as(f64, in));
}

/// The results that have no score as a factor are as by the reference.
void check_weights(const Function& f, const Inputs& in, const std::vector<std::size_t>& results) {
  const auto got = outcome(f, in), exact = exact_outcome(f, in);
  for (const std::size_t k : results) {
    CAPTURE(k);
    CAPTURE(to_string(in[0].device()));
    const DType dtype = got[k].dtype();
    const double off = distance(got[k], exact[k]);
    CHECK_MESSAGE(off <= (is_reduced(dtype) ? 1 : 16) * epsilon_of(dtype), off);
  }
}

/// The factor that gives the least of these products the score.
double scale_for(double score, const Tensor& products) {
  return score / min(products.to(f64)).item();
}

struct TpaSizes {
  std::int64_t m, h, r, d, e, rank;
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "a weight of 1: tpa_decode") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const TpaSizes& s : {TpaSizes{40, 8, 8, 16, 16, 1}, TpaSizes{1, 5, 3, 17, 15, 1},
                              TpaSizes{600, 3, 2, 8, 8, 1}, TpaSizes{35, 8, 5, 128, 8, 2},
                              TpaSizes{20, 40, 4, 8, 136, 1}, TpaSizes{17, 34, 3, 300, 8, 1}}) {
      const Tensor aq = positive({1, 1, s.h, s.r}, dtype, device, 1),
                   bq = positive({1, 1, s.r, s.d}, dtype, device, 2),
                   ak = positive({1, s.m, s.rank, s.h}, dtype, device, 3),
                   bk = zeros({1, s.m, s.rank, s.d}, dtype, device);
      bk.slice(1, s.m / 2, s.m / 2 + 1).copy_from(positive({1, 1, s.rank, s.d}, dtype, device, 4));
      const Tensor queries = matmul(aq.to(f64)[0], bq.to(f64)[0]);  // (1, h, d)
      const Tensor key = bk.slice(1, s.m / 2, s.m / 2 + 1).to(f64)[0][0],
                   factor = ak.slice(1, s.m / 2, s.m / 2 + 1).to(f64)[0][0];
      const Tensor scores = sum(matmul(key, queries[0].t()) * factor, {0});
      for (const double score : {60.0, 1000.0}) {
        CAPTURE(dtype);
        CAPTURE(s.d);
        CAPTURE(score);
        const double scale = scale_for(score, scores);
        const auto f = [&](const Inputs& in) {
          return tpa_decode(in[0], in[1], in[2], in[3], in[4], in[5],
                            {.scale = scale, .scale_q = 1});
        };
        check_weights(f,
                      {aq, ak, normals({1, s.m, s.rank, s.h}, dtype, device, 5), bq, bk,
                       normals({1, s.m, s.rank, s.e}, dtype, device, 6)},
                      {0, 3, 6});
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "a weight of 1: attention") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const std::int64_t d : {17, 128}) {
      const std::int64_t n = 20, m = 30;
      const Tensor q = positive({1, 2, n, d}, dtype, device, 1),
                   k = zeros({1, 1, m, d}, dtype, device);
      k.slice(2, 3, 4).copy_from(positive({1, 1, 1, d}, dtype, device, 2));
      const Tensor scores = matmul(q.to(f64), k.slice(2, 3, 4).to(f64).transpose(2, 3));
      for (const double score : {60.0, 1000.0}) {
        CAPTURE(dtype);
        CAPTURE(d);
        CAPTURE(score);
        const double scale = scale_for(score, scores);
        const auto f = [&](const Inputs& in) {
          return attention(in[0], in[1], in[2], {.causal = score > 100, .scale = scale});
        };
        check_weights(f, {q, k, normals({1, 1, m, d}, dtype, device, 3)}, {0, 3});
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "a weight of 1: linear_cross_entropy") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const std::int64_t n = 37, d = 67, classes = 91;
    const Tensor x = positive({n, d}, f64, device, 1), weight = zeros({classes, d}, f64, device);
    weight.slice(0, 5, 6).copy_from(positive({1, d}, f64, device, 2));
    for (const double score : {60.0, 1000.0}) {
      CAPTURE(dtype);
      CAPTURE(score);
      const double scale = scale_for(score, matmul(x, weight.slice(0, 5, 6).t()));
      const auto f = [](const Inputs& in) {
        return linear_cross_entropy(in[0], in[1], in[2], {.reduction = LossReduction::none});
      };
      // d_x is a difference of rows of the weights, the largest of which is the score's.
      check_weights(f, {x.to(dtype), (weight * scale).to(dtype), full({n}, 7, i64, device)},
                    {1, 2});
    }
  }
}
