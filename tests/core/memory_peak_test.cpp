// Peaks, and who held memory at them.
#include <string>
#include <vector>

#include "quipu/autograd/tape.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/memory_model.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

const Device meta("meta:cpu");

std::size_t held(const MemoryReport& report, Category category) {
  return report.by_category[static_cast<std::size_t>(category)];
}

}  // namespace

TEST_CASE("peak: the highest moment counts, not the last") {
  const auto base = block(10 * 512);
  const PeakMemory peak(meta);
  { const auto a = block(30 * 512), b = block(5 * 512); }
  const auto c = block(20 * 512);
  CHECK(peak.bytes() == 45 * 512);
  CHECK(peak.bytes_above() == 35 * 512);
  CHECK(peak.report().moment == "at the peak");
  CHECK(peak.report().holders.size() == 1);
  CHECK(peak.report().holders[0].blocks == 3);
}

TEST_CASE("peak: regions nest and do not disturb each other") {
  PeakMemory outer(meta);
  block(100 * 512);
  const auto kept = block(512);
  {
    PeakMemory inner(meta);
    CHECK(inner.bytes() == 512);
    block(10 * 512);
    CHECK(inner.bytes() == 11 * 512);
    CHECK(inner.bytes_above() == 10 * 512);
    CHECK(outer.bytes() == 100 * 512);
    reset_peak(meta);  // is about the device's own peak alone
    CHECK(inner.bytes() == 11 * 512);
    CHECK(outer.bytes() == 100 * 512);
    CHECK(memory_stats(meta).peak == 512);
    inner.reset();
    CHECK(inner.bytes_above() == 0);
    CHECK(outer.bytes() == 100 * 512);
    block(500 * 512);
    CHECK(inner.bytes_above() == 500 * 512);
  }
  CHECK(outer.bytes() == 501 * 512);
}

TEST_CASE("peak: a label that changed since is reported as it was") {
  const auto x = block(4 * 512, meta, Category::output);
  const PeakMemory before(meta);
  const auto y = block(512);  // a peak with x as output
  x->hold_for_backward();
  CHECK(held(before.report(), Category::output) == 5 * 512);
  CHECK(held(memory_report(meta), Category::saved) == 4 * 512);
  const auto z = block(512);  // a higher one with x as saved
  x->let_go();
  CHECK(held(before.report(), Category::saved) == 4 * 512);
  CHECK(held(before.report(), Category::output) == 2 * 512);
  x->set_category(Category::parameter);
  x->set_category(Category::optimizer);
  CHECK(held(before.report(), Category::saved) == 4 * 512);
}

TEST_CASE_FIXTURE(EachDevice,
                  "peak: holders of a step at its peak, on a device and meta to the byte") {
  std::vector<std::string> texts;
  for (const Device where : {device, meta_of(device)}) {
    release_cached(where);
    const Tensor w = full({300, 100}, 0.5, f32, where).set_requires_grad();
    const Tensor x = full({100}, 2, f32, where);
    const PeakMemory peak(where);
    {
      const MemoryScope scope("step");
      Tape tape;
      const Tensor h = w * x;
      const Tensor loss = sum(h * h);
      tape.backward(loss);
    }
    const MemoryReport report = peak.report();
    CHECK(held(report, Category::parameter) == 120320);
    CHECK(report.bytes == peak.bytes());
    CHECK(w.grad().defined());
    std::string text = report.text(100);
    text.erase(0, text.find('\n'));  // the line with the device's name
    texts.push_back(text);
    CHECK(report.reserved == memory_stats(where).reserved);
  }
  CHECK(texts[0] == texts[1]);
}

TEST_CASE("peak: a model for a large card is measured on meta in no time") {
  const PeakMemory peak("meta:cuda");
  {
    const Tensor weights = empty({std::int64_t{10} << 30}, f32, "meta:cuda");
    const Tensor cache = empty({std::int64_t{20} << 30}, bf16, "meta:cuda");
  }
  CHECK(human_bytes(peak.bytes_above()) == "80.0 GiB");
  release_cached("meta:cuda");
}
