// Times of operators by the clock of their device.
#include <nlohmann/json.hpp>

#include "quipu/core/report/device_timing.h"
#include "quipu/core/report/recording.h"
#include "quipu/quipu.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

/// Operators that a recording saw on a device, in the order of their ends there.
std::vector<std::string> device_rows(const MemoryRecording& recording) {
  std::vector<std::string> names;
  double last = 0;
  const nlohmann::json trace = nlohmann::json::parse(recording.trace());
  for (const auto& event : trace["traceEvents"]) {
    if (event.value("cat", "") != "device") continue;
    names.push_back(event["name"]);
    CHECK(event["dur"] >= 0);
    const double end = event["ts"].get<double>() + event["dur"].get<double>();
    CHECK(end >= last);
    last = end;
  }
  return names;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "device times: marks are in the order in which they are set") {
  TimeMark first(device), second(device);
  first.set();
  const Tensor x = randn({100, 100}, f32, device);
  matmul(x, x);
  second.set();
  CHECK(second.ns_since(first) > 0);
  CHECK(first.ns_since(first) == 0);
}

TEST_CASE_FIXTURE(EachDevice, "device times: a trace shows operators where they ran, while asked") {
  const Tensor w = ones({32, 32}, f32, device).set_requires_grad();
  const MemoryRecording recording(device);
  tanh(w);
  CHECK(device_rows(recording).empty());
  {
    const DeviceTimes times;
    Tape tape;
    tape.backward(mean(tanh(w)));
  }
  tanh(w);
  const std::vector<std::string> rows = device_rows(recording);
  if (!device.is_cuda()) {
    CHECK(rows.empty());
    return;
  }
  for (const char* name : {"tanh", "mean", "tanh backward", "mean backward", "backward"}) {
    CAPTURE(name);
    CHECK(std::count(rows.begin(), rows.end(), name) == 1);
  }
  // An operator ends no earlier than its parts.
  CHECK(rows.back() == "backward");
}

TEST_CASE_FIXTURE(EachDevice, "device times: knots have the time of their device") {
  const Tensor w = ones({64, 64}, f32, device).set_requires_grad();
  const auto seconds = [&] {
    Tape tape;
    const Tensor o = exp(matmul(w, w));
    CHECK(tape.text().find("us") != std::string::npos);
    return tape.knots()[0].forward_seconds;
  };
  CHECK(seconds() > 0);
  const DeviceTimes times;
  CHECK(seconds() > 0);
}

TEST_CASE_FIXTURE(EachDevice, "device times: they may outlive whoever asked for them") {
  const Tensor w = ones({8}, f32, device).set_requires_grad();
  Tape tape;
  Tensor o;
  {
    const DeviceTimes times;
    o = exp(w);
  }
  o = exp(o);
  CHECK(tape.knots().size() == 2);
  CHECK(tape.text().find("exp") != std::string::npos);
}
