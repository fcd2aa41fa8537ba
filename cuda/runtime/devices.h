#pragma once
// Which CUDA devices there are. Asking starts nothing; the driver is initialised by the first use
// of a device.
#include <string>

namespace quipu::detail::on_cuda {

/// How many there are; 0 without a driver, and then `why` tells the reason, if given.
int device_count(std::string* why = nullptr);

/// Throws unless there is a device of that number.
void check_device(int index);

/// Makes a device the one that this thread's CUDA calls go to.
void use_device(int index);

}  // namespace quipu::detail::on_cuda
