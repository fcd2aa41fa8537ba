#pragma once
// Between any element type and the three that loops are compiled for (f32, f64, i64), a strided run
// at a time.
#include <cstdint>

#include "quipu/core/dtype.h"

namespace quipu::detail::on_cpu {

/// out[i] = element i * stride of `data`, converted. T is float, double or int64_t.
template <class T>
void load_run(T* out, const void* data, DType dtype, std::int64_t stride, std::int64_t n);

/// The same for lines that lie `line_stride` apart; they go to lines `out_stride` apart. Faster
/// than one by one where they are short.
template <class T>
void load_lines(T* out, std::int64_t out_stride, const void* data, DType dtype,
                std::int64_t line_stride, std::int64_t stride, std::int64_t lines, std::int64_t n);

/// Element i * stride of `data` = in[i], rounded once to nearest even. Out-of-range reals saturate
/// in whole types, NaN gives 0; whole numbers wrap in narrower ones; bool is `!= 0`.
template <class T>
void store_run(void* data, DType dtype, std::int64_t stride, const T* in, std::int64_t n);

/// Element i * stride of `data` += in[i], likewise rounded once.
template <class T>
void add_run(void* data, DType dtype, std::int64_t stride, const T* in, std::int64_t n);

}  // namespace quipu::detail::on_cpu
