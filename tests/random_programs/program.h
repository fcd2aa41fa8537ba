#pragma once
// A random program: leaves, operators on them, hooks, and walks along the tape. It is plain data,
// so that it can be run on any device, run by a second tape, shrunk, and printed as C++.
#include <quipu/quipu.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quipu::programs {

using Tensors = std::vector<Tensor>;
using Numbers = std::vector<int>;
/// Names a tensor of a program.
using Value = int;

enum class Layout { contiguous, transposed, sliced, expanded };
enum class Content { normal, positive, index, mask };

/// A tensor that a program starts from; upstream gradients are such, too.
struct Leaf {
  Value value = 0;
  std::uint64_t seed = 0;  // of its entries
  Shape shape = {};
  DType dtype = f64;
  Content content = Content::normal;
  Layout layout = Layout::contiguous;
  std::int64_t bound = 1;  // of an index
  bool requires_grad = false;
  std::optional<DType> grad_dtype = {};
};

class Draw;
struct Statement;

/// One public operator or method, with one way to call it.
struct Operator {
  enum class Outputs { one, list, top_k, extremes };
  enum : unsigned {
    kink = 1,           // not differentiable everywhere, or cut off from its input
    keeps_nothing = 2,  // for backward
    in_place = 4,       // changes its first input
  };
  const char* name;
  /// Chooses inputs, numbers and shape; false where nothing fits.
  bool (*draw)(Draw&, Statement&);
  Tensors (*run)(const Tensors& in, const Numbers& n, const Shape& shape);
  const char* text;  // the same as C++
  /// Its composition of simpler ones, where it has one.
  Tensors (*composed)(const Tensors& in, const Numbers& n, const Shape& shape);
  unsigned flags = 0;
  std::size_t weight = 1;  // how often it is drawn
  Outputs outputs = Outputs::one;

  bool is(unsigned flag) const { return (flags & flag) != 0; }
};
/// All of them; the first is `recompute`, which has a body instead of a function.
const std::vector<Operator>& operators();

struct Statement {
  const Operator* op = nullptr;
  std::vector<Value> in, out;
  Numbers n = {};
  Shape shape = {};
  int scopes = 0;                      // nested MemoryScopes around it
  std::vector<Value> parameters = {};  // of the function that recompute runs
  std::vector<Statement> body = {};    // its last output is what it returns
};

struct HookOn {
  enum class Kind { keep, nothing, same, scale, expanded, in_place };
  Value value;
  Kind kind;
};

/// One call of backward or, with tensors to ask for, of gradients.
struct WalkFrom {
  Value loss;
  std::optional<Leaf> upstream = {};
  std::vector<Value> with_respect_to = {};
  bool retain = false;
  bool zero_grad_first = false;
  bool double_grads_first = false;  // in place, as a user may
};

struct Program {
  std::uint64_t seed = 0;
  std::vector<Leaf> leaves = {};
  std::vector<Statement> statements = {};
  std::vector<HookOn> hooks = {};
  std::vector<WalkFrom> walks = {};
  bool drop_values = false;  // tensors that are used no more are let go of
  Value values = 0;          // how many there are
};

/// The same for the same seed, always.
Program draw_program(std::uint64_t seed);

Tensor make(const Leaf& leaf, Device device);
/// The statement's outputs; `values` has its inputs and what its body captures.
Tensors run(const Statement& s, const Tensors& values);
/// The inputs of a statement, and what its body uses of outer values, each once.
std::vector<Value> inputs_and_captured(const Statement& s);

/// The last statement that needs each value; beyond all of them where a walk does.
std::vector<std::size_t> last_uses(const Program& program);

/// A generator beside the default one, which programs share.
Generator& shared_generator();
/// The states of both.
struct RandomState {
  detail::PhiloxState usual = default_generator().state(), shared = shared_generator().state();
  void restore() const {
    default_generator().set_state(usual);
    shared_generator().set_state(shared);
  }
};
/// As at the start of a program.
void seed_generators(const Program& program);

/// What went wrong. Programs that fail alike have the same kind.
struct Failure {
  std::string kind, text;
};
/// How often something happened that a test wants to have seen.
struct Tally {
  int programs = 0, walks = 0, refused = 0, overflowed = 0, differences = 0;
};
/// Runs the program on the device, on the device that counts for it, and on a second tape.
std::optional<Failure> check(const Program& program, Device device, Tally& tally);

/// The shortest program it comes upon that still `fails`.
Program shrink(Program program, const std::function<bool(const Program&)>& fails);
/// As a C++ program that prints the gradients.
std::string to_cpp(const Program& program);

/// Draws, checks and, where it fails, shrinks one: nothing, or a report.
std::optional<std::string> try_program(std::uint64_t seed, Device device, Tally& tally);

}  // namespace quipu::programs
