#pragma once
// What all training programs here have: options, how they begin and how they end.
#include <fmt/format.h>
#include <quipu/quipu.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>

#include "shared_file.h"

inline const CLI::Range positive(1, 1'000'000'000, "positive");
inline const CLI::Range not_negative(0, 1'000'000'000, "not negative");

struct CommonOptions {
  std::string device = "cpu";
  quipu::DType dtype = quipu::f32;
  std::uint64_t seed = 7;
  int threads = 0;
  std::string log, page;
  bool recompute = false, report = false;

  quipu::nn::Place place() const { return {.device = device, .dtype = dtype}; }
  /// Data lies on the CPU; on meta it has no values either.
  quipu::Device data_device() const {
    return {quipu::DeviceKind::cpu, 0, quipu::Device(device).is_meta()};
  }
  bool computes() const { return !quipu::Device(device).is_meta(); }
};

inline void add_common_options(CLI::App& app, CommonOptions& o) {
  using namespace quipu;
  const std::map<std::string, DType> types{{"f32", f32}, {"bf16", bf16}, {"f64", f64}};
  app.add_option("--device", o.device, "cpu, cuda, or meta:cpu or meta:cuda to count bytes only")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--dtype", [&o, types](const std::string& name) { o.dtype = types.at(name); },
         "f32, bf16 or f64: of the model; AdamW keeps f32 weights beside bf16 ones")
      ->check(CLI::IsMember({"f32", "bf16", "f64"}))
      ->default_str("f32");
  app.add_option("--seed", o.seed, "of weights, order and draws")->capture_default_str();
  app.add_option("--threads", o.threads, "0: all cores; results are the same")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--log", o.log, "write one JSON line a step to this file");
  app.add_option("--page", o.page, "write loss curve and figures to this HTML file at the end");
  app.add_flag("--recompute", o.recompute, "keep only the inputs of layers for backward");
  app.add_flag("--report", o.report, "print the model and who held memory at the peak");
}

/// Parses the options, seeds, and runs the program; an error is one message. A run that was stopped
/// by a signal ends with the status that is usual for it.
template <class Program>
int run_program(CLI::App& app, int argc, char** argv, const CommonOptions& o,
                const Program& program) {
  CLI11_PARSE(app, argc, argv);
  try {
    if (o.threads > 0) quipu::set_num_threads(o.threads);
    if (!o.page.empty()) quipu::nn::RunPage::check_writable(o.page);
    quipu::manual_seed(o.seed);
    program();
    return quipu::nn::stop_requested() ? 128 + quipu::nn::stop_signal() : 0;
  } catch (const std::exception& error) {  // fmt's, too, when the terminal is gone
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

/// The memory of one step for the page: of the third, when the optimizer has all it needs.
class StepMemory {
 public:
  explicit StepMemory(const CommonOptions& o) : wanted_(!o.page.empty()), device_(o.device) {}

  /// Called before each step.
  void before_step() {
    if (recording_) timeline_ = recording_->report().timeline_html();
    recording_.reset();
    if (wanted_ && ++steps_ == 3) recording_ = std::make_unique<quipu::MemoryRecording>(device_);
  }
  const std::string& timeline() const { return timeline_; }

 private:
  bool wanted_;
  quipu::Device device_;
  int steps_ = 0;
  std::unique_ptr<quipu::MemoryRecording> recording_;
  std::string timeline_;
};

/// The last line of a run, "accuracy 97.98 % · 11.2 ms/step · peak 4.1 MiB", and its page.
inline void finish_run(const CommonOptions& o, const char* title, const quipu::nn::Module& model,
                       const quipu::nn::Progress& progress, const quipu::PeakMemory& peak,
                       const StepMemory& memory, const std::string& score_name,
                       const std::string& score) {
  using namespace quipu;
  const nn::RunFigures figures = progress.figures();
  if (o.report) fmt::print("{}\n", peak.report().text());
  if (!o.page.empty()) {
    const nn::RunFacts facts{.title = title,
                             .score_name = score_name,
                             .score = score,
                             .parameters = model.parameter_count(),
                             .seed = o.seed,
                             .options = {{"device", o.device}, {"dtype", name_of(o.dtype)}}};
    nn::RunPage page(facts, figures);
    if (!memory.timeline().empty()) page.add_section("Memory of one step", memory.timeline());
    page.save(o.page);
  }
  fmt::print("{} · {:.1f} ms/step · peak {}\n",
             o.computes() ? score_name + " " + score : "nothing was computed",
             1e3 * figures.median_seconds, human_bytes(peak.bytes()));
}
