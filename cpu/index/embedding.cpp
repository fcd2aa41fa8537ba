// Indices are checked on one thread: they are few beside the rows that they name.
#include "quipu/core/error.h"
#include "quipu/cpu/simd/whole_numbers.h"
#include "quipu/ops/index/embedding_kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

void check_rows(View indices, std::int64_t rows) {
  for_each_stretch(indices, [&](std::int64_t position, const std::int64_t* values, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      check(values[i] >= 0 && values[i] < rows, "indices at ",
            index_of(indices.shape, position + i), " is ", values[i], ", but weight has ", rows,
            " rows");
    }
  });
}

}  // namespace
}  // namespace on_cpu

void register_cpu_embedding() {
  embedding_check_kernel.provide(Variant::cpu, on_cpu::check_rows);
}

}  // namespace quipu::detail
