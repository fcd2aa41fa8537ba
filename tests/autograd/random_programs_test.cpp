// Random programs on the tape, beside a naive one. scripts/test --programs N runs more of them.
#include <algorithm>
#include <cstdlib>

#include "random_programs/run.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::programs;

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::stoull(value) : otherwise;
}

const Operator* called(const std::string& text) {
  return &*std::find_if(operators().begin(), operators().end(),
                        [&](const Operator& o) { return o.text == text; });
}

/// y = 2 x, and a loss that is y + x; hooks are the caller's.
Program small_program() {
  Program p;
  p.leaves = {{.value = 0, .shape = {3}, .requires_grad = true}};
  p.statements = {{.op = called("in[0] * (n[0] / 4.0)"), .in = {0}, .out = {1}, .n = {8}},
                  {.op = called("in[0] + in[1]"), .in = {1, 0}, .out = {2}}};
  p.walks = {{.loss = 2, .upstream = Leaf{.seed = 1, .shape = {3}}}};
  p.values = 3;
  return p;
}

bool has(const std::vector<Statement>& statements, const std::string& name) {
  return std::any_of(statements.begin(), statements.end(),
                     [&](const Statement& s) { return s.op->name == name || has(s.body, name); });
}

/// Whether the first loss is computed by way of this operator.
bool loss_uses(const Program& p, const std::string& name) {
  std::vector<Value> behind{p.walks[0].loss};
  for (auto s = p.statements.rbegin(); s != p.statements.rend(); ++s) {
    const auto is_behind = [&](Value v) {
      return std::find(behind.begin(), behind.end(), v) != behind.end();
    };
    if (std::none_of(s->out.begin(), s->out.end(), is_behind)) continue;
    if (s->op->name == name) return true;
    behind.insert(behind.end(), s->in.begin(), s->in.end());
  }
  return false;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "random programs: the tape does what a naive one does") {
  const std::uint64_t count = from_environment("QUIPU_PROGRAMS", sized(5000u, 120u));
  const std::uint64_t first = from_environment("QUIPU_PROGRAMS_SEED", 1);
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::optional<std::string> report = try_program(seed, device, tally);
    if (!report) continue;
    FAIL(*report);
  }
  // Most programs say something.
  CHECK(tally.walks > tally.programs);
  CHECK(tally.overflowed * 100 <= tally.programs);
  if (count >= 1000) CHECK(tally.differences * 10 > tally.programs);
  if (count >= 1000) CHECK(tally.refused > 0);
}

TEST_CASE("random programs: the same seed draws the same program") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CHECK(to_cpp(draw_program(seed)) == to_cpp(draw_program(seed)));
  }
}

TEST_CASE("random programs: every operator is drawn") {
  std::vector<std::string> missing;
  for (const Operator& op : operators()) missing.push_back(op.name);
  for (std::uint64_t seed = 1; seed <= 2000 && !missing.empty(); ++seed) {
    const Program p = draw_program(seed);
    std::erase_if(missing, [&](const std::string& name) { return has(p.statements, name); });
  }
  CAPTURE(missing.size());
  CHECK((missing.empty() ? "" : missing[0]) == "");
}

TEST_CASE_FIXTURE(EachDevice, "random programs: tapes that differ are told apart") {
  const Program p = small_program();
  for (const Value v : {0, 1, 2}) {
    Program other = p;
    other.hooks = {{v, HookOn::Kind::scale}};
    NaiveTape naive(p);
    CHECK_THROWS_AS(Run(other, device, &naive), Failure);
    NaiveTape same(other);
    CHECK_NOTHROW(Run(other, device, &same));
  }
}

TEST_CASE("random programs: a failing one is shrunk") {
  const auto fails = [](const Program& p) { return !p.walks.empty() && loss_uses(p, "matmul"); };
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Program p = draw_program(seed);
    if (!fails(p)) continue;
    const Program shorter = shrink(p, fails);
    CAPTURE(to_cpp(shorter));
    CHECK(shorter.statements.size() == 1);
    CHECK(shorter.leaves.size() <= 2);
    CHECK(shorter.hooks.empty());
  }
}

TEST_CASE("random programs: one as C++") {
  Program p = small_program();
  p.hooks = {{1, HookOn::Kind::scale}};
  const std::string text = to_cpp(p);
  for (const char* line :
       {"const Tensor x0 = randn(Shape{3}, f64, device, g).clamp_(-2, 2).set_requires_grad();",
        "const Tensor t1 = x0 * (8 / 4.0);",
        "t1.add_hook([&](const Tensor& gradient) { return gradient * 1.5; });",
        "const Tensor t2 = t1 + x0;",
        "tape.backward(t2, {.upstream = upstream, .retain = false});"}) {
    CAPTURE(text);
    CHECK(text.find(line) != std::string::npos);
  }
}
