// Gradient buffers that are handed on to several tensors: each is added to afterwards, in every
// order of recording.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "quipu/quipu.h"
#include "support/leaves.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

using Function = std::function<Tensor(const Tensor&, const Tensor&)>;

/// Ways to make one tensor of a and b, both (2, 3), whose gradients may share memory.
const std::vector<std::pair<const char*, Function>> sharers = {
    {"add", [](const Tensor& a, const Tensor& b) { return a + b; }},
    {"sub", [](const Tensor& a, const Tensor& b) { return a - b; }},
    {"add number", [](const Tensor& a, const Tensor& b) { return (a + 1.0) + (b + 2.0); }},
    {"add to itself", [](const Tensor& a, const Tensor& b) { return (a + a) + (b + b); }},
    {"reshape",
     [](const Tensor& a, const Tensor& b) {
       return (a.reshape({6}) + b.reshape({6})).reshape({2, 3});
     }},
    {"permute", [](const Tensor& a, const Tensor& b) { return (a.t() + b.t()).t(); }},
    {"copying reshape",
     [](const Tensor& a, const Tensor& b) {
       return (a.t().reshape({6}) + b.t().reshape({6})).reshape({3, 2}).t();
     }},
    {"cat",
     [](const Tensor& a, const Tensor& b) {
       const Tensor c = cat({a, b, a}, 0);
       return c(slice(0, 2)) + c(slice(2, 4)) + c(slice(4, 6));
     }},
    {"stack",
     [](const Tensor& a, const Tensor& b) {
       return sum(stack({a, b}, 1), 1) + a;
     }},
    {"expand",
     [](const Tensor& a, const Tensor& b) {
       return a.expand({2, 2, 3})[0] + b.expand({2, 2, 3})[1] + a;
     }},
    {"views",
     [](const Tensor& a, const Tensor& b) {
       return cat({a[0], b[1]}, 0).reshape({2, 3}) + a + b;
     }},
    {"clone", [](const Tensor& a, const Tensor& b) { return a.clone() + b.clone(); }},
    {"strided clone", [](const Tensor& a, const Tensor& b) { return (a.t().clone() + b.t()).t(); }},
    {"contiguous",
     [](const Tensor& a, const Tensor& b) { return a.t().contiguous().t() + b.contiguous(); }},
    {"cast", [](const Tensor& a, const Tensor& b) { return a.to(f64) + b; }},
    {"recompute",
     [](const Tensor& a, const Tensor& b) {
       return recompute([](const std::vector<Tensor>& in) { return in[0] + in[1]; }, {a, b});
     }},
    {"recompute that returns its input",
     [](const Tensor& a, const Tensor& b) {
       return recompute([](const std::vector<Tensor>& in) { return in[0]; }, {a}) + b;
     }},
    {"hook that returns what it got",
     [](const Tensor& a, const Tensor& b) {
       const Tensor s = a + b;
       if (s.requires_grad()) s.add_hook([](const Tensor& g) { return g; });
       return s;
     }},
    {"top_k",
     [](const Tensor& a, const Tensor& b) {
       const Tensor top = top_k(a, 3).values;
       return (top + top) + (top + b);
     }},
};

/// A program over x and y: steps that may be recorded in any order that respects what they need.
struct Step {
  const char* name;
  std::vector<const char*> needs;
  std::function<Tensor(std::map<std::string, Tensor>&)> run;
};

std::vector<Step> steps_with(const Function& share) {
  const auto scaled = [](const char* of, double by) {
    return [=](std::map<std::string, Tensor>& t) { return t[of] * by; };
  };
  return {
      {"a", {}, [](auto& t) { return t["x"] * 1.0; }},
      {"b", {}, [](auto& t) { return t["y"] * 1.0; }},
      {"s", {"a", "b"}, [&share](auto& t) { return share(t["a"], t["b"]); }},
      {"m", {"a"}, scaled("a", 2)},
      {"n", {"b"}, scaled("b", 3)},
  };
}

