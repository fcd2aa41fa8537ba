#include "options.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "quipu/core/error.h"

namespace quipu::bench {
namespace {

constexpr std::int64_t largest_n = 1 << 30;  // larger than any memory

constexpr const char* examples = R"(
Examples:
  quipu-bench --op act,flao --dtype f32 --n 64,256,1024,4096 --page bench.html
  quipu-bench --op flao --pass bwd --peers peers.jsonl
  quipu-bench --op act --benchmark_out=before.json      and, with a change:
  quipu-bench --op act --baseline before.json
  quipu-bench --benchmark_filter='^matmul'

--n, --op, --dtype and --pass choose among the operators that have n; with any of the last three
nothing else is run. QUIPU_NUM_THREADS is the number of threads, QUIPU_CPU the instructions.

Google Benchmark's options, which say what is run of that, how long and how often:
)";

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words{""};
  for (const char c : list) c == ',' ? words.emplace_back() : words.back() += c;
  return words;
}

std::vector<std::int64_t> read_sizes(const std::string& list) {
  std::vector<std::int64_t> sizes;
  for (const std::string& word : split(list)) {
    const bool is_number = !word.empty() && word.size() < 11 &&
                           word.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t n = is_number ? std::stoll(word) : 0;
    if (n < 1 || n > largest_n) {
      throw CLI::ValidationError(
          "--n",
          fmt::format("wanted sizes from 1 to {}, such as 256,2048, got '{}'", largest_n, word));
    }
    sizes.push_back(n);
  }
  return sizes;
}

Device read_device(const std::string& name) {
  try {
    const Device device(name);
    if (!device.is_meta()) return device;
  } catch (const Error&) {  // it would name devices that cannot be timed, too
  }
  throw CLI::ValidationError("--device", "wanted cpu, cuda or cuda:N, got '" + name + "'");
}

/// A list with commas, every word of which is one of `known`.
void add_list(CLI::App& app, const std::string& name, std::vector<std::string>& words,
              const std::string& meaning, const std::vector<std::string>& known) {
  const auto read = [&words, name, known](const std::string& list) {
    words = split(list);
    for (const std::string& word : words) {
      if (std::find(known.begin(), known.end(), word) != known.end()) continue;
      throw CLI::ValidationError(
          name, fmt::format("wanted some of {}, got '{}'", fmt::join(known, ", "), word));
    }
  };
  app.add_option_function<std::string>(name, read, meaning)->type_name("LIST");
}

void add_case_options(CLI::App& app, Options& o) {
  app.add_option_function<std::string>(
         "--n", [&o](const std::string& list) { o.cases.sizes = read_sizes(list); },
         "sizes, such as 256,2048 (default: 256); what needs more memory than there is is left out")
      ->type_name("LIST");
  add_list(app, "--op", o.cases.ops, "only these operators, such as act,flao", operator_names());
  add_list(app, "--dtype", o.cases.dtypes, "only these of f32, bf16 and f16",
           {"f32", "bf16", "f16"});
  add_list(app, "--pass", o.cases.passes, "only fwd or only bwd", {"fwd", "bwd"});
  app.add_flag_callback(
      "--no-reference", [&o] { o.cases.references = false; },
      "leave out the rows by plain formulas, which are slow where n is large");
  app.add_option_function<std::string>(
         "--device", [&o](const std::string& name) { o.cases.device = read_device(name); },
         "where operators that have n run: cpu or cuda (default: cpu)")
      ->type_name("NAME");
}

void add_report_options(CLI::App& app, Options& o) {
  app.add_option("--baseline", o.baseline,
                 "an earlier run, written with --benchmark_out: rows slower than it are marked")
      ->type_name("FILE");
  app.add_option("--peers", o.peers,
                 "times of others, a JSON line each: op (our name with _ for /), n, dtype, pass, "
                 "peer, ms")
      ->type_name("FILE");
  app.add_option("--page", o.page,
                 "write how it stands, heat maps, curves over n and tables to this HTML page")
      ->type_name("FILE");
  app.add_option("--results", o.results,
                 "write page, figures and, with --peers, a picture into this folder")
      ->type_name("FOLDER");
}

bool is_googles(const std::string& argument) {
  return argument.starts_with("--benchmark_") || argument.starts_with("--v=");
}

}  // namespace

std::optional<Ended> parse_options(int argc, char** argv, Options& options) {
  CLI::App app("Times operators beside what bounds them, beside others and beside earlier runs.",
               "quipu-bench");
  add_case_options(app, options);
  add_report_options(app, options);
  app.footer(examples);
  std::vector<std::string> ours;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 takes them in reverse
    if (!is_googles(argv[i])) ours.push_back(argv[i]);
  }
  for (int i = 1; i < argc; ++i) {
    if (is_googles(argv[i])) options.google.push_back(argv[i]);
  }
  try {
    app.parse(ours);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    std::fflush(stdout);
    benchmark::PrintDefaultHelp();
    return Ended{0};
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "quipu-bench: {}\nquipu-bench --help lists all options.\n", error.what());
    return Ended{2};
  }
  const CaseChoice& cases = options.cases;
  options.only_operators = !cases.ops.empty() || !cases.dtypes.empty() || !cases.passes.empty();
  return {};
}

}  // namespace quipu::bench
