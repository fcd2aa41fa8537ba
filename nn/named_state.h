#pragma once
// State as named tensors: what modules, optimizers and loaders hand to a checkpoint and take back.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/io/safetensors.h"

namespace quipu::nn {

/// What load_state() and load_into() want of names.
enum class Loading {
  strict,   // the same on both sides
  partial,  // what is on one side only is left as it is, and reported
};

/// Names that found no partner; in the order of the target and of the source.
struct LoadReport {
  std::vector<std::string> missing;    // in the target only: kept as they were
  std::vector<std::string> left_over;  // in the source only
  /// All names found their partners.
  bool complete() const { return missing.empty() && left_over.empty(); }
  /// One line each, cut after about 20.
  std::string text() const;
};

/// Copies each tensor of `source` into the one of `target` with its name, whatever the device.
/// Shapes and dtypes must be the same and, unless the loading is partial, the names, too. Otherwise
/// nothing is changed, and the error lists all that differs.
LoadReport load_into(const NamedTensors& target, const NamedTensors& source,
                     Loading loading = Loading::strict);

namespace detail {

/// The tensor of that name, or null.
const Tensor* find_tensor(const NamedTensors& state, std::string_view name);

/// A whole number as state: i64 without dimensions, on the CPU.
Tensor to_state(std::int64_t number);
/// The whole number of that name. An error when it is missing or something else.
std::int64_t whole_number(const NamedTensors& state, std::string_view name);

/// The same tensors with `prefix` before each name.
NamedTensors add_prefix(std::string_view prefix, const NamedTensors& state);
/// The tensors whose names begin with `prefix`, without it.
NamedTensors take_prefix(std::string_view prefix, const NamedTensors& state);

/// The most that a counter may begin with: it can go on for ever, and is exact as a double.
inline constexpr std::int64_t most_steps = std::int64_t{1} << 53;
/// An error that names `whose` and `name` unless it is one i64 number from 0 to most_steps. On meta
/// there is no number to look at.
void check_counter(const char* whose, const std::string& name, const Tensor& counter);

}  // namespace detail
}  // namespace quipu::nn
