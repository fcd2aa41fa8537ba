// Every pointwise function in every type, whole vectors and single elements, beside the reference.
#include <quipu/quipu.h>

#include "quipu/core/kernel_modes.h"
#include "quipu/ops/pointwise/kernels.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

TEST_CASE_FIXTURE(EachDevice, "pointwise: each function in every type beside the reference") {
  const std::int64_t n = 32;
  for (const DType dtype : {f64, f32, bf16, f16, i64}) {
    // Positive, so that every function has a value; the third one is no nearer to 0 than 1.
    const auto numbers = [&](std::int64_t factor, std::int64_t modulus) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < 2 * n; ++i) {
        values.push_back(static_cast<double>(1 + i * factor % modulus));
      }
      return from(values, {2 * n}, dtype, device);
    };
    const Tensor a = numbers(5, 7), b = numbers(3, 5), c = numbers(7, 3);
    for (int f = 0; f < pointwise_count; ++f) {
      const auto function = static_cast<Pointwise>(f);
      const PointwiseTraits& traits = traits_of(function);
      if (!(dtype == i64 ? traits.for_whole_numbers : traits.for_real)) continue;
      CAPTURE(std::string(traits_of(function).name));
      CAPTURE(dtype);
      const KernelCheck check;
      for (const bool add : {false, true}) {
        const Tensor dense = full({2 * n}, 2, dtype, device),
                     strided = full({2 * n}, 2, dtype, device);
        const auto target = [&](const Tensor& o) {
          return add ? Grad::add_to(o) : Grad::write_to(o);
        };
        CHECK_NOTHROW(pointwise_kernel(target(dense), function, {a, b, c}));
        const auto odd = [](const Tensor& x) { return x.slice(0, 1, {}, 2); };
        CHECK_NOTHROW(pointwise_kernel(target(odd(strided)), function, {odd(a), odd(b), odd(c)}));
      }
    }
  }
}
