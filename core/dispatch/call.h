#pragma once
// A call of a kernel as an object: arguments of its own, whose views can be pointed to other memory
// before it runs. The reference repeats calls this way (core/dispatch/kernel_check.h).
// Internal to the library.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "quipu/core/dispatch/view.h"

namespace quipu::detail {

/// What an operand of a kernel is compared as.
enum class Role : std::uint8_t {
  value,         // by its elements, whether the kernel reads or writes them
  workspace,     // not at all: what a back end leaves there is its own business
  partial_sums,  // by its sums over the first dimension
  rest,          // together with the operand before it, of which it has what rounding left off
};

struct KernelOperand {
  std::string name;
  View* view;
  Role role;
};

class KernelCall {
 public:
  KernelCall() = default;
  virtual ~KernelCall() = default;
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;
  virtual void run() = 0;

  std::vector<KernelOperand> operands;  // those that are defined
};

/// The names of a kernel's arguments, in order, with a space between them. A mark behind a name
/// tells its role: * is a workspace, + are partial sums.
class ArgumentNames {
 public:
  constexpr explicit ArgumentNames(std::string_view names) : left_(names) {}
  constexpr std::string_view next() {
    const std::size_t end = std::min(left_.find(' '), left_.size());
    const std::string_view name = left_.substr(0, end);
    left_.remove_prefix(std::min(end + 1, left_.size()));
    return name;
  }
  constexpr bool done() const { return left_.empty(); }

 private:
  std::string_view left_;
};

template <class... Args>
class KernelCallOf final : public KernelCall {
 public:
  using Function = void (*)(Args...);

  KernelCallOf(Function f, std::string_view names, const std::decay_t<Args>&... args)
      : function_(f), args_(args...) {
    ArgumentNames list(names);
    std::apply([&](auto&... arg) { (collect(list.next(), arg), ...); }, args_);
  }
  void run() override { std::apply(function_, args_); }

 private:
  void note(std::string_view name, View& view, Role role) {
    if (view.defined) operands.push_back({std::string(name), &view, role});
  }
  template <class T>
  void collect(std::string_view name, T& arg) {
    if constexpr (std::is_same_v<T, View> || std::is_same_v<T, Target>) {
      const char mark = name.empty() ? ' ' : name.back();
      const Role role = mark == '*'   ? Role::workspace
                        : mark == '+' ? Role::partial_sums
                                      : Role::value;
      if (role != Role::value) name.remove_suffix(1);
      if constexpr (std::is_same_v<T, View>) {
        note(name, arg, role);
      } else {
        note(name, arg.view, role);
      }
    } else if constexpr (requires { arg.each_view([](std::string_view, View&, Role) {}); }) {
      arg.each_view(
          [&](std::string_view member, View& view, Role role) { note(member, view, role); });
    }
  }

  Function function_;
  std::tuple<std::decay_t<Args>...> args_;
};

}  // namespace quipu::detail
