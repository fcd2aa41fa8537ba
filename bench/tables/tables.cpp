// quipu-tables: the published tables of the fused operators with ours beside them. tables.h says
// how they are measured.
#include "tables.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "predict.h"
#include "quipu/core/error.h"
#include "quipu/core/memory/memory.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

struct Options {
  std::string family, kind, pass, device, format = "table", out;
  bool predicted = false, kernels = false;
  std::string card;  // to predict for; empty: the one of each table
  std::int64_t max_n = 0;
  int repeats = 20;
  std::string published = published_directory();
};

/// An empty choice takes everything.
bool chosen(const std::string& choice, const std::string& value) {
  return choice.empty() || choice == value;
}

Device device_for(const Options& options, Kind kind) {
  if (!options.device.empty()) return options.device;
  return kind == Kind::memory ? "meta:cuda" : "cpu";
}

/// Times on the CPU grow to minutes in the last rows.
std::int64_t max_n_for(const Options& options, Kind kind, Device device) {
  if (options.max_n > 0) return options.max_n;
  return kind == Kind::speed && device.is_cpu() ? 1024 : 0;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  check(file.good(), "cannot write ", path.string());
}

void put(const Options& options, const Comparison& comparison) {
  if (options.format == "table") {
    fmt::print("{}\n", as_text(comparison));
  } else if (options.format == "csv" && options.out.empty()) {
    fmt::print("# {}.csv\n{}\n", comparison.published->name, as_csv(comparison));
  } else if (options.format == "csv") {
    const auto folder = std::filesystem::path(options.out) / comparison.published->family;
    std::filesystem::create_directories(folder);
    write(folder / (comparison.published->name + ".csv"), as_csv(comparison));
  }
  std::fflush(stdout);
}

Comparison measured_table(const Options& options, const PublishedTable& table) {
  const Device device = device_for(options, table.kind);
  return compare_with(table, device, max_n_for(options, table.kind, device), options.repeats);
}

Comparison predicted_table(const Options& options, const PublishedTable& table) {
  const Card& card = options.card.empty() ? card_of(table) : card_named(options.card);
  return predict(table, card, options.max_n);
}

void run(const Options& options) {
  if (options.kernels) {
    for (const std::string& name : predicted_kernels()) fmt::print("{}\n", name);
    return;
  }
  if (options.family == "attention") {
    check(options.predicted, "attention has no published tables: add --predict a100 or h100");
    fmt::print("{}", predict_attention(card_named(options.card.empty() ? "a100" : options.card)));
    return;
  }
  if (options.predicted && options.format == "table") fmt::print("{}\n\n", how_predicted());
  const std::vector<PublishedTable> tables = read_published(options.published);
  std::vector<Comparison> all;
  for (const PublishedTable& table : tables) {
    if (!chosen(options.family, table.family) || !chosen(options.kind, name_of(table.kind)) ||
        !chosen(options.pass, name_of(table.pass)))
      continue;
    all.push_back(options.predicted ? predicted_table(options, table)
                                    : measured_table(options, table));
    put(options, all.back());
  }
  check(!all.empty(), "no published table is of that family, kind and pass");
  if (options.format == "html" && options.out.empty()) {
    fmt::print("{}", as_html(all));
  } else if (options.format == "html") {
    std::filesystem::create_directories(options.out);
    write(std::filesystem::path(options.out) / "tables.html", as_html(all));
  }
  if (options.predicted && (!options.out.empty() || options.format == "table")) {
    fmt::print("{}", summary_of_predictions(all));
  }
  if (options.kind == "speed" || (options.out.empty() && options.format != "table")) return;
  std::erase_if(all, [](const Comparison& c) { return c.published->kind == Kind::speed; });
  const Tally count = tally(all);
  fmt::print("memory: {} of our figures are below the best published one, {} equal, {} above\n",
             count.below, count.equal, count.above);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints the published tables of the fused operators with ours beside them.");
  app.add_option(
         "--family", options.family,
         "only this operator (default: all but attention, which is only predicted, in TFLOP/s)")
      ->check(
          CLI::IsMember({"act", "lrpe_rotate", "lrpe_cosine", "tpa_decode", "flao", "attention"}));
  options.kind = "memory";
  app.add_option("--kind", options.kind, "what is measured")
      ->capture_default_str()
      ->check(CLI::IsMember({"memory", "speed"}));
  app.add_option("--pass", options.pass, "only fwd or only bwd (default: both)")
      ->check(CLI::IsMember({"fwd", "bwd"}));
  app.add_option("--device", options.device,
                 "cpu, cuda, meta:cpu or meta:cuda (default: meta:cuda for memory, cpu for speed)");
  app.add_option("--max-n", options.max_n,
                 "no rows with more tokens (default: all; 1024 for speed on the CPU)")
      ->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats, "calls whose peaks are averaged")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--format", options.format, "of the output")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "csv", "html"}));
  app.add_option("--out", options.out,
                 "folder for csv files, one a table under its published name, or tables.html");
  app.add_option("--published", options.published, "folder of the published tables");
  CLI::Option* predict = app.add_option(
      "--predict", options.card,
      "for speed on a card that is not here, in the emulated build: a100, a800, h100 or h200 "
      "(default: the card of each table)");
  predict->expected(0, 1);
  app.add_flag("--kernels", options.kernels, "print the kernels that --predict needs the code of");
  CLI11_PARSE(app, argc, argv);
  options.predicted = predict->count() > 0;
  if (options.predicted) {
    options.kind = "speed";
    setenv("QUIPU_EMULATOR_CHECK", "0", 0);  // tests check; here kernels are only counted
  }
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "quipu-tables: {}\n", error.what());
    return 1;
  }
}
