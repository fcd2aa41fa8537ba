// Atomics of kernels. They are real ones, because blocks may run on several OS threads.
#include <algorithm>
#include <type_traits>

#include "multiprocessor.h"

namespace quipu::emulator {
namespace {

template <class T>
T updated(T old, T value, Update update) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;  // wraps around
    const auto a = static_cast<Unsigned>(old), b = static_cast<Unsigned>(value);
    switch (update) {
      case Update::add: return static_cast<T>(a + b);
      case Update::sub: return static_cast<T>(a - b);
      case Update::bit_and: return static_cast<T>(a & b);
      case Update::bit_or: return static_cast<T>(a | b);
      case Update::bit_xor: return static_cast<T>(a ^ b);
      case Update::inc: return old >= value ? T{0} : static_cast<T>(a + 1u);
      case Update::dec: return old == 0 || old > value ? value : static_cast<T>(a - 1u);
      default: break;
    }
  }
  switch (update) {
    case Update::add: return old + value;
    case Update::sub: return old - value;
    case Update::min: return std::min(old, value);
    case Update::max: return std::max(old, value);
    default: return value;  // exchange
  }
}

void see(void* address, std::size_t bytes, void* code) {
  if (watching == nullptr) return;
  watching->atomic(reinterpret_cast<std::uintptr_t>(address), bytes,
                   reinterpret_cast<std::uintptr_t>(code));
}

}  // namespace

template <class T>
T atomic_update(T* address, T value, Update update) {
  see(address, sizeof(T), __builtin_return_address(0));
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  for (;;) {
    T next = updated(old, value, update);
    if (__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE)) {
      return old;
    }
  }
}

template <class T>
T atomic_compare_exchange(T* address, T expected, T value) {
  see(address, sizeof(T), __builtin_return_address(0));
  __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;  // what was there
}

template int atomic_update(int*, int, Update);
template unsigned atomic_update(unsigned*, unsigned, Update);
template unsigned long long atomic_update(unsigned long long*, unsigned long long, Update);
template float atomic_update(float*, float, Update);
template double atomic_update(double*, double, Update);
template int atomic_compare_exchange(int*, int, int);
template unsigned atomic_compare_exchange(unsigned*, unsigned, unsigned);
template unsigned long long atomic_compare_exchange(unsigned long long*, unsigned long long,
                                                    unsigned long long);
template unsigned short atomic_compare_exchange(unsigned short*, unsigned short, unsigned short);

}  // namespace quipu::emulator
