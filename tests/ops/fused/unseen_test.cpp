// What does not count is not read: infinity and NaN in keys that a query does not attend to, in
// rows that are ignored and beyond lengths change nothing, forward or backward.
#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "support/several_inputs.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double bad_numbers[] = {std::nan(""), infinity, -infinity};

struct Queries {
  std::int64_t n, m, d, group;
};

/// Output and gradients of causal attention under an upstream gradient.
Tensors causal(const Tensors& in) {
  Tensors leaves;
  for (std::size_t i = 0; i < 3; ++i) leaves.push_back(in[i].detach().set_requires_grad());
  Tape tape;
  const Tensor o = attention(leaves[0], leaves[1], leaves[2], {.causal = true});
  Tensors results = tape.gradients(o, leaves, {in[3], false});
  results.insert(results.begin(), o.detach());
  return results;
}

/// The rows [first, end) of dimension 2 are equal, but for the order of sums.
void check_rows(const Tensor& got, const Tensor& wanted, std::int64_t first, std::int64_t end) {
  if (first >= end) return;
  const Tensor a = got.detach().slice(2, first, end).contiguous();
  const Tensor b = wanted.detach().slice(2, first, end).contiguous();
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  const double bound = (is_reduced(got.dtype()) ? 2 : 256) * epsilon_of(got.dtype());
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    wrong += !(std::abs(x[i] - y[i]) <= bound * (1 + std::abs(y[i])));
  }
  CHECK(wrong == 0);
}

