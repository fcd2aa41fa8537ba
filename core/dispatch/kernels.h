#pragma once
// The few kernels that core/ and autograd/ themselves need; every back end provides them like any
// other. Internal to the library.
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/random/random.h"
#include "quipu/core/scalar.h"

namespace quipu::detail {

/// Every element becomes `value`.
inline constinit Kernel<void(View o, Scalar value)> fill_kernel{"fill", "o value",
                                                                Agreement::equal};
/// o = x, cast; x has the shape of o (strides may be 0).
inline constinit Kernel<void(View o, View x)> copy_kernel{"copy", "o x", Agreement::equal};
/// Adds or writes x into a gradient, cast; dimensions that the gradient lacks or has with size 1
/// are summed.
inline constinit Kernel<void(Grad g, View x)> add_into_kernel{"add_into", "g x"};
/// The linear index of the first element that is NaN or infinite, -1 when all are finite.
/// first_bad is one i64 on the host.
inline constinit Kernel<void(View x, View first_bad)> find_nonfinite_kernel{
    "find_nonfinite", "x first_bad", Agreement::equal};
/// The same for any view: what is repeated (stride 0) is looked at once.
std::int64_t first_nonfinite(View x);
/// Whole numbers in [low, high), a uniform in [0, 1), a standard normal: one position each,
/// row-major.
inline constinit Kernel<void(View o, PhiloxState, std::int64_t low, std::int64_t high)>
    random_int_kernel{"random_int", "o state low high", Agreement::equal};
inline constinit Kernel<void(View o, PhiloxState)> random_uniform_kernel{
    "random_uniform", "o state", Agreement::equal};
inline constinit Kernel<void(View o, PhiloxState)> random_normal_kernel{"random_normal", "o state",
                                                                        Agreement::typed};
/// o[i] = start + step * i, 1-d.
inline constinit Kernel<void(View o, double start, double step)> ramp_kernel{"ramp", "o start step",
                                                                             Agreement::equal};

/// Bytes between devices of different kinds or with the host; strides as they are, both contiguous.
inline constinit Kernel<void(View on_device, View on_host)> upload_kernel{"upload",
                                                                          "on_device on_host"};
inline constinit Kernel<void(View on_device, View on_host)> download_kernel{"download",
                                                                            "on_device on_host"};

}  // namespace quipu::detail
