// quipu-bench: our own options, then Google Benchmark's, then the run, and what is made of it.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <quipu/quipu.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "options.h"
#include "quipu/core/threads/parallel.h"
#include "report/comparison.h"
#include "report/page.h"
#include "report/results.h"

namespace {

using namespace quipu;
using quipu::detail::check;
using namespace quipu::bench;
using namespace quipu::bench::report;

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(": ");
    if (line.starts_with("model name") && at != std::string::npos) return line.substr(at + 2);
  }
  return "";
}

/// Where the times are written for what is made of them: where the user says, or a file of ours
/// that goes away again.
class TimesFile {
 public:
  explicit TimesFile(Options& options) {
    for (const std::string& argument : options.google) {
      const std::string name = "--benchmark_out=";
      if (argument.starts_with(name)) path_ = argument.substr(name.size());
      check(!argument.starts_with("--benchmark_out_format") || argument.ends_with("=json"),
            argument, ": --page, --results, --peers and --baseline need json");
    }
    if (!path_.empty()) return;
    path_ = std::filesystem::temp_directory_path() / fmt::format("quipu-bench-{}.json", getpid());
    is_ours_ = true;
    options.google.push_back("--benchmark_out=" + path_);
  }
  ~TimesFile() {
    std::error_code ignored;
    if (is_ours_) std::filesystem::remove(path_, ignored);
  }
  TimesFile(const TimesFile&) = delete;
  TimesFile& operator=(const TimesFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_ours_ = false;
};

/// False where it does not know an option, which it has said.
bool initialize_google(const std::vector<std::string>& options) {
  static std::vector<std::string> words{"quipu-bench"};  // it keeps a pointer to its name
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  return !benchmark::ReportUnrecognizedArguments(count, arguments.data());
}

/// What the page says of where the times come from.
void add_context(Device device) {
  benchmark::AddCustomContext("quipu", version());
  benchmark::AddCustomContext("processor", processor());
  benchmark::AddCustomContext("cpu_level", cpu_level());
  benchmark::AddCustomContext("threads", std::to_string(num_threads()));
  benchmark::AddCustomContext("device", to_string(device));
}

void report(const Comparison& comparison, const Options& options) {
  if (comparison.peers) {
    fmt::print("\n");
    print_peers(comparison);
  }
  if (comparison.earlier) {
    fmt::print("\n");
    print_earlier(comparison);
  }
  fmt::print("\n{}\n", how_it_stands(comparison));
  if (!options.page.empty()) save_page(comparison, options.page);
  if (!options.results.empty()) save_results(comparison, options.results);
}

int run(Options& options) {
  // What cannot be read or written is better known before the run than after it.
  std::optional<Peers> peers;
  std::optional<Run> earlier;
  if (!options.peers.empty()) peers = read_peers(options.peers);
  if (!options.baseline.empty()) earlier = read_run(options.baseline);
  if (!options.page.empty()) check_writable(options.page);
  std::optional<TimesFile> times;
  if (options.reports()) times.emplace(options);

  if (!initialize_google(options.google)) return 2;
  if (options.only_operators) benchmark::ClearRegisteredBenchmarks();
  register_cases(options.cases);
  add_context(options.cases.device);
  if (benchmark::RunSpecifiedBenchmarks() == 0) return 1;  // it has said so
  benchmark::Shutdown();
  if (times) {
    report(compare(read_run(times->path()), std::move(peers), std::move(earlier)), options);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    if (const auto ended = parse_options(argc, argv, options)) return ended->status;
    return run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "quipu-bench: {}\n", error.what());
    return 1;
  }
}
