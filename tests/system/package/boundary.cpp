// What crosses the boundary of a shared library both ways: exceptions by their types, an operator
// of the program's own that the library's walk calls, its hook, and a tape that both see as one.
#include <quipu/quipu.h>

#include <cstdio>
#include <string>
#include <typeinfo>

using namespace quipu;

namespace {

struct Cubed {
  static constexpr const char* name = "cubed";
  bool fails = false;
  Saved x;
  Tensor forward(const Tensor& in) {
    x = save(in);
    return in * in * in;
  }
  void backward(const Tensor& d_o, Grads& d) const {
    if (fails) throw Error("cubed: it was told to fail");
    d.add(0, d_o * 3 * x.get() * x.get());
  }
};

bool is(const char* what, bool right) {
  if (!right) std::printf("wrong: %s\n", what);
  return right;
}

bool own_operator() {
  const auto cubed = [](const std::vector<Tensor>& in) { return apply(Cubed{}, in[0]); };
  return is("gradcheck of an operator of the program",
            bool(gradcheck(cubed, {randn({2, 3}, f64).set_requires_grad()})));
}

bool hook_and_tape() {
  const Tensor x = ones({2}).set_requires_grad();
  Tape tape;
  const Tensor y = apply(Cubed{}, x);
  int calls = 0;
  y.add_hook([&](const Tensor& d) {
    ++calls;
    return d * 2;
  });
  tape.backward(sum(y));
  return is("a hook", calls == 1) && is("its gradient", x.grad().to_vector()[0] == 6);
}

template <class Expected, class Action>
bool throws(const char* part, const Action& action) {
  try {
    action();
  } catch (const Error& error) {  // as programs catch everything of the library's
    return is(part, typeid(error) == typeid(Expected) && dynamic_cast<const Expected*>(&error) &&
                        std::string(error.what()).find(part) != std::string::npos);
  }
  return is(part, false);
}

bool exceptions() {
  bool right = throws<Error>("matmul", [] { matmul(ones({2, 3}), ones({2, 3})); });
  right &= throws<Error>("it was told to fail", [] {
    Tape tape;
    tape.backward(sum(apply(Cubed{.fails = true}, ones({2}).set_requires_grad())));
  });
  const Device device("meta:cpu");
  set_memory_limit(device, 1 << 20);
  right &= throws<OutOfMemory>("meta:cpu", [&] { empty({1 << 20}, f32, device); });
  try {
    empty({1 << 20}, f32, device);
  } catch (const OutOfMemory& error) {
    right &= is("the bytes that were asked for", error.requested == std::size_t{4} << 20);
  }
  return right;
}

}  // namespace

int main() {
  const bool right = own_operator() & hook_and_tape() & exceptions();
  std::printf("%s, kernels for %s, version %s\n", right ? "right" : "wrong", cpu_level(),
              version());
  return right ? 0 : 1;
}
