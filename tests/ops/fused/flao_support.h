#pragma once
// What the tests of gated linear attention share: inputs, variants, runs.
#include <quipu/quipu.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "fused_cases.h"
#include "support/support.h"

namespace quipu::testing::gated {

inline constexpr Device meta_cpu(DeviceKind::cpu, 0, true);

struct Sizes {
  std::int64_t b, h, n, m, d, e;
};

inline std::string text_of(const Sizes& s) {
  std::string text;
  for (const std::int64_t size : {s.b, s.h, s.n, s.m, s.d, s.e}) text += std::to_string(size) + " ";
  return text;
}

/// Numbers of either sign, away from the kink of relu.
inline Tensor values(const Shape& shape, Device device, Generator& g) {
  const Tensor x = rand(shape, f64, device, g) * 2 - 1;
  return where(x < 0, x - 0.05, x + 0.05);
}

/// q, k, v, g
inline std::vector<Tensor> inputs_of(const Sizes& s, DType dtype, Device device,
                                     unsigned subset = 15) {
  Generator g(2024);
  std::vector<Tensor> in{
      values({s.b, s.h, s.n, s.d}, device, g), values({s.b, s.h, s.m, s.d}, device, g),
      values({s.b, s.h, s.m, s.e}, device, g), values({s.b, s.h, s.n, s.e}, device, g)};
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = in[i].to(dtype).detach();
    in[i].set_requires_grad((subset >> i & 1u) != 0);
  }
  return in;
}

inline Tensor upstream_of(const Sizes& s, DType dtype, Device device) {
  Generator g(7);
  return values({s.b, s.h, s.n, s.e}, device, g).to(dtype);
}

inline DType theta_type(DType dtype) {
  return dtype == f64 ? f64 : f32;
}
inline Tensor theta_of(const Shape& shape, DType dtype, Device device) {
  Generator g(11);
  return rand(shape, f64, device, g).to(theta_type(dtype));
}

using Operation = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const FlaoOptions&);

/// The output and the gradients of q, k, v, g that are wanted.
inline std::vector<Tensor> run(Operation f, const std::vector<Tensor>& in,
                               const FlaoOptions& options, const Tensor& upstream) {
  std::vector<Tensor> leaves, wanted;
  for (const Tensor& x : in) {
    leaves.push_back(x.detach());
    leaves.back().set_requires_grad(x.requires_grad());
    if (x.requires_grad()) wanted.push_back(leaves.back());
  }
  Tape tape;
  const Tensor o = f(leaves[0], leaves[1], leaves[2], leaves[3], options);
  std::vector<Tensor> results = tape.gradients(o, wanted, {upstream, false});
  results.insert(results.begin(), o.detach());
  return results;
}

inline double largest(const Tensor& x) {
  double most = 0;
  for (const double value : x.to(f64).to_vector()) {
    if (!(std::abs(value) <= most)) most = std::abs(value);
  }
  return most;
}

/// The largest difference as a part of the largest entry.
inline double error(const Tensor& got, const Tensor& wanted) {
  const Tensor exact = wanted.to(f64);
  const double scale = largest(exact);
  return largest(got.to(f64) - exact) / (scale > 0 ? scale : 1);
}

struct Variant {
  std::string name;
  FlaoOptions options;
};

/// Every pair of two options, on n = m = 6 tokens, d = 4, h = 2.
inline std::vector<Variant> variants(DType dtype, Device device) {
  const std::pair<Act, std::optional<int>> acts[] = {{Act::none, {}},    {Act::relu, {}},
                                                     {Act::sigmoid, {}}, {Act::silu, {}},
                                                     {Act::softmax, -1}, {Act::softmax, -2}};
  std::vector<Variant> found;
  // Activations of q, k, v and g, the encoding, what is kept, the offset or leading tokens.
  for (const std::vector<int>& row : pairwise({6, 6, 6, 6, 4, 3, 2})) {
    FlaoOptions o;
    std::tie(o.q_act, o.q_dim) = acts[row[0]];
    std::tie(o.k_act, o.k_dim) = acts[row[1]];
    std::tie(o.v_act, o.v_dim) = acts[row[2]];
    std::tie(o.g_act, o.g_dim) = acts[row[3]];
    o.lrpe = static_cast<FlaoLrpe>(row[4]);
    o.keep = static_cast<FlaoKeep>(row[5]);
    const bool is_moved = row[6] == 1;
    if (o.lrpe == FlaoLrpe::rotate || o.lrpe == FlaoLrpe::cosine) o.offset = is_moved ? 3 : 0;
    if (o.lrpe == FlaoLrpe::rotate) o.theta = theta_of({2, 2}, dtype, device);
    if (o.lrpe == FlaoLrpe::cosine) o.theta = theta_of({1, 4}, dtype, device);
    if (o.lrpe == FlaoLrpe::cosine_md) {
      o.theta = theta_of({2, 2}, dtype, device);
      o.shape = is_moved ? Shape{2, 2} : Shape{2, 3};
      o.l = is_moved ? 2 : 0;
    }
    std::string name;
    for (const int choice : row) name += std::to_string(choice) + " ";
    found.push_back({name, o});
  }
  return found;
}

inline constexpr Sizes variant_sizes{2, 2, 6, 6, 4, 3};

inline DifferentiableFunction function_of(const FlaoOptions& options) {
  return [options](const std::vector<Tensor>& in) {
    return flao(in[0], in[1], in[2], in[3], options);
  };
}

}  // namespace quipu::testing::gated
