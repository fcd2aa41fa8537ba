#include "report.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_set>

#include "../multiprocessor.h"
#include "../runtime/stream.h"
#include "symbols.h"

namespace quipu::emulator {
namespace {

constexpr std::size_t most_reports = 200;

struct Collected {
  std::mutex lock;
  std::vector<Report> reports;
  std::set<std::tuple<std::string, std::string, unsigned>> places;
  std::set<std::pair<std::string_view, std::uintptr_t>> codes;
};

Collected& collected() {
  static Collected* all = new Collected;
  return *all;
}

/// A program that nobody tests fails as well: as sanitizers do, at its end.
void fail_at_exit() {
  const std::size_t count = collected().reports.size();
  if (count == 0 || !settings().print) return;
  std::fprintf(stderr, "emulator: %zu reports, see above\n", count);
  std::fflush(nullptr);
  std::_Exit(66);
}

void add(Report report) {
  Collected& all = collected();
  const std::lock_guard guard(all.lock);
  const std::string& place = report.file.empty() ? report.text : report.file;
  if (!all.places.emplace(report.kind, place, report.line).second) return;
  if (all.reports.size() >= most_reports) return;
  static const int registered = std::atexit(fail_at_exit);
  static_cast<void>(registered);
  if (settings().print) std::fprintf(stderr, "%s\n", report.message().c_str());
  all.reports.push_back(std::move(report));
}

Report in_kernel(const char* kind, const std::string& text) {
  Report result;
  result.kind = kind;
  result.text = text;
  if (running == nullptr) return result;
  result.kernel = kernel_name(running->launch()->call->kernel);
  result.text = running->where() + " " + text;
  return result;
}

unsigned long long environment(const char* name, unsigned long long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

}  // namespace

Settings& settings() {
  static Settings* current = [] {
    auto* s = new Settings;
    s->seed = environment("QUIPU_EMULATOR_SEED", s->seed);
    s->check = environment("QUIPU_EMULATOR_CHECK", s->check) != 0;
    s->count = environment("QUIPU_EMULATOR_COUNT", s->count) != 0;
    s->run = environment("QUIPU_EMULATOR_RUN", s->run) != 0;
    s->preempt = static_cast<unsigned>(environment("QUIPU_EMULATOR_PREEMPT", s->preempt));
    s->yield = static_cast<unsigned>(environment("QUIPU_EMULATOR_YIELD", s->yield));
    s->threads = static_cast<unsigned>(environment("QUIPU_EMULATOR_THREADS", s->threads));
    s->print = environment("QUIPU_EMULATOR_PRINT", s->print) != 0;
    s->devices = static_cast<int>(environment("QUIPU_EMULATOR_DEVICES", s->cards.size()));
    s->sticky = environment("QUIPU_EMULATOR_STICKY", s->sticky) != 0;
    s->device_bytes = environment("QUIPU_EMULATOR_DEVICE_BYTES", s->device_bytes);
    return s;
  }();
  return *current;
}

std::string Report::message() const {
  std::string result = file.empty() ? "" : file + ":" + std::to_string(line) + ": ";
  result += "error: [" + kind + "] " + text;
  if (!kernel.empty()) result += " (kernel " + kernel + ")";
  return result;
}

bool first_at(const char* kind, std::uintptr_t place) {
  Collected& all = collected();
  const std::lock_guard guard(all.lock);
  return all.codes.emplace(kind, place).second;
}

void report(const char* kind, std::uintptr_t return_address, const std::string& text) {
  Report result = in_kernel(kind, text);
  SourceLine at = source_line(return_address);
  result.file = std::move(at.file);
  result.line = at.line;
  add(std::move(result));
}

void report(const char* kind, Site at, const std::string& text) {
  report_line(kind, at.file_name(), static_cast<unsigned>(at.line()), text);
}

void report_line(const char* kind, const char* file, unsigned line, const std::string& text) {
  Report result = in_kernel(kind, text);
  result.file = file;
  result.line = line;
  add(std::move(result));
}

void report_host(const char* kind, const std::string& text) {
  Report result;
  result.kind = kind;
  result.text = text;
  add(std::move(result));
}

std::vector<Report> reports() {
  finish_all_streams();
  const std::lock_guard guard(collected().lock);
  return collected().reports;
}

void clear_reports() {
  finish_all_streams();
  Collected& all = collected();
  const std::lock_guard guard(all.lock);
  all.reports.clear();
  all.places.clear();
  all.codes.clear();
}

std::string report_text() {
  std::string text;
  for (const Report& report : reports()) text += report.message() + "\n";
  return text;
}

}  // namespace quipu::emulator
