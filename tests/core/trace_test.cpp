// Traces: what a viewer reads is JSON with spans that nest and counters that add up.
#include <quipu/quipu.h>

#include <nlohmann/json.hpp>

#include "quipu/core/report/recording.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

nlohmann::json events_of(const MemoryRecording& recording) {
  return nlohmann::json::parse(recording.trace())["traceEvents"];
}

nlohmann::json with(const nlohmann::json& events, const char* phase) {
  nlohmann::json found = nlohmann::json::array();
  for (const auto& e : events) {
    if (e["ph"] == phase) found.push_back(e);
  }
  return found;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "trace: operators, scopes and memory on one timeline") {
  const Tensor w = ones({64, 64}, f32, device).set_requires_grad();
  const MemoryRecording recording(device);
  {
    const MemoryScope scope("a \"quoted\"\\ scope");
    Tape tape;
    tape.backward(mean(tanh(matmul(w, w))));
  }
  const nlohmann::json events = events_of(recording);
  std::map<std::string, nlohmann::json> spans;
  for (const auto& e : with(events, "X")) {
    spans[e["name"]] = e;
    CHECK(e["dur"] >= 0);
    CHECK(e["ts"] >= 0);
  }
  for (const char* name : {"matmul", "tanh", "mean", "backward", "tanh backward", "matmul backward",
                           "a \"quoted\"\\ scope"}) {
    CAPTURE(name);
    CHECK(spans.contains(name));
  }
  CHECK(spans["tanh"]["args"]["scope"] == "a \"quoted\"\\ scope");
  CHECK(spans["tanh"]["cat"] == "operator");
  CHECK(spans["a \"quoted\"\\ scope"]["cat"] == "scope");
  const auto inside = [&](const char* inner, const char* outer) {
    const double start = spans[inner]["ts"], end = start + spans[inner]["dur"].get<double>();
    const double from = spans[outer]["ts"], to = from + spans[outer]["dur"].get<double>();
    return from <= start && end <= to + 1e-3;
  };
  CHECK(inside("matmul backward", "backward"));
  CHECK(inside("backward", "a \"quoted\"\\ scope"));
  CHECK_FALSE(inside("tanh", "backward"));

  const nlohmann::json counters = with(events, "C");
  CHECK(counters.size() == recording.log().events.size() + 1);
  double last = 0;
  std::size_t largest = 0;
  for (const auto& c : counters) {
    CHECK(c["ts"] >= last);
    last = c["ts"];
    std::size_t live = 0;
    for (const auto& value : c["args"]) live += value.get<std::size_t>();
    largest = std::max(largest, live);
  }
  CHECK(largest == recording.peak());
}

TEST_CASE("trace: nothing is noted without a recording, and recording ends with its object") {
  ones({4});
  {
    const MemoryRecording recording;
    ones({4});
    CHECK(recording.spans().size() == 1);
  }
  CHECK_FALSE(thread_context().tracing);
  const MemoryRecording recording;
  CHECK(recording.spans().empty());
  CHECK(with(events_of(recording), "X").empty());
}

TEST_CASE("trace: a recording that ends inside an operator leaves nothing behind") {
  const Tensor x = ones({4}).set_requires_grad();
  auto recording = std::make_unique<MemoryRecording>();
  x.add_hook([&](const Tensor&) {
    recording.reset();
    return Tensor();
  });
  Tape tape;
  tape.backward(sum(x * x));
  ones({4});
  CHECK(x.grad().to_vector() == std::vector<double>(4, 2.0));
}
