#pragma once
// Operators of a user's own, with their text for programs that use them.
#include <quipu/quipu.h>

namespace quipu::programs {

#define WITH_TEXT(...) \
  __VA_ARGS__          \
  inline constexpr const char* custom_operators = #__VA_ARGS__;

WITH_TEXT(
    struct Cube {
      static constexpr const char* name = "cube";
      Saved x;
      Tensor forward(const Tensor& in) {
        x = save(in);
        return in * in * in;
      }
      void backward(const Tensor& d_o, Grads& d) const {
        d.add(0, 3 * d_o * x.get() * x.get());
      }
    };
    struct Blend {
      static constexpr const char* name = "blend";
      Tensor forward(const Tensor& a, const Tensor& b) {
        return a + 0.5 * b;
      }
      void backward(const Tensor& d_o, Grads& d) const {
        d.pass(0, d_o);
        d.add(1, 0.5 * d_o);
      }
    };
    struct Gate {
      static constexpr const char* name = "gate";
      Saved a;
      Saved b;
      Tensor forward(const Tensor& x, const Tensor& y) {
        a = save(x);
        b = save(y);
        return x * tanh(y);
      }
      void backward(const Tensor& d_o, Grads& d) const {
        const Tensor t = tanh(b.get());
        d.add(0, d_o * t);
        d.add(1, d_o * a.get() * (1 - t * t));
      }
    };)
#undef WITH_TEXT

}  // namespace quipu::programs
