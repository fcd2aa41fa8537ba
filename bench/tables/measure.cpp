#include <algorithm>
#include <cmath>
#include <deque>

#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "tables.h"

namespace quipu::bench {
using namespace detail;
namespace {

constexpr double warm_up_ms = 25, measured_ms = 100;
/// Calls whose times are read together, so that the host queues ahead of the device meanwhile.
constexpr int together = 50;

/// Pushes what the last call left out of the caches. On a GPU that also keeps the device busy while
/// the host queues what is measured.
class Flush {
 public:
  explicit Flush(Device device) : buffer_(zeros({64 << 20}, i32, device)) {}
  void operator()() const { buffer_.zero_(); }

 private:
  Tensor buffer_;
};

/// Mean time of some calls, each after a flush.
double milliseconds(const Call& call, Device device, int calls, const Flush* flush) {
  std::deque<TimedRegion> regions;
  for (int i = 0; i < std::min(calls, together); ++i) regions.emplace_back(device);
  double sum = 0;
  for (int done = 0; done < calls;) {
    const int now = std::min(calls - done, together);
    for (int i = 0; i < now; ++i) {
      if (flush) (*flush)();
      regions[static_cast<std::size_t>(i)].run(call);
    }
    for (int i = 0; i < now; ++i) sum += regions[static_cast<std::size_t>(i)].milliseconds();
    done += now;
  }
  return sum / calls;
}

}  // namespace

void TimedRegion::run(const Call& call) {
  start_.set();
  call();
  end_.set();
}

void with_run(const Variant& variant, Pass pass, Device device, Size size, Values values,
              const std::function<void(const Call&)>& f) {
  const auto upstream_of = [&](const Tensor& o) {
    return values == Values::zero ? zeros(o.shape(), o.dtype(), device)
                                  : randn(o.shape(), o.dtype(), device);
  };
  if (pass == Pass::bwd) {
    Tape tape;
    const Prepared run = variant.prepare(device, size, values);
    const Tensor o = run.call();
    const Tensor d_o = upstream_of(o);
    f([&] {
      tape.backward(o, {d_o, true});
      return run.held[0].grad();
    });
    return;
  }
  const Prepared run = variant.prepare(device, size, values);
  Tensor held;
  if (run.upstream_in_forward) held = upstream_of(run.call());
  f([&] {
    if (!run.recorded) return run.call();
    Tape tape;
    return run.call().detach();
  });
}

double measure_memory(const Variant& variant, Pass pass, Device device, Size size, int repeats) {
  const std::size_t before = memory_stats(device).current;
  double sum = 0;
  with_run(variant, pass, device, size, Values::zero, [&](const Call& call) {
    for (int i = 0; i < repeats; ++i) {
      const PeakMemory peak(device);
      call();
      sum += static_cast<double>(peak.bytes() - before);
    }
  });
  return sum / repeats;
}

double measure_speed(const Variant& variant, Pass pass, Device device, Size size) {
  check(!device.is_meta(), "speed is not measured on ", device,
        ", which computes nothing; take --device cpu");
  double mean = 0;
  with_run(variant, pass, device, size, Values::normal, [&](const Call& call) {
    const auto unflushed = [&] { return milliseconds(call, device, 1, nullptr); };
    const double once = std::max(std::min(unflushed(), unflushed()), 1e-3);
    const Flush flush(device);
    for (int i = static_cast<int>(warm_up_ms / once); i > 0; --i) call();
    mean = milliseconds(call, device, std::max(1, static_cast<int>(measured_ms / once)), &flush);
  });
  return mean;
}

Comparison compare_with(const PublishedTable& table, Device device, std::int64_t max_n,
                        int repeats) {
  Comparison result{&table, device, variants_of(table), {}, "", {}};
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const Size size{table.rows[i].n, table.batch};
    if (max_n > 0 && tokens_of(table, size.n) > max_n) continue;
    Comparison::Row row{i, {}, 0};
    for (const Variant& variant : result.variants) {
      row.ours.push_back(table.kind == Kind::speed
                             ? measure_speed(variant, table.pass, device, size)
                             : measure_memory(variant, table.pass, device, size, repeats) /
                                   (1 << 20));
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

Tally tally(const std::vector<Comparison>& comparisons) {
  constexpr double printed = 1e-6;  // published figures are rounded to this
  Tally count;
  for (const Comparison& c : comparisons) {
    for (const Comparison::Row& row : c.rows) {
      const double best = c.published->best(row.index);
      for (const double ours : row.ours) {
        if (std::isnan(ours)) continue;
        ++(ours < best - printed    ? count.below
           : ours <= best + printed ? count.equal
                                    : count.above);
      }
    }
  }
  return count;
}

}  // namespace quipu::bench
