#pragma once
// Events that know their time, for core/report/device_timing.h.

namespace quipu::detail::on_cuda {

void register_timing();

}  // namespace quipu::detail::on_cuda
