#pragma once
// What the stand-ins for the CUDA headers call: the running kernel's side of the emulator.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

struct dim3;

namespace quipu::emulator {

struct Stream;
struct Event;
struct Graph;
struct GraphNode;
struct GraphExec;

/// Where a kernel calls a collective. Lanes that meet must come from the same place.
using Site = std::source_location;

/// A kernel with its arguments, called once for each thread.
class Call {
 public:
  virtual ~Call() = default;
  virtual void run() const = 0;
  /// The same kernel with other arguments, an address each.
  virtual std::shared_ptr<const Call> with(void* const* arguments) const = 0;
  const void* kernel = nullptr;
  std::size_t bytes = 0;  // of the object: kernels may read their arguments in it
};
template <class... Parameters>
class CallOf final : public Call {
 public:
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "kernel arguments are copied byte by byte");
  CallOf(void (*function)(Parameters...), Parameters... arguments)
      : function_(function), arguments_(arguments...) {
    kernel = reinterpret_cast<const void*>(function);
    bytes = sizeof *this;
  }
  void run() const override { std::apply(function_, arguments_); }
  std::shared_ptr<const Call> with(void* const* arguments) const override {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::make_shared<CallOf>(function_, *static_cast<const Parameters*>(arguments[I])...);
    }
    (std::index_sequence_for<Parameters...>{});
  }

 private:
  void (*function_)(Parameters...);  // opaque to the compiler: threadIdx is read anew in each call
  std::tuple<Parameters...> arguments_;
};
void enqueue(std::shared_ptr<const Call> call, dim3 grid, dim3 block, std::size_t shared_bytes,
             Stream* stream);

/// This block's dynamic shared memory.
void* dynamic_shared();

/// __syncthreads and its counting forms: how many threads brought a true predicate.
int barrier(bool predicate, Site at);

enum class Collective : std::uint8_t {
  sync,
  ballot,
  shuffle,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  match_any,
  match_all,
  add,
  min_signed,
  min_unsigned,
  max_signed,
  max_unsigned,
  bit_and,
  bit_or,
  bit_xor,
  call,  // `function` computes what all lanes get
};
/// `inputs` are those of the 32 lanes.
using CollectiveFunction = void (*)(std::uint64_t* inputs);
/// Waits for the lanes of the mask, gives this lane its result.
std::uint64_t collective(Collective what, unsigned mask, std::uint64_t input, unsigned argument,
                         unsigned width, Site at, CollectiveFunction function = nullptr);
unsigned active_lanes();

template <class T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
T shuffle(Collective what, unsigned mask, T value, unsigned argument, int width, Site at) {
  return from_bits<T>(
      collective(what, mask, to_bits(value), argument, static_cast<unsigned>(width), at));
}

enum class Update : std::uint8_t {
  add,
  sub,
  exchange,
  min,
  max,
  inc,
  dec,
  bit_and,
  bit_or,
  bit_xor
};
/// Returns the old value. Defined for int, unsigned, unsigned long long, float and double.
template <class T>
T atomic_update(T* address, T value, Update update);
template <class T>
T atomic_compare_exchange(T* address, T expected, T value);
/// __threadfence: an atomic that follows publishes what came before to blocks that meet it there.
void fence();

/// cp.async: `bytes` of 4, 8 or 16, of which the last `zeros` are not read but zero.
void copy_async(void* shared, const void* global, std::size_t bytes, std::size_t zeros);
void copy_commit();
void copy_wait(std::size_t groups_left);

enum class Operand : std::uint8_t { bf16, f16, tf32 };
/// d += a b: m16n8k16 for bf16 and f16, m16n8k8 for tf32; lanes as PTX documents them.
void mma(Operand type, float* d, const unsigned* a, const unsigned* b, Site at);
/// `count` 8x8 matrices of 16-bit elements; lane l brings the address of one row, in `row_bits`
/// the 16 bytes that it read there.
void ldmatrix(unsigned* registers, int count, bool transposed, const unsigned* row_bits, Site at);

/// Ends the kernel: "trap".
[[noreturn]] void trap(Site at);

}  // namespace quipu::emulator