/// Calls f with every order of the steps in which each stands behind what it needs.
void each_order(const std::vector<Step>& steps, const std::function<void(std::vector<int>)>& f) {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) order.push_back(i);
  do {
    bool possible = true;
    for (auto at = order.begin(); at != order.end(); ++at) {
      for (const char* need : steps[static_cast<std::size_t>(*at)].needs) {
        possible = possible && std::any_of(order.begin(), at, [&](int i) {
                     return std::string(need) == steps[static_cast<std::size_t>(i)].name;
                   });
      }
    }
    if (possible) f(order);
  } while (std::next_permutation(order.begin(), order.end()));
}

const Values weight_values = {1, -2, 3, 0.5, -0.25, 2};

/// Loss of the program, its parts summed in one of two orders.
struct Program {
  std::map<std::string, Tensor> t;
  Tensor loss;
  Program(const std::vector<Step>& steps, const std::vector<int>& order, const Tensor& x,
          const Tensor& y, bool left) {
    t["x"] = x;
    t["y"] = y;
    for (const int i : order) {
      const Step& step = steps[static_cast<std::size_t>(i)];
      t[step.name] = step.run(t);
    }
    const Tensor w = from(weight_values, {2, 3}, f64, x.device());
    const Tensor all = left ? (t["s"] + t["m"]) + t["n"] : t["n"] + (t["m"] + t["s"]);
    loss = sum(all * w);
  }
};

/// The gradient of a linear function of one tensor, by its values at zero and at the unit vectors.
Values by_differences(const std::function<double(const Tensor&)>& f, const Tensor& at) {
  Values result;
  const Values center = values(at);
  for (std::size_t i = 0; i < center.size(); ++i) {
    Values high = center, low = center;
    high[i] += 0.125;
    low[i] -= 0.125;
    result.push_back((f(from(high, at.shape(), f64)) - f(from(low, at.shape(), f64))) / 0.25);
  }
  return result;
}

void check_near(const Tensor& got, const Values& wanted) {
  const Values v = values(got);
  REQUIRE(v.size() == wanted.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    CAPTURE(i);
    CHECK(v[i] == doctest::Approx(wanted[i]).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("ownership: gradients that share a buffer are added to on both sides, in every order") {
  const Tensor x = from({3.0, 2.0, 1.0, 6.0, 5.0, 4.0}, {2, 3});
  const Tensor y = from({1.0, 4.0, 2.0, 8.0, 5.0, 7.0}, {2, 3});
  for (const auto& sharer : sharers) {
    CAPTURE(sharer.first);
    const std::vector<Step> steps = steps_with(sharer.second);
    for (const bool left : {true, false}) {
      const auto of_x = [&](const Tensor& v) {
        return Program(steps, {0, 1, 2, 3, 4}, v, y, left).loss.item();
      };
      const auto of_y = [&](const Tensor& v) {
        return Program(steps, {0, 1, 2, 3, 4}, x, v, left).loss.item();
      };
      const Values d_x = by_differences(of_x, x), d_y = by_differences(of_y, y);
      each_order(steps, [&](const std::vector<int>& order) {
        const Tensor lx = x.clone().set_requires_grad(), ly = y.clone().set_requires_grad();
        Tape tape;
        Program p(steps, order, lx, ly, left);
        const std::vector<Tensor> inner = tape.gradients(
            p.loss, {p.t["a"], p.t["b"], p.t["s"], p.t["m"], p.t["n"], lx}, {.retain = true});
        tape.backward(p.loss, {.retain = true});
        check_near(lx.grad(), d_x);
        check_near(ly.grad(), d_y);
        check_near(inner[0], d_x);
        check_near(inner[1], d_y);
        for (int i = 2; i < 5; ++i) check_near(inner[static_cast<std::size_t>(i)], weight_values);
        check_near(inner[5], d_x);
      });
    }
  }
}

TEST_CASE("ownership: a tensor and its double, by the shortest program") {
  const Tensor x = leaf({3, 1, 2, 5});
  Tape tape;
  const Tensor a = top_k(x, 4).values, b = a + a;
  tape.backward(mean(a + b));
  CHECK(values(x.grad()) == Values(4, 0.75));
}
