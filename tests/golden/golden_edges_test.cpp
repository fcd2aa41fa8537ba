// The bounds of golden cases where entries are zero, underflow or cancel.
#include <functional>

#include "golden_case.h"
#include "quipu/core/io/safetensors.h"
#include "quipu/ops/act.h"
#include "quipu/ops/flao/flao.h"
#include "quipu/ops/lrpe/lrpe.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/tpa_decode/tpa_decode.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

/// A case of one's own: what f gives for inputs in f64.
struct OwnCase {
  std::string op, args;
  NamedTensors inputs, constants;
  std::function<Tensor(const std::vector<Tensor>&)> f;
  Tensor d_o;

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> in;
    for (const auto& [name, x] : inputs) in.push_back(x);
    for (const auto& [name, x] : constants) in.push_back(x);
    return in;
  }
  /// With the largest entry of a result off by a part of it.
  std::vector<std::string> failures(Device device, const std::string& spoiled = "",
                                    double part = 0) const {
    const auto results = run_golden({"", f}, tensors(), inputs.size(), d_o);
    NamedTensors all = inputs;
    all.insert(all.end(), constants.begin(), constants.end());
    all.emplace_back("do", d_o);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string name = i == 0 ? "o" : "d" + inputs[i - 1].first;
      const Tensor x = results[i].detach().clone();
      if (name == spoiled) {
        const Tensor entry = x.flatten()[static_cast<std::int64_t>(argmax(abs(x)).item())];
        entry.add_(part * entry.item());
      }
      all.emplace_back(name, x);
    }
    const TempDirectory directory;
    save_safetensors(directory.file("own.safetensors"), all, {{"op", op}, {"args", args}});
    return failures_of(directory.file("own.safetensors"), device);
  }
};

/// Normal numbers, the same on every run.
struct Normals {
  Generator generator{11};
  Tensor operator()(const Shape& shape, double scale = 1) {
    return randn(shape, f64, cpu, generator) * scale;
  }
  /// Rows of zeros, tiny and large ones.
  Tensor rows(std::int64_t n, std::int64_t d) {
    const Tensor x = (*this)({1, n, 1, d});
    x.slice(1, 0, 1).fill_(0);
    x.slice(1, 1, 2).mul_(1e-15);
    x.slice(1, 2, 3).mul_(20);
    x.slice(1, 3, 4).mul_(1e-6);
    return x;
  }
};

/// Activations, alone and with rotary encoding; some gradients cancel.
void add_activation_cases(Normals& normals, std::vector<OwnCase>& cases) {
  const std::pair<const char*, Act> acts[] = {{"relu", Act::relu},
                                              {"sigmoid", Act::sigmoid},
                                              {"silu", Act::silu},
                                              {"softmax", Act::softmax}};
  for (const auto& [name, kind] : acts) {
    const std::optional<int> dim = kind == Act::softmax ? std::optional<int>(-1) : std::nullopt;
    const std::string args =
        std::string("{\"act\": \"") + name + (dim ? "\", \"dim\": -1}" : "\"}");
    for (const double up : {1.0, 1e-6}) {
      const Tensor same = ones({1, 6, 1, 8}, f64) * up;  // softmax passes nothing of it
      for (const Tensor& d_o : {normals({1, 6, 1, 8}, up), same}) {
        cases.push_back(
            {"act",
             args,
             {{"x", normals.rows(6, 8)}},
             {},
             [kind = kind, dim](const auto& in) { return act_composed(in[0], kind, dim); },
             d_o});
      }
    }
    for (const double offset : {0.0, 3000.0}) {
      const std::string with_offset =
          args.substr(0, args.size() - 1) + ", \"offset\": " + std::to_string(int(offset)) + "}";
      const LrpeOptions options{kind, dim, static_cast<std::int64_t>(offset)};
      cases.push_back(
          {"lrpe_rotate",
           with_offset,
           {{"x", normals.rows(6, 8)}},
           {{"theta", normals({1, 4})}},
           [options](const auto& in) { return lrpe_rotate_composed(in[0], in[1], options); },
           normals({1, 6, 1, 8})});
    }
  }
}

/// Attention of both kinds, with gates and values that are small or zero.
void add_attention_cases(Normals& normals, std::vector<OwnCase>& cases) {
  for (const double scale : {1.0, 1e-4, 0.0}) {
    const auto input = [&] { return normals({1, 2, 5, 4}); };
    const Tensor g = normals({1, 2, 5, 4}, scale);
    g.slice(2, 1, 2).mul_(1e-15);
    cases.push_back({"flao",
                     "{}",
                     {{"q", input()}, {"k", input()}, {"v", input()}, {"g", g}},
                     {},
                     [](const auto& in) { return flao_composed(in[0], in[1], in[2], in[3]); },
                     normals({1, 2, 5, 4})});
    cases.push_back({"tpa_decode",
                     "{}",
                     {{"aq", normals({2, 1, 3, 2})},
                      {"ak", normals({2, 7, 3})},
                      {"av", normals({2, 7, 3}, scale)},
                      {"bq", normals({2, 1, 2, 4})},
                      {"bk", normals({2, 7, 4})},
                      {"bv", normals({2, 7, 5})}},
                     {},
                     [](const auto& in) {
                       return tpa_decode_composed(in[0], in[1], in[2], in[3], in[4], in[5]);
                     },
                     normals({2, 1, 3, 5})});
  }
}

std::vector<OwnCase> edge_cases() {
  Normals normals;
  std::vector<OwnCase> cases;
  add_activation_cases(normals, cases);
  add_attention_cases(normals, cases);
  return cases;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "golden: zeros, underflow and what cancels have bounds") {
  for (const OwnCase& c : edge_cases()) {
    CAPTURE(c.op);
    CAPTURE(c.args);
    for (const std::string& failure : c.failures(device)) FAIL_CHECK(failure);
  }
}

TEST_CASE("golden: an entry that is a little off fails, whatever its neighbours are") {
  for (const OwnCase& c : edge_cases()) {
    CAPTURE(c.op);
    CAPTURE(c.args);
    if (max(abs(c.f(c.tensors()))).item() == 0) continue;  // nothing to be a part of
    CHECK(!c.failures(cpu, "o", 1e-7).empty());
  }
}
