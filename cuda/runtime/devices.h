#pragma once
// Which CUDA devices there are: cuda:i is card i of those that the library can use, in CUDA's
// order. Cards before compute capability 8.0 are none of them. Asking starts nothing; the driver is
// initialised by the first use of a device.
#include <cstddef>
#include <string>

namespace quipu::detail::on_cuda {

/// How many there are; `why`, if given, tells why there is none, or why some cards do not count.
int device_count(std::string* why = nullptr);

/// Throws unless there is a device of that number.
void check_device(int index);

/// CUDA's number of a device.
int number_of(int index);

/// Makes a device the one that this thread's CUDA calls go to.
void use_device(int index);

/// What a kernel may have as static and dynamic shared memory together, if it asks for it.
std::size_t shared_bytes_of_block(int index);

}  // namespace quipu::detail::on_cuda
