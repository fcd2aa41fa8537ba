#include "golden_case.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "quipu/autograd/tape.h"
#include "quipu/core/dispatch/kernel_check.h"
#include "quipu/core/io/safetensors.h"
#include "quipu/ops/pointwise/compare.h"
#include "support/support.h"

namespace quipu::testing {

using namespace detail;

std::vector<Tensor> run_golden(const GoldenVariant& variant, const std::vector<Tensor>& in,
                               std::size_t with_gradient, const Tensor& d_o) {
  std::vector<Tensor> inputs, leaves;
  for (const Tensor& x : in) {
    inputs.push_back(x.detach());
    if (leaves.size() < with_gradient) leaves.push_back(inputs.back().set_requires_grad());
  }
  Tape tape;
  const Tensor o = variant.f(inputs);
  std::vector<Tensor> results = tape.gradients(o, leaves, {d_o, false});
  results.insert(results.begin(), o.detach());
  return results;
}

namespace {

/// What the results of a case are held to.
struct GoldenScale {
  Sizes sizes;
  double angle = 0;     // the largest one
  double upstream = 0;  // the largest entry of d_o
};

/// What each entry of result `i` may be off by.
Tensor bounds(const Tensor& wanted, DType dtype, const GoldenTask& task,
              const GoldenVariant& variant, const GoldenScale& scale, std::size_t i) {
  if (wanted.numel() == 0) return wanted;
  Tensor size = maximum(scale.sizes[i], abs(wanted.to(cpu)));
  size = where(eq(size - size, 0), size, 0);  // infinity bounds nothing
  const double angles = dtype == f64 ? 0.0 : scale.angle * epsilon_of(f32);
  const double sums = dtype == f64 ? 1e-10 : dtype == f32 ? 2e-5 : 0.0;
  const Tensor moved = max(size, -1, true) * (sums + angles);
  const double lost = 4 * smallest_subnormal(dtype) * (1 + scale.upstream);
  const Tensor beside = (moved + lost).expand(wanted.shape());
  if (!is_reduced(dtype)) return beside;
  // The reference rounds each result once.
  const bool rounded_before = i > 0 && variant.keeps_rounded;
  if (resolved_kernel_mode() == KernelMode::reference && !rounded_before) {
    return abs(wanted.to(cpu)) * (epsilon_of(dtype) / 2) + beside;
  }
  return bounds_of_reduced(wanted.to(cpu), dtype, task.accuracy, size) + beside;
}

/// One golden case on one device.
class GoldenCase {
 public:
  GoldenCase(const std::string& path, Device device)
      : file_(path), name_(std::filesystem::path(path).filename()), device_(device) {
    const std::string op = metadata("op");
    check(golden_operators().contains(op), "there is no operator \"", op, "\"");
    operator_ = &golden_operators().at(op);
    check_names();
  }

  /// What is wrong with it, a line each.
  std::vector<std::string> failures() {
    GoldenArgs args(metadata("args"));
    const GoldenTask task = operator_->task(args);
    args.check_all_used();
    const GoldenScale scale = scale_of(task);
    for (const GoldenVariant& variant : task.variants) {
      for (const DType dtype : {f64, f32, bf16, f16}) check_variant(task, variant, dtype, scale);
    }
    return failures_;
  }

 private:
  std::string metadata(const std::string& name) const {
    check(file_.metadata().contains(name), "the metadata has no \"", name, "\"");
    return file_.metadata().at(name);
  }
  /// The file may have no other tensors than those that are used.
  void check_names() const {
    std::set<std::string> known{"do", "o"};
    known.insert(operator_->constants.begin(), operator_->constants.end());
    for (const std::string& name : operator_->inputs) known.insert({name, "d" + name});
    for (const TensorEntry& entry : file_.entries()) {
      check(known.contains(entry.name), "tensor ", entry.name, " is not known");
    }
  }
  Tensor get(const std::string& name, DType dtype) const {
    const Tensor values = file_.get(name).to(device_);
    return is_floating(values.dtype()) ? values.to(dtype) : values;
  }
  std::vector<Tensor> inputs(DType dtype) const {
    std::vector<Tensor> result;
    for (const std::string& name : operator_->inputs) result.push_back(get(name, dtype));
    for (const std::string& name : operator_->constants) {
      if (file_.contains(name)) result.push_back(get(name, dtype));
    }
    return result;
  }
  GoldenScale scale_of(const GoldenTask& task) const {
    std::vector<Tensor> in = inputs(f64);
    for (Tensor& x : in) x = x.to(cpu);
    const Tensor d_o = get("do", f64).to(cpu);
    const auto largest = [](const Tensor& x) { return x.numel() > 0 ? max(abs(x)).item() : 0.0; };
    GoldenScale scale{task.sizes(in, d_o), 0, largest(d_o)};
    if (file_.contains("theta")) {
      // No position is beyond the number of tokens.
      std::int64_t tokens = 1;
      for (int i = 1; i < in[0].dim(); ++i) tokens = std::max(tokens, in[0].size(i));
      const std::int64_t most = tokens + std::abs(task.offset);
      scale.angle = largest(get("theta", f64)) * static_cast<double>(most);
    }
    return scale;
  }
  /// What the file says or, in reduced types, what f64 gives for the rounded inputs.
  std::vector<Tensor> wanted(const GoldenVariant& variant, DType dtype) const {
    if (is_reduced(dtype)) {
      std::vector<Tensor> rounded = inputs(dtype);
      for (Tensor& x : rounded) x = is_floating(x.dtype()) ? x.to(f64) : x;
      return run_golden(variant, rounded, operator_->inputs.size(), get("do", dtype).to(f64));
    }
    std::vector<Tensor> result{get("o", f64)};
    for (const std::string& name : operator_->inputs) result.push_back(get("d" + name, f64));
    return result;
  }
  void check_variant(const GoldenTask& task, const GoldenVariant& variant, DType dtype,
                     const GoldenScale& scale) {
    const auto want = wanted(variant, dtype);
    const auto got = run_golden(variant, inputs(dtype), operator_->inputs.size(), get("do", dtype));
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::string part = i == 0 ? "o" : "d" + operator_->inputs[i - 1];
      compare_part(variant.name + " " + name_of(dtype) + " " + part, got[i], want[i], dtype,
                   bounds(want[i], dtype, task, variant, scale, i));
    }
  }
  void compare_part(const std::string& what, const Tensor& got, const Tensor& want, DType dtype,
                    const Tensor& allowed) {
    if (got.dtype() != dtype) failures_.push_back(name_ + what + " is " + name_of(got.dtype()));
    const Tensor rounded = want.to(dtype).to(f64);  // infinity where it overflows
    const auto beyond = first_beyond(got, where(eq(rounded - rounded, 0), want, rounded), allowed);
    if (beyond) failures_.push_back(name_ + what + " " + *beyond);
  }

  SafetensorsFile file_;
  std::string name_;
  Device device_;
  const GoldenOperator* operator_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> failures_of(const std::string& path, Device device) {
  try {
    return GoldenCase(path, device).failures();
  } catch (const std::exception& error) {
    return {path + ": " + error.what()};
  }
}

}  // namespace quipu::testing
