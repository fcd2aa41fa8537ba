// What a profiler is shown of a scope with two operators.
#include <quipu/quipu.h>

int main() {
  using namespace quipu;
  const MemoryScope scope("layer");
  const Tensor x = ones({2, 2});
  matmul(x, x);
}
