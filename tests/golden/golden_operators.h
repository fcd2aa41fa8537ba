#pragma once
// The operators that golden cases name: their tensors, and how to call them with the arguments of a
// case.
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "golden_sizes.h"
#include "support/accuracy.h"

namespace quipu::testing {

/// The JSON arguments of a case; one that nobody asks for is an error.
class GoldenArgs {
 public:
  explicit GoldenArgs(const std::string& text) : json_(nlohmann::json::parse(text)) {}

  template <class T>
  std::optional<T> find(const std::string& name) {
    if (!json_.contains(name)) return {};
    used_.insert(name);
    if (json_.at(name).is_null()) return {};
    return json_.at(name).get<T>();
  }
  template <class T>
  T get(const std::string& name, const T& otherwise) {
    return find<T>(name).value_or(otherwise);
  }
  Act act(const std::string& name) { return act_named(get<std::string>(name, "none")); }
  Shape shape(const std::string& name);
  void check_all_used() const;

 private:
  nlohmann::json json_;
  std::set<std::string> used_;
};

/// A way to run an operator, such as with the angles kept. `in`: its inputs, then its constants.
struct GoldenVariant {
  std::string name;
  std::function<Tensor(const std::vector<Tensor>& in)> f;
  bool keeps_rounded = false;  // backward reads a result that was rounded to bf16 or f16
};

/// What a case asks for.
struct GoldenTask {
  std::vector<GoldenVariant> variants;
  Accuracy accuracy;  // in bf16 and f16
  /// How large the terms of the results are; `in` as for a variant, in f64 and on the CPU.
  std::function<Sizes(const std::vector<Tensor>& in, const Tensor& d_o)> sizes;
  std::int64_t offset = 0;  // of the first position
};

struct GoldenOperator {
  std::vector<std::string> inputs;     // tensors with gradients
  std::vector<std::string> constants;  // tensors without, where the file has them
  GoldenTask (*task)(GoldenArgs&);
};

/// By name.
const std::map<std::string, GoldenOperator>& golden_operators();

}  // namespace quipu::testing
