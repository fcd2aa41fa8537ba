#include "quipu/core/error.h"

#include <cstdio>

#include "quipu/core/context.h"

namespace quipu::detail {

void append_double(std::string& s, double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", part);
  s += text;
}

void throw_error(const std::string& message) {
  const char* op = thread_context().op;
  throw Error(op ? std::string(op) + ": " + message : message);
}

void throw_internal(const std::string& message) {
  const char* op = thread_context().op;
  throw InternalError("bug in quipu" + (op ? std::string(" (in ") + op + ")" : std::string()) +
                      ": " + message + "; please report it");
}

}  // namespace quipu::detail
