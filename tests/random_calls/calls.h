#pragma once
// Random calls of every operator, forward and backward, with each kernel repeated by the reference:
// sizes of 0, 1, odd ones and more than a block, any strides, types and options; gradients written
// and added to; optional operands missing.
#include <quipu/quipu.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

namespace quipu::calls {

/// Draws what a call is made of; the same from the same seed.
class Draw {
 public:
  Draw(std::uint64_t seed, Device device) : device_(device), random_(seed) {}

  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
  }
  bool chance(int one_in) { return below(one_in) == 0; }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<std::int64_t>(list.size()))];
  }

  /// A size that loops treat differently from others, `most` at the most; 0 now and then.
  std::int64_t size(std::int64_t most);
  /// Sizes of so many dimensions, with few elements in all.
  Shape shape(int dims);
  int dim_of(const Shape& shape);
  DType floating();

  /// Normal numbers, in any layout; a leaf that may want a gradient.
  Tensor tensor(const Shape& shape, DType dtype, double scale = 1);
  /// The same with zeros, infinities and equal numbers among them, now and then.
  Tensor odd_tensor(const Shape& shape, DType dtype);
  Tensor whole(const Shape& shape, std::int64_t low, std::int64_t high, DType dtype = i64);
  /// A tensor, or nothing.
  Tensor maybe(const Shape& shape, DType dtype) {
    return chance(3) ? Tensor() : tensor(shape, dtype);
  }
  Act act() { return one_of({Act::none, Act::relu, Act::sigmoid, Act::silu, Act::softmax}); }

  Device device() const { return device_; }
  std::int64_t elements() const { return is_emulated(device_) ? 1500 : 20000; }

 private:
  /// The same values with other strides.
  Tensor laid_out(const Tensor& x);
  Tensor leaf(const Tensor& x);
  Device device_;
  std::mt19937_64 random_;
};

struct Operator {
  const char* name;
  /// Calls it with drawn arguments; what it gives is differentiated.
  std::vector<Tensor> (*call)(Draw&);
};
const std::vector<Operator>& operators();
// Those of the fused families.
std::vector<Tensor> activations(Draw& d);
std::vector<Tensor> gates(Draw& d);
std::vector<Tensor> encodings(Draw& d);
std::vector<Tensor> linear_attention(Draw& d);
std::vector<Tensor> softmax_attention(Draw& d);
std::vector<Tensor> factored_attention(Draw& d);

/// Draws an operator and calls it, forward and twice backward, under KernelCheck. The name of the
/// operator; throws an Error that begins with the seed where a kernel is wrong.
std::string run_call(std::uint64_t seed, Device device);

}  // namespace quipu::calls
