// The switches of the allocators: no cache, poison.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "quipu/core/memory/allocator_modes.h"
#include "quipu/core/tensor.h"
#include "support/memory_model.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

/// Puts the modes back when it goes.
class Modes {
 public:
  Modes(bool caching, bool poison) : caching_(set_caching(caching)), poison_(set_poison(poison)) {}
  ~Modes() {
    set_caching(caching_);
    set_poison(poison_);
  }

 private:
  bool caching_, poison_;
};

std::string own_path() {
  std::string path(4096, '\0');
  const auto length = readlink("/proc/self/exe", path.data(), path.size());
  REQUIRE(length > 0);
  path.resize(static_cast<std::size_t>(length));
  return path;
}

}  // namespace

TEST_CASE("memory: without the cache every block goes back at once") {
  release_cached(cpu);
  const auto cached = block(1000, cpu);
  const std::size_t reserved = memory_stats().reserved, current = memory_stats().current;
  Ref<Storage> direct;
  {
    const Modes modes(false, false);
    CHECK_FALSE(caching_mode());
    direct = block(3 * mib + 1000, cpu);
    CHECK(memory_stats().reserved == reserved + 3 * mib + 1024);
    CHECK(memory_stats().current == current + 3 * mib + 1024);  // counted alike
    block(100, cpu);
    CHECK(memory_stats().reserved == reserved + 3 * mib + 1024);
  }
  CHECK(caching_mode());
  direct = {};  // knows where it came from
  CHECK(memory_stats().reserved == reserved);
}

TEST_CASE("memory: poisoned floats read as NaN") {
  const Modes modes(true, true);
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const std::int64_t n : {1, 1000, 700000}) {
      zeros({n}, dtype);
      const Tensor x = empty({n}, dtype);
      CHECK(std::isnan(x[0].item()));
      CHECK(std::isnan(x[n - 1].item()));
      CHECK(std::isnan(x[n / 2].item()));
      CHECK(zeros({n}, dtype)[n - 1].item() == 0);
    }
  }
}

TEST_CASE("memory: the modes start as the environment says") {
  CHECK(caching_mode() == (std::getenv("QUIPU_NO_CACHE") == nullptr));
  CHECK(poison_mode() == (std::getenv("QUIPU_POISON") != nullptr));
}

TEST_CASE("memory: environment variables set the modes") {
  const std::string command =
      "QUIPU_NO_CACHE=1 QUIPU_POISON=1 '" + own_path() +
      "' --test-case='memory: the modes start as the environment says' > /dev/null";
  CHECK(std::system(command.c_str()) == 0);
}
