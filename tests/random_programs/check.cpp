// Everything that is checked of one program.
#include <cctype>
#include <cmath>

#include "run.h"

namespace quipu::programs {
namespace {

std::size_t held(Device device) {
  return memory_stats(device).current;
}

/// The peak of a run that nobody watches, and that it leaves nothing behind.
std::size_t peak_of(const Program& program, Device device) {
  const std::size_t before = held(device);
  std::size_t peak = 0;
  {
    const PeakMemory region(device);
    const Run run(program, device, nullptr);
    peak = region.bytes_above();
  }
  if (held(device) != before) {
    throw Failure{"leak",
                  detail::concat("the run leaves ", held(device) - before, " bytes on ", device)};
  }
  return peak;
}

void check_peaks(const Program& program, Device device) {
  const Device meta(device.kind(), device.index(), true);
  const std::size_t here = peak_of(program, device), there = peak_of(program, meta);
  if (here == there) return;
  throw Failure{"peak", detail::concat("the peak is ", here, " bytes on ", device, " and ", there,
                                       " on ", meta)};
}

bool is_smooth(const std::vector<Statement>& statements) {
  for (const Statement& s : statements) {
    if (s.op->is(Operator::kink) || !is_smooth(s.body)) return false;
  }
  return true;
}

/// The first loss times its upstream gradient, at leaves moved by `step` along a direction.
double loss_at(const Program& program, Device device, double step) {
  seed_generators(program);
  Tensors values(static_cast<std::size_t>(program.values));
  for (const Leaf& leaf : program.leaves) {
    Tensor& x = values[static_cast<std::size_t>(leaf.value)];
    x = make(leaf, device).detach();
    if (!leaf.requires_grad) continue;
    Generator direction(leaf.seed + 1);
    x = x + step * randn(x.shape(), f64, device, direction);
  }
  for (const Statement& s : program.statements) {
    const Tensors out = run(s, values);
    for (std::size_t k = 0; k < s.out.size(); ++k)
      values[static_cast<std::size_t>(s.out[k])] = out[k];
  }
  const WalkFrom& walk = program.walks[0];
  const Tensor& loss = values[static_cast<std::size_t>(walk.loss)];
  return (walk.upstream ? sum(loss * make(*walk.upstream, device)) : sum(loss)).item();
}

/// By the tape; nothing where it refuses.
std::optional<double> gradient_along(const Program& program, Device device) {
  const Run run(program, device, nullptr);
  if (run.refused()) return {};
  double along = 0;
  for (const Leaf& leaf : program.leaves) {
    const std::vector<double> g = run.gradient(leaf.value);
    if (g.empty()) continue;
    Generator direction(leaf.seed + 1);
    const std::vector<double> d = randn(leaf.shape, f64, device, direction).to_vector();
    for (std::size_t i = 0; i < g.size(); ++i) along += g[i] * d[i];
  }
  return along;
}

/// Holds the gradients along a direction against central differences, where those converge.
bool check_differences(Program program, Device device) {
  if (program.walks.empty() || !program.hooks.empty() || !is_smooth(program.statements))
    return false;
  for (const Leaf& leaf : program.leaves) {
    if (leaf.content != Content::index && leaf.content != Content::mask && leaf.dtype != f64)
      return false;
  }
  program.walks.resize(1);
  program.walks[0].with_respect_to.clear();
  const std::optional<double> along = gradient_along(program, device);
  if (!along) return false;
  // From steps h and h / 2 to step 0; how far the last two are apart bounds the error.
  const auto central = [&](double h) {
    return (loss_at(program, device, h) - loss_at(program, device, -h)) / (2 * h);
  };
  const double a = central(0x1p-10), b = central(0x1p-11), c = central(0x1p-12);
  const double first = (4 * b - a) / 3, second = (4 * c - b) / 3, scale = std::abs(second) + 1;
  if (!(std::abs(second - first) <= 1e-5 * scale)) return false;
  if (std::abs(*along - second) <= 20 * std::abs(second - first) + 1e-6 * scale) return true;
  throw Failure{"differences", detail::concat("along a direction the gradient is ", *along,
                                              ", but differences give ", second)};
}

/// Noise may cancel by chance, and then it says nothing about roundings: a wrong gradient is wrong
/// for every seed.
void compare_tapes(const Program& program, Device device, Tally& tally) {
  for (std::uint64_t noise = 1;; ++noise) {
    try {
      NaiveTape naive(program, noise);
      const Run run(program, device, &naive);
      tally.refused += run.refused();
      tally.overflowed += run.overflowed();
      return;
    } catch (const Failure& failure) {
      if (noise == 4 || failure.kind.find("gradient") == std::string::npos) throw;
    }
  }
}

/// The message without what differs from program to program.
std::string kind_of(const std::string& message) {
  std::string kind = "error ";
  for (const char c : message) {
    if (std::isalpha(static_cast<unsigned char>(c)) && kind.size() < 60) kind += c;
  }
  return kind;
}

}  // namespace

std::optional<Failure> check(const Program& program, Device device, Tally& tally) {
  ++tally.programs;
  tally.walks += static_cast<int>(program.walks.size());
  const std::size_t before = held(device);
  try {
    compare_tapes(program, device, tally);
    check_peaks(program, device);
    tally.differences += check_differences(program, device);
  } catch (const Failure& failure) {
    return failure;
  } catch (const std::exception& error) {
    return Failure{kind_of(error.what()), error.what()};
  }
  if (held(device) == before) return {};
  return Failure{"leak",
                 detail::concat("checks leave ", held(device) - before, " bytes on ", device)};
}

std::optional<std::string> try_program(std::uint64_t seed, Device device, Tally& tally) {
  const Program program = draw_program(seed);
  const std::optional<Failure> failure = check(program, device, tally);
  if (!failure) return {};
  Tally ignored;
  const Program shorter = shrink(program, [&](const Program& p) {
    const std::optional<Failure> other = check(p, device, ignored);
    return other && other->kind == failure->kind;
  });
  const std::optional<Failure> shown = check(shorter, device, ignored);
  return detail::concat("program ", seed, ", ", program.statements.size(),
                        " statements: ", failure->text, "\nshrunk to ", shorter.statements.size(),
                        ": ", shown ? shown->text : "no failure", "\n", to_cpp(shorter));
}

}  // namespace quipu::programs