bool has_no_number(const Tensor& x) {
  for (const double v : x.to_vector()) {
    if (!std::isfinite(v)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "unseen: keys and values that a query does not attend to") {
  const std::vector<Queries> usual = {{150, 150, 16, 1}, {70, 100, 20, 2}, {5, 5, 64, 3}};
  const std::vector<Queries> emulated = {{80, 80, 16, 1}, {30, 70, 20, 2}, {70, 75, 80, 1}};
  for (const Queries& s : is_emulated(device) ? emulated : usual) {
    CAPTURE(s.n);
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(dtype);
      const Tensors in = random_tensors(
          {{1, s.group, s.n, s.d}, {1, 1, s.m, s.d}, {1, 1, s.m, s.d}, {1, s.group, s.n, s.d}},
          dtype, device);
      const Tensors clean = causal(in);
      for (const std::int64_t key : {s.m - 1, s.m - 3, s.m - s.n + s.n / 2}) {
        const std::int64_t first_seeing = key - (s.m - s.n);  // this query and later ones
        CAPTURE(key);
        for (const std::size_t which : {std::size_t{1}, std::size_t{2}}) {
          CAPTURE(which);
          for (const double bad : bad_numbers) {
            Tensors spoiled = in;
            spoiled[which] = in[which].clone();
            spoiled[which].slice(2, key, key + 1).slice(3, 1, 3).fill_(bad);
            const Tensors got = causal(spoiled);
            check_rows(got[0], clean[0], 0, first_seeing);                    // o
            check_rows(got[1].detach(), clean[1].detach(), 0, first_seeing);  // d_q
            // Those who attend to it show it.
            const bool shows = which == 2 || std::isnan(bad);
            if (shows) CHECK(has_no_number(got[0].slice(2, first_seeing)));
          }
        }
      }
      // The other way round: queries and upstream gradients do not reach keys they do not see.
      for (const std::int64_t query : {std::int64_t{0}, s.n / 2}) {
        const std::int64_t seen = query + 1 + s.m - s.n;  // as many keys
        for (const std::size_t which : {std::size_t{0}, std::size_t{3}}) {
          CAPTURE(query);
          CAPTURE(which);
          Tensors spoiled = in;
          spoiled[which] = in[which].clone();
          spoiled[which].slice(2, query, query + 1).slice(3, 0, 2).fill_(std::nan(""));
          const Tensors got = causal(spoiled);
          check_rows(got[2], clean[2], seen, s.m);  // d_k
          check_rows(got[3], clean[3], seen, s.m);  // d_v
          CHECK(has_no_number(got[2].detach().slice(2, 0, seen)));
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "unseen: rows that linear_cross_entropy ignores") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    for (const bool several : {false, true}) {  // parts
      const std::int64_t rows = several ? 700 : 5, d = 6, classes = several ? 3000 : 9;
      if (several && (is_emulated(device) || dtype == f64)) continue;
      const Tensors in = random_tensors({{rows, d}, {classes, d}, {classes}}, dtype, device);
      const Tensor targets = zeros({rows}, i64, device);
      targets.slice(0, 1, 2).fill_(-100);
      targets.slice(0, rows - 1).fill_(-100);
      const auto run = [&](const Tensor& x) {
        Tensors leaves{x.detach().set_requires_grad(), in[1].detach().set_requires_grad(),
                       in[2].detach().set_requires_grad()};
        Tape tape;
        const Tensor loss = linear_cross_entropy(leaves[0], leaves[1], targets, {}, leaves[2]);
        Tensors results = tape.gradients(loss, leaves);
        results.push_back(loss.detach());
        return results;
      };
      const Tensors clean = run(in[0]);
      for (const double bad : bad_numbers) {
        const Tensor x = in[0].clone();
        x[1].fill_(bad);
        x[rows - 1].slice(0, 0, 1).fill_(bad);
        const Tensors got = run(x);
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CHECK(same_bits(got[i].detach(), clean[i].detach()));
        }
        CHECK(same_bits(got[0].detach()[1], zeros({d}, dtype, device)));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "unseen: logits of rows that cross_entropy ignores") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const Tensor targets = from({0, -100, 2}, i64, device);
    const Tensor z = random_tensors({{3, 70}}, dtype, device)[0];
    const auto run = [&](const Tensor& logits, double smoothing, auto f) {
      const Tensor leaf = logits.detach().set_requires_grad();
      Tape tape;
      const Tensor loss = f(leaf, targets, CrossEntropyOptions{.label_smoothing = smoothing});
      tape.backward(loss);
      return Tensors{loss.detach(), leaf.grad()};
    };
    for (const double smoothing : {0.0, 0.1}) {
      const auto check = [&](auto f) {
        const Tensors clean = run(z, smoothing, f);
        for (const double bad : bad_numbers) {
          const Tensor spoiled = z.clone();
          spoiled[1].slice(0, 3, 40).fill_(bad);
          const Tensors got = run(spoiled, smoothing, f);
          CHECK(same_bits(got[0], clean[0]));
          CHECK(same_bits(got[1].detach(), clean[1].detach()));
        }
      };
      check([](const auto&... in) { return cross_entropy(in...); });
      check([](const auto&... in) { return cross_entropy_composed(in...); });
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "unseen: entries beyond the lengths of tpa_decode") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const std::int64_t b = 2, m = 300, h = 8, r = 8, d = 16;
    const Tensors in = random_tensors(
        {{b, 1, h, r}, {b, m, h}, {b, m, h}, {b, 1, r, d}, {b, m, d}, {b, m, d}}, dtype, device);
    const Tensor lengths = from({5, 270}, i64, device);
    const auto run = [&](const Tensors& inputs) {
      Tensors leaves;
      for (const Tensor& x : inputs) leaves.push_back(x.detach().set_requires_grad());
      Tape tape;
      const Tensor o = tpa_decode(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], leaves[5],
                                  {.lengths = lengths});
      Tensors results = tape.gradients(o, leaves, {ones(o.shape(), dtype, device), false});
      results.push_back(o.detach());
      return results;
    };
    const Tensors clean = run(in);
    for (const double bad : bad_numbers) {
      Tensors spoiled = in;
      for (const std::size_t i : {1u, 2u, 4u, 5u}) {
        spoiled[i] = in[i].clone();
        spoiled[i][0].slice(0, 5).fill_(bad);
        spoiled[i][1].slice(0, 270).fill_(bad);
      }
      const Tensors got = run(spoiled);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(same_bits(got[i].detach(), clean[i].detach()));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "unseen: entries that are dropped or chosen against") {
  const Tensor x = full({1000}, std::nan(""), f32, device).set_requires_grad();
  Generator generator(3);
  Tape tape;
  const Tensor o = dropout(x, 0.5, generator);
  const Tensor kept = ne(o.detach(), o.detach());  // NaN
  CHECK(sum(kept).item() < 600);
  CHECK(sum(kept).item() > 400);
  CHECK(!has_no_number(masked_fill(o.detach(), kept, 0)));
}
