// Attention of one token over factored keys and values (Zhang et al. 2025, arXiv:2501.06425), head
// by head on keys and values that are formed in full: with
//   q = sum over r of aq[r] bq[r],  k[m] = sum over ranks of ak[m] bk[m],
//   v[m] = value_scale times that of av[m] bv[m]
// it is o = P v, P = softmax(score_scale q k^T) over the entries of the batch entry's length. With
// D = score_scale P * (d_o v^T - mean), where mean is o d_o, the gradients are
//   d_v = P d_o,  d_q = D k,  d_k = D q
// and those of the factors of a product are each what the other one makes of that.
#include "quipu/cpu/reference/attend.h"
#include "quipu/ops/tpa_decode/kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// The factors of keys or values, or their gradients: (b, m, rank, h) and (b, m, rank, features).
/// Entries are counted through the batch.
struct Factors {
  Factors(const View& a, const View& b) : of_heads(read(a)), of_features(read(b)) {}
  Factors(const Grad& a, const Grad& b) {
    if (a.wanted()) of_heads = Values(a.view.shape);
    if (b.wanted()) of_features = Values(b.view.shape);
  }

  /// The products of `count` entries for a head: (count, features).
  Matrix products(std::int64_t first, std::int64_t count, std::int64_t head) {
    Matrix p(count, of_features.last());
    for (std::int64_t j = 0; j < count; ++j) {
      p.row(j) = of_heads.matrix(first + j).col(head).transpose() * of_features.matrix(first + j);
    }
    return p;
  }
  /// From the gradients of products: those of the factors are added to `d`.
  void products_back(const Matrix& d_products, std::int64_t first, std::int64_t head, Factors& d) {
    for (std::int64_t j = 0; j < d_products.rows(); ++j) {
      const auto d_product = d_products.row(j);
      if (d.has_heads()) {
        d.of_heads.matrix(first + j).col(head) +=
            of_features.matrix(first + j) * d_product.transpose();
      }
      if (d.has_features()) {
        d.of_features.matrix(first + j) += of_heads.matrix(first + j).col(head) * d_product;
      }
    }
  }

  bool has_heads() const { return !of_heads.shape.empty(); }
  bool has_features() const { return !of_features.shape.empty(); }
  Values of_heads, of_features;
};

/// How many entries of each batch entry attend.
WholeArray lengths_of(const TpaInputs& in) {
  const std::int64_t all = in.ak.size(1);
  if (!in.lengths.defined) return WholeArray::Constant(in.aq.size(0), all);
  const WholeArray lengths = read_whole(in.lengths);
  for (std::int64_t b = 0; b < lengths.size(); ++b) {
    check(lengths[b] >= 0 && lengths[b] <= all, "lengths at ", Dims{b}, " is ", lengths[b],
          ", but there are ", all, " entries");
  }
  return lengths;
}

void tpa_decode_forward(const TpaInputs& in, View o, const LogSums& sums, View) {
  Values aq = read(in.aq), bq = read(in.bq), out(o.shape);
  Factors k(in.ak, in.bk), v(in.av, in.bv);
  const WholeArray lengths = lengths_of(in);
  const std::int64_t heads = o.size(1);
  Array largest(o.size(0) * heads), log_sum(largest.size());
  for (std::int64_t b = 0; b < o.size(0); ++b) {
    const Matrix q = aq.matrix(b) * bq.matrix(b);
    const std::int64_t first = b * in.ak.size(1);
    for (std::int64_t h = 0; h < heads; ++h) {
      const Vector scores =
          in.score_scale * k.products(first, lengths[b], h) * q.row(h).transpose();
      const Attended a = attend(scores, in.value_scale * v.products(first, lengths[b], h));
      // Scores that are all -infinity are as if nothing attends.
      if (a.log_sum != minus_infinity) out.matrix(b).row(h) = a.o;
      largest[b * heads + h] = a.largest;
      log_sum[b * heads + h] = a.log_sum;
    }
  }
  store(o, out);
  store(sums, largest, log_sum);
}

void tpa_decode_backward(const TpaInputs& in, View o, const LogSums& sums, View d_o,
                         const TpaInputGrads& d, View) {
  Values aq = read(in.aq), bq = read(in.bq), out = read(o), up = read(d_o);
  Values d_aq(in.aq.shape), d_bq(in.bq.shape);
  Factors k(in.ak, in.bk), v(in.av, in.bv), d_k(d.ak, d.bk), d_v(d.av, d.bv);
  const WholeArray lengths = lengths_of(in);
  const KeptLogSums kept(sums);
  for (std::int64_t b = 0; b < d_o.size(0); ++b) {
    const Matrix q = aq.matrix(b) * bq.matrix(b);
    const std::int64_t first = b * in.ak.size(1);
    for (std::int64_t h = 0; h < d_o.size(1); ++h) {
      const Row d_row = up.matrix(b).row(h);
      const Matrix keys = k.products(first, lengths[b], h);
      const Vector weights =
          kept.weights(in.score_scale * keys * q.row(h).transpose(), b * d_o.size(1) + h);
      v.products_back(in.value_scale * weights * d_row, first, h, d_v);
      if (!d.of_scores()) continue;
      const Matrix values = in.value_scale * v.products(first, lengths[b], h);
      const double mean = out.matrix(b).row(h).dot(d_row);
      const Vector d_scores = in.score_scale * attend_back(weights, values, d_row, mean);
      const Row d_q = d_scores.transpose() * keys;
      d_aq.matrix(b).row(h) = d_q * bq.matrix(b).transpose();
      d_bq.matrix(b) += aq.matrix(b).row(h).transpose() * d_q;
      k.products_back(d_scores * q.row(h), first, h, d_k);
    }
  }
  store(d.aq, d_aq), store(d.bq, d_bq);
  store(d.ak, d_k.of_heads), store(d.bk, d_k.of_features);
  store(d.av, d_v.of_heads), store(d.bv, d_v.of_features);
}

}  // namespace
}  // namespace reference

void register_reference_tpa_decode() {
  tpa_decode_forward_kernel.provide(Variant::reference, reference::tpa_decode_forward);
  tpa_decode_backward_kernel.provide(Variant::reference, reference::tpa_decode_backward);
}

}  // namespace quipu::detail
