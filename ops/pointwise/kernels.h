#pragma once
// What a back end provides for every pointwise operator and its backward: one map and one
// map-and-sum, over operands that are views or scalars. Internal to ops/ and the back ends.
#include <array>
#include <initializer_list>
#include <iterator>
#include <type_traits>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/scalar.h"
#include "quipu/core/tensor.h"

namespace quipu::detail {

/// The function applied to each element, from the table in functions.def. Computed in f64 if an
/// operand is f64, in f32 if one is another floating type, else in i64.
enum class Pointwise : std::uint8_t {
#define QUIPU_POINTWISE(name, types, sums, moves) name,
#include "quipu/ops/pointwise/functions.def"
#undef QUIPU_POINTWISE
};

/// What the table says of a function.
struct PointwiseTraits {
  const char* name;
  bool for_real, for_whole_numbers;
  bool summed;    // comes in sums, too
  bool in_packs;  // on a GPU, beside one element at a time
};
inline constexpr PointwiseTraits pointwise_table[] = {
#define QUIPU_POINTWISE(name, types, sums, moves) \
  {#name, #types[0] != 'w', #types[0] != 'r', #sums[0] == 's', #moves[0] == 'p'},
#include "quipu/ops/pointwise/functions.def"
#undef QUIPU_POINTWISE
};
inline constexpr int pointwise_count = static_cast<int>(std::size(pointwise_table));
constexpr const PointwiseTraits& traits_of(Pointwise f) {
  return pointwise_table[static_cast<std::size_t>(f)];
}

/// A view or a scalar.
struct Operand {
  Operand(const View& v) : view(v) {}
  Operand(const Tensor& t) : view(t.view()) {}
  Operand(const Scalar& s) : value(s), is_scalar(true) {}
  Operand(double v) : Operand(Scalar(v)) {}
  View view;
  Scalar value = 0;
  bool is_scalar = false;
};

/// Up to three operands, given with the shape that the function runs over (views are broadcast to
/// it).
struct Operands {
  Operands(std::initializer_list<Operand> list) {
    for (const Operand& o : list) items[static_cast<std::size_t>(count++)] = o;
  }
  const View* first_view() const {
    for (int i = 0; i < count; ++i) {
      if (!items[static_cast<std::size_t>(i)].is_scalar)
        return &items[static_cast<std::size_t>(i)].view;
    }
    return nullptr;
  }
  const Operand& operator[](int i) const { return items[static_cast<std::size_t>(i)]; }
  template <class F>
  void each_view(F f) {
    constexpr const char* names[] = {"a", "b", "c"};
    for (int i = 0; i < count; ++i) {
      Operand& item = items[static_cast<std::size_t>(i)];
      if (!item.is_scalar) f(names[i], item.view, Role::value);
    }
  }
  std::array<Operand, 3> items{Operand(0.0), Operand(0.0), Operand(0.0)};
  int count = 0;
};

/// o = f(operands) or o += f(operands), rounded once to the type of o. View operands broadcast to
/// the shape of o.
inline constinit Kernel<void(Target o, Pointwise f, const Operands& in)> pointwise_kernel{
    "pointwise", "o function operands", Agreement::typed};

/// o (=|+=) scale * sum of f(operands), one that is summed in the table, over `over`, which is the
/// operands' broadcast shape; o broadcasts to it, and the dimensions that o lacks or has with size
/// 1 are summed. Sums are f64 inside, whole numbers i64.
inline constinit Kernel<void(Target o, Pointwise f, const Operands& in, const Shape& over,
                             double scale)>
    pointwise_sum_kernel{"pointwise_sum", "o function operands over scale", Agreement::typed};

// ---- for back ends ----

/// The type that a function of these operands is computed in: f64 if an operand is f64, f32 if one
/// is another floating type, else i64. Scalars only count if they have a fraction that i64 would
/// lose.
DType pointwise_type(const Operands& in);
/// The same for a map to `o`: a plain copy of small whole numbers to a floating type goes through
/// f64, which holds them all.
DType pointwise_type(const View& o, Pointwise f, const Operands& in);

/// The strides of the output and of three operands, broadcast to `over`; 0 for scalars and for
/// operands that are not there.
std::array<Strides, 4> pointwise_strides(const View& o, const Operands& in, const Shape& over);

template <class T>
T scalar_as(const Scalar& s) {
  if constexpr (std::is_integral_v<T>) {
    return s.whole();
  } else {
    return s.is_real() ? static_cast<T>(s.real()) : static_cast<T>(s.whole());
  }
}

/// Calls f with a number of the compute type.
template <class F>
void with_compute_type(DType type, F f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    default: return f(std::int64_t{});
  }
}

}  // namespace quipu::detail
