// Linear attention with an output gate (ops/flao/flao.h has the papers), for each batch entry and
// head
//   kv = k~^T v~,  o = g~ * (q~ kv)
// where x~ is x with its activation and its position encoding (row_transform.h). The gradients are
//   d_g~ = d_o * (q~ kv),  d_q~ = (d_o * g~) kv^T,  d_kv = q~^T (d_o * g~),
//   d_k~ = v~ d_kv^T,  d_v~ = k~ d_kv
// and go back through encoding and activation.
#include "quipu/cpu/reference/row_transform.h"
#include "quipu/ops/flao/kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// One of q, k, v, g, (b, h, tokens, features).
class Input {
 public:
  /// x may be undefined where its values are not asked for, theta where no encoding is.
  Input(const View& x, const RowTransform& transform, const Shape& shape)
      : transform_(transform), heads_(shape[1]), x_(read(x)), terms_(shape) {
    if (transform.theta.defined) angles_ = find_angles(transform, heads_, shape[2], shape[3]);
  }

  /// x~ of matrix i, counted through batch and heads.
  Matrix transformed(std::int64_t i) {
    return encoded(activated(x_.matrix(i), transform_), angles(i), transform_.kind);
  }
  /// d_x from d_x~.
  Matrix transformed_back(std::int64_t i, const Matrix& d) {
    const Matrix d_y = encoded_back(d, angles(i), transform_.kind);
    if (transform_.act == Act::none) return d_y;
    terms_.matrix(i) = terms_of_activated_back(x_.matrix(i), d_y, transform_);
    return activated_back(x_.matrix(i), d_y, transform_);
  }
  /// How large the terms of d_x were.
  const Array& terms() const { return terms_.flat; }

 private:
  Matrix angles(std::int64_t i) {
    return transform_.kind == LrpeKind::none ? Matrix() : Matrix(angles_.matrix(i % heads_));
  }
  const RowTransform& transform_;
  std::int64_t heads_;
  Values x_, angles_, terms_;
};

void flao_forward(View q, View k, View v, View g, View kv, View qkv, View o, View,
                  const FlaoTransforms& transforms, const FlaoSizes&) {
  Input of_q(q, transforms.q, q.shape), of_k(k, transforms.k, k.shape);
  Input of_v(v, transforms.v, v.shape), of_g(g, transforms.g, g.shape);
  Values keys_values(kv.shape), product(o.shape), out(o.shape);
  for (std::int64_t i = 0; i < q.size(0) * q.size(1); ++i) {
    keys_values.matrix(i) = of_k.transformed(i).transpose() * of_v.transformed(i);
    product.matrix(i) = of_q.transformed(i) * keys_values.matrix(i);
    out.matrix(i) = of_g.transformed(i).cwiseProduct(product.matrix(i));
  }
  store(kv, keys_values);
  store(qkv, product);
  store(o, out);
}

void flao_backward(View d_o, const FlaoSaved& saved, View, const FlaoGrads& d, View,
                   const FlaoTransforms& transforms) {
  const FlaoSizes& s = saved.sizes;
  const std::int64_t b = d_o.size(0), h = d_o.size(1);
  const Shape of_queries{b, h, s.n, s.d}, of_keys{b, h, s.m, s.d}, of_values{b, h, s.m, s.e};
  Input q(saved.q, transforms.q, of_queries), k(saved.k, transforms.k, of_keys);
  Input v(saved.v, transforms.v, of_values), g(saved.g, transforms.g, d_o.shape);
  Values up = read(d_o), kept_kv = read(saved.kv), kept_qkv = read(saved.qkv);
  Values d_q(of_queries), d_k(of_keys), d_v(of_values), d_g(d_o.shape);
  for (std::int64_t i = 0; i < b * h; ++i) {
    Matrix kv;
    if (saved.fill_kv) {
      kv = k.transformed(i).transpose() * v.transformed(i);
    } else if (saved.kv.defined) {
      kv = kept_kv.matrix(i);
    }
    if (d.g.wanted()) {
      const Matrix product =
          saved.qkv.defined ? Matrix(kept_qkv.matrix(i)) : Matrix(q.transformed(i) * kv);
      d_g.matrix(i) = g.transformed_back(i, up.matrix(i).cwiseProduct(product));
    }
    if (!d.q.wanted() && !d.k.wanted() && !d.v.wanted()) continue;
    const Matrix d_product = up.matrix(i).cwiseProduct(g.transformed(i));
    if (d.q.wanted()) d_q.matrix(i) = q.transformed_back(i, d_product * kv.transpose());
    if (!d.k.wanted() && !d.v.wanted()) continue;
    const Matrix d_kv = q.transformed(i).transpose() * d_product;
    if (d.k.wanted()) d_k.matrix(i) = k.transformed_back(i, v.transformed(i) * d_kv.transpose());
    if (d.v.wanted()) d_v.matrix(i) = v.transformed_back(i, k.transformed(i) * d_kv);
  }
  store(d.q, d_q, q.terms()), store(d.k, d_k, k.terms());
  store(d.v, d_v, v.terms()), store(d.g, d_g, g.terms());
}

}  // namespace
}  // namespace reference

void register_reference_flao() {
  flao_forward_kernel.provide(Variant::reference, reference::flao_forward);
  flao_backward_kernel.provide(Variant::reference, reference::flao_backward);
}

}  // namespace quipu::detail
