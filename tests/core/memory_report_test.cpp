// Recordings and reports: every event adds up, the timeline has the peak, and each form of a report
// says what the ledger says.
#include <quipu/nn/optim/adamw.h>
#include <quipu/quipu.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "quipu/core/report/recording.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

std::size_t sum_of(const CategoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

std::size_t at(const CategoryBytes& bytes, Category category) {
  return bytes[static_cast<std::size_t>(category)];
}

/// A small model whose layers have scopes, trained with AdamW.
class Training {
 public:
  Training(Device device, std::int64_t batch, bool recomputes = false, DType dtype = f32,
           int layers = 4)
      : recomputes_(recomputes), x_(zeros({batch, 64}, dtype, device)) {
    for (int i = 0; i < layers; ++i) {
      for (const char* part : {"up", "down"}) {
        const Tensor w = zeros({64, 64}, dtype, device, Category::parameter).set_requires_grad();
        weights_.emplace_back(part + std::to_string(i), w);
      }
    }
    optimizer_ = std::make_unique<nn::AdamW>(weights_);
  }
  void step() {
    optimizer_->zero_grad();
    {
      Tape tape;
      Tensor h = x_;
      for (std::size_t i = 0; i < weights_.size() / 2; ++i) {
        const MemoryScope scope("layers." + std::to_string(i));
        const auto layer = [&, i](const std::vector<Tensor>& in) {
          const Tensor up = tanh(matmul(in[0], weights_[2 * i].second));
          return tanh(matmul(up * up, weights_[2 * i + 1].second)) + in[0];
        };
        h = recomputes_ ? recompute(layer, {h}) : layer({h});
      }
      const Tensor loss = mean(h);
      knots = tape.knots();
      tape.backward(loss);
    }
    optimizer_->step();
  }

  std::vector<KnotMemory> knots;

 private:
  bool recomputes_;
  Tensor x_;
  NamedTensors weights_;
  std::unique_ptr<nn::AdamW> optimizer_;
};

MemoryReport report_of(std::int64_t batch, bool recomputes = false, DType dtype = f32) {
  const Device device = "meta:cpu";
  const MemoryRecording recording(device);
  Training training(device, batch, recomputes, dtype);
  training.step();
  training.step();
  return recording.report();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "recording: categories add up to the counter, in a thousand steps") {
  const std::size_t steps = sized<std::size_t>(1000, 100);
  const MemoryRecording recording(device);
  const CategoryBytes before = memory_stats(device).by_category;
  {
    Training training(device, 16);
    for (std::size_t i = 0; i < steps; ++i) training.step();
  }
  const EventLog log = recording.log();
  CHECK(log.start == before);
  CHECK(log.events.size() > 100 * steps);
  CHECK(log.seen == log.events.size());
  CategoryBytes bytes = log.start;
  std::size_t wrong = 0, peak = sum_of(bytes), relabels = 0;
  std::int64_t last = 0;
  for (const MemoryEvent& event : log.events) {
    if (event.from >= 0) {
      wrong += bytes[static_cast<std::size_t>(event.from)] < event.bytes;
      bytes[static_cast<std::size_t>(event.from)] -= event.bytes;
    }
    if (event.to >= 0) bytes[static_cast<std::size_t>(event.to)] += event.bytes;
    wrong += sum_of(bytes) != event.live;
    wrong += event.ns < last;
    relabels += event.from >= 0 && event.to >= 0;
    last = event.ns;
    peak = std::max(peak, event.live);
  }
  CHECK(wrong == 0);
  CHECK(relabels > steps);
  CHECK(bytes == memory_stats(device).by_category);
  CHECK(recording.peak() == peak);
}

TEST_CASE("recording: the timeline has the peak and the end") {
  for (const Device device : {cpu, Device("meta:cpu")}) {
    const MemoryRecording recording(device);
    Training training(device, 16);
    for (int i = 0; i < 50; ++i) training.step();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a pause hides nothing
    training.step();
    const MemoryReport report = recording.report();
    REQUIRE(report.timeline.size() > 100);
    CHECK(report.timeline.size() < 1100);
    std::size_t peak = 0, marked = 0;
    for (std::size_t i = 0; i < report.timeline.size(); ++i) {
      const TimelinePoint& p = report.timeline[i];
      peak = std::max(peak, sum_of(p.bytes));
      if (p.event == report.peak_event) marked = sum_of(p.bytes);
      if (i > 0) CHECK(p.event > report.timeline[i - 1].event);
    }
    CHECK(peak == report.bytes);
    CHECK(marked == report.bytes);
    CHECK(report.timeline.back().bytes == memory_stats(device).by_category);
  }
}

TEST_CASE("recording: more events than asked for are counted, not kept") {
  const MemoryRecording recording("meta:cpu", 10);
  for (int i = 0; i < 20; ++i) zeros({10}, f32, "meta:cpu");
  const EventLog log = recording.log();
  CHECK(log.events.size() == 10);
  CHECK(log.seen == 40);
}

TEST_CASE("recording: regions, recordings and threads do not disturb each other") {
  const Device device = "meta:cpu";
  const MemoryRecording outer(device);
  std::size_t inner_events = 0;
  {
    const MemoryRecording inner(device);
    zeros({10}, f32, device);
    inner_events = inner.log().events.size();
    CHECK(inner.spans().size() == 1);
  }
  zeros({10}, f32, device);
  CHECK(inner_events == 2);
  CHECK(outer.log().events.size() == 4);
  CHECK(outer.spans().size() == 1);  // the inner one had the other
}

TEST_CASE("report: the largest blocks have operator, scope, shape and type") {
  const Device device = "meta:cpu";
  const MemoryScope scope("somewhere");
  const Tensor large = zeros({3, 1000}, bf16, device), small = ones({7}, f64, device);
  const MemoryReport report = memory_report(device);
  REQUIRE(report.blocks.size() >= 2);
  CHECK(report.blocks[0].tensor == "bf16(3, 1000)");
  CHECK(report.blocks[0].op == "zeros");
  CHECK(report.blocks[0].scope == "somewhere");
  CHECK(report.blocks[0].bytes == 6144);
  CHECK(report.blocks[1].tensor == "f64(7,)");
}

TEST_CASE("report: no more than twenty blocks, those that were there at the peak") {
  const Device device = "meta:cpu";
  const PeakMemory peak(device);
  {
    std::vector<Tensor> held;
    for (int i = 0; i < 30; ++i) held.push_back(zeros({1000 + 1000 * i}, f32, device));
  }
  const Tensor later = zeros({100}, f32, device);
  const MemoryReport report = peak.report();
  REQUIRE(report.blocks.size() == 20);
  CHECK(report.blocks.front().tensor == "f32(30000,)");
  CHECK(report.blocks.back().tensor == "f32(11000,)");
}

TEST_CASE("report: JSON says the same") {
  const Device device = "meta:cpu";
  const MemoryRecording recording(device);
  Training training(device, 64);
  training.step();
  MemoryReport report = recording.report();
  report.knots = training.knots;
  const nlohmann::json json = nlohmann::json::parse(report.json());
  CHECK(json["device"] == "meta:cpu");
  CHECK(json["bytes"] == report.bytes);
  CHECK(json["by_category"]["saved"] == at(report.by_category, Category::saved));
  CHECK(json["holders"].size() == report.holders.size());
  CHECK(json["blocks"].size() == report.blocks.size());
  CHECK(json["blocks"][0]["tensor"] == report.blocks[0].tensor);
  CHECK(json["timeline"]["saved"].size() == report.timeline.size());
  CHECK(json["peak_event"] == report.peak_event);
  CHECK(json["advice"].size() == report.advice().size());
}

TEST_CASE("report: the page explains the peak and needs nothing from outside") {
  const Device device = "meta:cpu";
  const MemoryRecording recording(device);
  const MemoryScope scope("a <b> & c");
  Training training(device, 4096);
  training.step();
  MemoryReport report = recording.report();
  report.knots = training.knots;
  const std::string html = report.html("Step");
  for (const std::string& part :
       {"Step: " + human_bytes(report.bytes) + " on meta:cpu at the peak",
        "peak " + human_bytes(report.bytes), std::string("The 20 largest blocks at the peak"),
        std::string("a &lt;b&gt; &amp; c/layers.0"), report.blocks[0].tensor,
        std::string("saved for backward"), std::string("What the tape keeps"),
        std::string("What would help"), std::string("prefers-color-scheme: dark")}) {
    CAPTURE(part);
    CHECK(html.find(part) != std::string::npos);
  }
  for (const char* outside : {"http", "src=", "@import", "<script", "url("}) {
    CAPTURE(outside);
    CHECK(html.find(outside) == std::string::npos);
  }
  const std::string piece = report.timeline_html();
  CHECK(piece.find("<svg") != std::string::npos);
  CHECK(piece.find("<body") == std::string::npos);
  CHECK(memory_report(device).html().find("<svg") == std::string::npos);  // no timeline, a bar
  CHECK(MemoryReport().html().find("Nothing was held") != std::string::npos);
}

TEST_CASE("report: knots of a tape, the largest first") {
  const Tensor x = ones({100, 10}).set_requires_grad();
  Tape tape;
  const Tensor y = tanh(x(slice(0, 10)));
  const Tensor z = sum(x * x);
  const std::vector<KnotMemory> knots = tape.knots();
  REQUIRE(knots.size() == 2);
  CHECK(knots[0].op == "mul");
  CHECK(knots[0].saved == 8000);
  CHECK(knots[0].output == "f32(100, 10)");
  CHECK(knots[1].op == "tanh");
  CHECK(knots[1].saved == 400);
}

TEST_CASE("advice: what it promises comes about") {
  const MemoryReport all = report_of(8192), half = report_of(4096), again = report_of(8192, true),
                     narrow = report_of(8192, false, bf16);
  const auto promised = [&](const char* what) {
    for (const MemoryAdvice& a : all.advice()) {
      if (a.what.find(what) != std::string::npos) return static_cast<double>(a.saves);
    }
    return 0.0;
  };
  const auto saved = [&](const MemoryReport& other) {
    return static_cast<double>(all.bytes) - static_cast<double>(other.bytes);
  };
  CHECK(promised("smaller batch") == doctest::Approx(saved(half)).epsilon(0.1));
  CHECK(promised("bf16") == doctest::Approx(saved(narrow)).epsilon(0.1));
  CHECK(promised("each of 3 scopes such as layers.") ==
        doctest::Approx(saved(again)).epsilon(0.25));
  for (const MemoryAdvice& a : again.advice()) {
    CHECK(a.what.find("recompute") == std::string::npos);  // it is done already
  }
}
