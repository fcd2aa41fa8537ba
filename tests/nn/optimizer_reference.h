#pragma once
// Optimizers as plain loops in f64, written from their formulas: what the tests compare with.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "quipu/nn/optim/muon.h"
#include "quipu/ops/optimizer_updates.h"

namespace quipu::testing {

using Numbers = std::vector<double>;

/// Made-up numbers in (-1, 1), the same on every machine.
inline double noise(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  for (int i = 0; i < 3; ++i) x = (x ^ (x >> 29)) * 0xd6e8feb86659fd93u;
  return static_cast<double>(x >> 11) / static_cast<double>(1u << 31) / (1 << 21) - 1;
}

inline Numbers numbers(std::size_t n, std::uint64_t seed) {
  Numbers result(n);
  for (std::size_t i = 0; i < n; ++i) result[i] = noise(seed, i);
  return result;
}

struct Reference {
  Numbers p, first, second;
  int steps = 0;

  explicit Reference(const Numbers& start)
      : p(start), first(start.size(), 0.0), second(start.size(), 0.0) {}

  void step(const SgdOptions& o, const Numbers& gradient) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      double g = gradient[i];
      const double old = p[i];
      if (!o.decoupled) g = g + o.weight_decay * old;
      double direction = g;
      if (o.momentum != 0) {
        first[i] = o.momentum * first[i] + g;
        direction = o.nesterov ? g + o.momentum * first[i] : first[i];
      }
      p[i] = old - o.lr * direction;
      if (o.decoupled) p[i] -= o.lr * o.weight_decay * old;
    }
  }

  void step(const AdamWOptions& o, const Numbers& gradient) {
    ++steps;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i];
      first[i] = o.beta1 * first[i] + (1 - o.beta1) * g;
      second[i] = o.beta2 * second[i] + (1 - o.beta2) * g * g;
      const double mean = first[i] / (1 - std::pow(o.beta1, steps));
      const double square = second[i] / (1 - std::pow(o.beta2, steps));
      p[i] = p[i] * (1 - o.lr * o.weight_decay) - o.lr * mean / (std::sqrt(square) + o.eps);
    }
  }

  void step(const LionOptions& o, const Numbers& gradient) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double mix = o.beta1 * first[i] + (1 - o.beta1) * gradient[i];
      const double sign = mix > 0 ? 1 : mix < 0 ? -1 : 0;
      p[i] = p[i] * (1 - o.lr * o.weight_decay) - o.lr * sign;
      first[i] = o.beta2 * first[i] + (1 - o.beta2) * gradient[i];
    }
  }

  /// p is a matrix with `rows` rows.
  void step(const nn::MuonOptions& o, const Numbers& gradient, std::size_t rows) {
    const std::size_t columns = p.size() / rows;
    Numbers u(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      first[i] = o.momentum * first[i] + gradient[i];
      u[i] = o.nesterov ? gradient[i] + o.momentum * first[i] : first[i];
    }
    const Numbers x = orthogonal(u, rows, columns, o.iterations);
    const double ratio = static_cast<double>(rows) / static_cast<double>(columns);
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i] = p[i] - o.lr * o.weight_decay * p[i] - o.lr * std::sqrt(std::max(1.0, ratio)) * x[i];
    }
  }

 private:
  static Numbers product(const Numbers& a, const Numbers& b, std::size_t m, std::size_t k,
                         std::size_t n) {
    Numbers o(m * n, 0.0);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        for (std::size_t l = 0; l < k; ++l) o[i * n + j] += a[i * k + l] * b[l * n + j];
      }
    }
    return o;
  }

  static Numbers transposed(const Numbers& a, std::size_t m, std::size_t n) {
    Numbers o(a.size());
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) o[j * m + i] = a[i * n + j];
    }
    return o;
  }

  /// The polynomial on whichever side is smaller gives the same matrix; here always on the left.
  static Numbers orthogonal(Numbers x, std::size_t m, std::size_t n, int iterations) {
    double norm = 0;
    for (const double v : x) norm += v * v;
    for (double& v : x) v /= std::sqrt(norm) + 1e-7;
    for (int it = 0; it < iterations; ++it) {
      const Numbers square = product(x, transposed(x, m, n), m, n, m);
      const Numbers fourth = product(square, square, m, m, m);
      const Numbers a = product(square, x, m, m, n), b = product(fourth, x, m, m, n);
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = 3.4445 * x[i] - 4.7750 * a[i] + 2.0315 * b[i];
    }
    return x;
  }
};

}  // namespace quipu::testing
