// The functions that instrumented kernels call at every load and store. The compiler inserts the
// calls (-fsanitize=thread, for kernel objects only); the sanitizer's own library is never linked.
#include <cstddef>
#include <cstdint>
#include <string>

#include "../multiprocessor.h"
#include "report.h"

using quipu::emulator::Access;
using quipu::emulator::running;
using quipu::emulator::watching;

namespace {

[[gnu::always_inline]] inline void see(void* address, std::size_t bytes, Access access,
                                       void* code) {
  if (watching == nullptr) return;
  watching->access(reinterpret_cast<std::uintptr_t>(address), bytes, access,
                   reinterpret_cast<std::uintptr_t>(code));
}

}  // namespace

#define QUIPU_HOOKS(n)                                     \
  void __tsan_read##n(void* p);                            \
  void __tsan_read##n(void* p) {                           \
    see(p, n, Access::read, __builtin_return_address(0));  \
  }                                                        \
  void __tsan_write##n(void* p);                           \
  void __tsan_write##n(void* p) {                          \
    see(p, n, Access::write, __builtin_return_address(0)); \
  }                                                        \
  void __tsan_unaligned_read##n(void* p);                  \
  void __tsan_unaligned_read##n(void* p) {                 \
    see(p, n, Access::read, __builtin_return_address(0));  \
  }                                                        \
  void __tsan_unaligned_write##n(void* p);                 \
  void __tsan_unaligned_write##n(void* p) {                \
    see(p, n, Access::write, __builtin_return_address(0)); \
  }

extern "C" {

QUIPU_HOOKS(1)
QUIPU_HOOKS(2)
QUIPU_HOOKS(4)
QUIPU_HOOKS(8)
QUIPU_HOOKS(16)

void __tsan_read_range(void* p, std::size_t n);
void __tsan_read_range(void* p, std::size_t n) {
  see(p, n, Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t n);
void __tsan_write_range(void* p, std::size_t n) {
  see(p, n, Access::write, __builtin_return_address(0));
}
void __tsan_init();
void __tsan_init() {}
void __tsan_func_entry(void*);
void __tsan_func_entry(void*) {}
void __tsan_func_exit();
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*);
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**);
void __tsan_vptr_read(void**) {}

// Atomics of host code in the same files: shared pointers, guards of static variables.
#define QUIPU_HOST_UPDATE(bits, T, name)                        \
  T __tsan_atomic##bits##_##name(volatile T* p, T value, int);  \
  T __tsan_atomic##bits##_##name(volatile T* p, T value, int) { \
    return __atomic_##name(p, value, __ATOMIC_SEQ_CST);         \
  }
#define QUIPU_HOST_EXCHANGE(bits, T, strength, weak)                                               \
  int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* p, T* old, T value, int, int); \
  int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* p, T* old, T value, int,       \
                                                        int) {                                     \
    return __atomic_compare_exchange_n(p, old, value, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
  }
#define QUIPU_HOST_ATOMICS(bits, T)                               \
  T __tsan_atomic##bits##_load(const volatile T* p, int);         \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {        \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                  \
  }                                                               \
  void __tsan_atomic##bits##_store(volatile T* p, T value, int);  \
  void __tsan_atomic##bits##_store(volatile T* p, T value, int) { \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                 \
  }                                                               \
  T __tsan_atomic##bits##_exchange(volatile T* p, T value, int);  \
  T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) { \
    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);       \
  }                                                               \
  QUIPU_HOST_EXCHANGE(bits, T, strong, false)                     \
  QUIPU_HOST_EXCHANGE(bits, T, weak, true)                        \
  QUIPU_HOST_UPDATE(bits, T, fetch_add)                           \
  QUIPU_HOST_UPDATE(bits, T, fetch_sub)                           \
  QUIPU_HOST_UPDATE(bits, T, fetch_and)                           \
  QUIPU_HOST_UPDATE(bits, T, fetch_or)                            \
  QUIPU_HOST_UPDATE(bits, T, fetch_xor)
QUIPU_HOST_ATOMICS(8, std::uint8_t)
QUIPU_HOST_ATOMICS(16, std::uint16_t)
QUIPU_HOST_ATOMICS(32, std::uint32_t)
QUIPU_HOST_ATOMICS(64, std::uint64_t)
void __tsan_atomic_thread_fence(int);
void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int);
void __tsan_atomic_signal_fence(int) {}

/// What -fsanitize=bounds calls for an index outside an array of known size, shared or local: the
/// shadow cannot tell an overrun from an access to the array behind.
struct OutOfBounds {
  const char* file;
  std::uint32_t line, column;
  const void* array_type;
  const void* index_type;
};
struct ArrayType {
  std::uint16_t kind, info;
  char name[1];  // in quotes
};
void __ubsan_handle_out_of_bounds(OutOfBounds* where, void* index);
void __ubsan_handle_out_of_bounds(OutOfBounds* where, void* index) {
  const auto* type = static_cast<const ArrayType*>(where->array_type);
  quipu::emulator::report_line("out of bounds", where->file, where->line,
                               "index " + std::to_string(reinterpret_cast<std::intptr_t>(index)) +
                                   " of an array of type " + type->name);
  if (running != nullptr) running->abandon();
}

}  // extern "C"
