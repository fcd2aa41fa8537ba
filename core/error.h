#pragma once
// Two kinds of failure: `check` for a user's mistake, `ensure` for our own bug.
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace quipu {

/// A user's mistake: the message names the operator, the argument, what was wanted and what came.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bug in quipu itself. Please report it with its message.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// No memory left on a device; the message names the largest holders and what would help.
class OutOfMemory : public Error {
 public:
  OutOfMemory(const std::string& message, std::size_t requested_bytes)
      : Error(message), requested(requested_bytes) {}
  std::size_t requested;  // bytes of the one allocation that failed
};

namespace detail {

inline void append(std::string& s, std::string_view part) {
  s += part;
}
inline void append(std::string& s, const std::string& part) {
  s += part;
}
inline void append(std::string& s, const char* part) {
  s += part;
}
inline void append(std::string& s, char part) {
  s += part;
}
inline void append(std::string& s, bool part) {
  s += part ? "true" : "false";
}
void append_double(std::string& s, double part);

template <class T>
void append(std::string& s, const T& part) {
  if constexpr (std::is_floating_point_v<T>) {
    append_double(s, part);
  } else if constexpr (std::is_integral_v<T>) {
    s += std::to_string(part);
  } else {
    s += to_string(part);  // found beside the type
  }
}

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string s;
  (append(s, parts), ...);
  return s;
}

[[noreturn]] void throw_error(const std::string& message);
[[noreturn]] void throw_internal(const std::string& message);

/// Throws `Error` with the parts joined, after the name of the running operator.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw_error(concat(parts...));
}

/// A user's mistake unless `ok`. Parts are only joined on failure.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(parts...);
}

/// A user's mistake unless `value` is one of those that its type names, which end with `last`.
template <class Enum>
void check_enum(const char* name, Enum value, Enum last) {
  check(static_cast<unsigned>(value) <= static_cast<unsigned>(last), name, " is ",
        static_cast<int>(value), ", but its type has the values 0 to ", static_cast<int>(last));
}

/// Our own bug unless `ok`.
template <class... Parts>
void ensure(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_internal(concat(parts...));
}

}  // namespace detail
}  // namespace quipu
