#pragma once
// What lrpe and flao do to a row of features x at a token: its activation y, and y encoded by the
// angles a of the token, theta times its position (ops/lrpe/lrpe.h):
//   rotate  (y1, y2) -> (y1 cos a - y2 sin a, y1 sin a + y2 cos a), y1 and y2 the halves of y
//   cosine  y -> (y cos a, y sin a)
// and the way back. Matrices have a token in each row, all of one batch entry and head.
// Internal to cpu/reference/.
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/lrpe/kernels.h"

namespace quipu::detail::reference {

using Table = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// 1 / (1 + e^-x), to the last places where it is small, too. 1 - sigmoid(x) is sigmoid(-x).
inline double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

/// Softmax of each row.
inline Matrix softmax_of_rows(Matrix x) {
  for (auto row : x.rowwise()) {
    if (row.size() == 0) continue;
    const double largest = row.maxCoeff<Eigen::PropagateNaN>();
    row.array() = exp_of(row.array() - largest).eval();
    row /= row.sum();
  }
  return x;
}
inline Matrix softmax_of_rows_back(const Matrix& y, const Matrix& d_y) {
  const Eigen::VectorXd mean = y.cwiseProduct(d_y).rowwise().sum();
  return y.cwiseProduct(d_y.colwise() - mean);
}
/// How large the terms are that are subtracted there.
inline Matrix terms_of_softmax_back(const Matrix& y, const Matrix& d_y) {
  const Eigen::VectorXd mean = y.cwiseProduct(d_y).rowwise().sum();
  return y.cwiseProduct(d_y.cwiseAbs().colwise() + mean.cwiseAbs());
}

/// y = act(x)
inline Matrix activated(const Matrix& x, const RowTransform& transform) {
  switch (transform.act) {
    case Act::relu: return x.unaryExpr([](double v) { return v <= 0 ? 0 : v; });
    case Act::sigmoid: return x.unaryExpr(&sigmoid);
    case Act::silu: return x.unaryExpr([](double v) { return v * sigmoid(v); });
    case Act::softmax:
      if (!transform.over_sequence) return softmax_of_rows(x);
      return softmax_of_rows(x.transpose()).transpose();
    default: return x;
  }
}

/// d_x from d_y; x is not looked at where there is no activation.
inline Matrix activated_back(const Matrix& x, const Matrix& d_y, const RowTransform& transform) {
  const auto from = [&](auto gradient) -> Matrix { return d_y.binaryExpr(x, gradient); };
  switch (transform.act) {
    case Act::relu: return from([](double d, double v) { return v <= 0 ? 0 : d; });
    case Act::sigmoid: return from([](double d, double v) { return d * sigmoid(v) * sigmoid(-v); });
    case Act::silu:
      return from([](double d, double v) { return d * sigmoid(v) * (1 + v * sigmoid(-v)); });
    case Act::softmax: {
      const Matrix y = activated(x, transform);
      if (!transform.over_sequence) return softmax_of_rows_back(y, d_y);
      return softmax_of_rows_back(y.transpose(), d_y.transpose()).transpose();
    }
    default: return d_y;
  }
}

/// How large the terms are that d_x is summed from, where they may be larger than it.
inline Matrix terms_of_activated_back(const Matrix& x, const Matrix& d_y,
                                      const RowTransform& transform) {
  if (transform.act != Act::softmax) return Matrix::Zero(x.rows(), x.cols());
  const Matrix y = activated(x, transform);
  if (!transform.over_sequence) return terms_of_softmax_back(y, d_y);
  return terms_of_softmax_back(y.transpose(), d_y.transpose()).transpose();
}

/// Where a token, not one of those before the grid, is along the axis of angle j; each axis has
/// `each` angles, and the last one runs fastest.
inline double position_of(std::int64_t token, std::int64_t j, std::int64_t each,
                          const RowTransform& transform) {
  const Dims& grid = transform.grid;
  if (grid.empty()) return static_cast<double>(transform.offset + token);
  const int axis = static_cast<int>(j / each);
  std::int64_t place = token - transform.lead;
  for (int faster = grid.size() - 1; faster > axis; --faster) place /= grid[faster];
  return static_cast<double>(place % grid[axis]);
}

/// The angles of rows of d features, (heads, tokens, angles of a row): products of numbers of the
/// compute type, rounded to it, as those that are kept. At 1e5 that moves an f32 result by 0.004.
inline Values find_angles(const RowTransform& transform, std::int64_t heads, std::int64_t tokens,
                          std::int64_t d) {
  Values angles(Shape{heads, tokens, angles_of(transform.kind, d)});
  if (angles.flat.size() == 0) return angles;
  Values columns = read(transform.theta);
  MatrixMap theta = columns.rows();  // (heads or 1, e)
  const std::int64_t e = theta.cols();
  const DType type = compute_type(transform.theta.dtype);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = transform.lead; t < tokens; ++t) {
      for (std::int64_t j = 0; j < angles.last(); ++j) {
        if (transform.grid.empty() && j >= e && e != 1) break;  // columns that are missing
        const double position = rounded_to(type, position_of(t, j, e, transform));
        const double of_feature = theta(theta.rows() == 1 ? 0 : h, j % e);
        angles.matrix(h)(t, j) = rounded_to(type, of_feature * position);
      }
    }
  }
  return angles;
}

