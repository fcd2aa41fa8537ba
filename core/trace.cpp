// Recordings in the Chrome trace format: spans are complete events ("X"), memory is a counter ("C")
// with one series a category. Written by hand: a run has hundreds of thousands of lines.
#include <fmt/format.h>

#include "quipu/core/recording.h"

namespace quipu {
namespace {

/// A string as JSON. Names are of operators and scopes; anything odd in them is replaced.
std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return json + '"';
}

double microseconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-3;
}

void append_span(std::string& out, const Span& span, std::int64_t start_ns) {
  const std::string scope = scope_path(span.scope);
  out += fmt::format(
      ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"{}\",\"name\":{},\"ts\":{:.3f},\"dur\":"
      "{:.3f},\"args\":{{\"scope\":{}}}}}",
      span.op ? "operator" : "scope", quoted(span.op ? span.op : scope),
      microseconds(span.start_ns - start_ns), microseconds(span.end_ns - span.start_ns),
      quoted(scope));
}

void append_counter(std::string& out, const std::string& name, std::int64_t ns,
                    const CategoryBytes& bytes) {
  out += fmt::format(",\n{{\"ph\":\"C\",\"pid\":1,\"name\":{},\"ts\":{:.3f},\"args\":{{", name,
                     microseconds(ns));
  for (int c = 0; c < category_count; ++c) {
    out += fmt::format("{}\"{}\":{}", c == 0 ? "" : ",", name_of(static_cast<Category>(c)),
                       bytes[static_cast<std::size_t>(c)]);
  }
  out += "}}";
}

}  // namespace

std::string MemoryRecording::trace() const {
  const EventLog log = this->log();
  const std::string counter = quoted("bytes live on " + to_string(device_));
  std::string out =
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"quipu\"}},\n"
      "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"operators\"}"
      "}";
  for (const Span& span : spans_) append_span(out, span, log.start_ns);
  CategoryBytes bytes = log.start;
  append_counter(out, counter, 0, bytes);
  for (const MemoryEvent& event : log.events) {
    if (event.from >= 0) bytes[static_cast<std::size_t>(event.from)] -= event.bytes;
    if (event.to >= 0) bytes[static_cast<std::size_t>(event.to)] += event.bytes;
    append_counter(out, counter, event.ns, bytes);
  }
  return out + "\n]}\n";
}

}  // namespace quipu
