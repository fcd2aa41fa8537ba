#pragma once
// How wide layers can be. Internal to nn/.
#include <cstdint>

#include "quipu/core/error.h"

namespace quipu::nn::detail {

/// An error unless a number of features, heads, ... is from 1 to 2^24.
inline void check_width(const char* name, std::int64_t width) {
  quipu::detail::check(width >= 1 && width <= std::int64_t{1} << 24, name, " is ", width,
                       ", but a number from 1 to 2^24 is wanted");
}

}  // namespace quipu::nn::detail