/// The rows of y, encoded.
inline Matrix encoded(const Matrix& y, const Matrix& angles, LrpeKind kind) {
  const std::int64_t n = angles.cols();
  const Table cos = angles.array().unaryExpr([](double a) { return std::cos(a); });
  const Table sin = angles.array().unaryExpr([](double a) { return std::sin(a); });
  Matrix o(y.rows(), encoded_features(kind, y.cols()));
  if (kind == LrpeKind::none) {
    o = y;
  } else if (kind == LrpeKind::cosine) {
    o << y.array() * cos, y.array() * sin;
  } else {
    const auto y1 = y.leftCols(n).array(), y2 = y.rightCols(n).array();
    o << y1 * cos - y2 * sin, y1 * sin + y2 * cos;
  }
  return o;
}

/// d_y from d_o.
inline Matrix encoded_back(const Matrix& d_o, const Matrix& angles, LrpeKind kind) {
  if (kind == LrpeKind::none) return d_o;
  const std::int64_t n = angles.cols();
  const Table cos = angles.array().unaryExpr([](double a) { return std::cos(a); });
  const Table sin = angles.array().unaryExpr([](double a) { return std::sin(a); });
  const auto d1 = d_o.leftCols(n).array(), d2 = d_o.rightCols(n).array();
  if (kind == LrpeKind::cosine) return d1 * cos + d2 * sin;
  Matrix d_y(d_o.rows(), 2 * n);
  d_y << d1 * cos + d2 * sin, d2 * cos - d1 * sin;
  return d_y;
}

/// The gradient of the angles from d_o: what y is multiplied by, turned by a quarter.
inline Matrix angles_back(const Matrix& y, const Matrix& d_o, const Matrix& angles, LrpeKind kind) {
  const std::int64_t n = angles.cols();
  const Table cos = angles.array().unaryExpr([](double a) { return std::cos(a); });
  const Table sin = angles.array().unaryExpr([](double a) { return std::sin(a); });
  const auto d1 = d_o.leftCols(n).array(), d2 = d_o.rightCols(n).array();
  const auto y1 = y.leftCols(n).array(), y2 = y.rightCols(n).array();
  if (kind == LrpeKind::cosine) return y1 * (d2 * cos - d1 * sin);
  return y1 * (d2 * cos - d1 * sin) - y2 * (d1 * cos + d2 * sin);
}

}  // namespace quipu::detail::reference
