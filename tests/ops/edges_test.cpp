// Numbers at the edges: a number beside a tensor, numbers that a type does not hold, NaN, infinity,
// and zero to negative powers.
#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double nan = std::nan("");

using Values = std::vector<double>;

/// Equal, where NaN equals NaN.
void check_values(const Values& got, const Values& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(wanted[i])) {
      CHECK(std::isnan(got[i]));
    } else {
      CHECK(got[i] == wanted[i]);
    }
  }
}

void check_values(const Tensor& x, const Values& wanted) {
  check_values(x.to_vector(), wanted);
}

struct Binary {
  const char* name;
  Tensor (*f)(const Term&, const Term&);
};
const Binary binaries[] = {{"eq", eq},
                           {"ne", ne},
                           {"lt", lt},
                           {"le", le},
                           {"gt", gt},
                           {"ge", ge},
                           {"maximum", maximum},
                           {"minimum", minimum},
                           {"logical_and", logical_and},
                           {"logical_or", logical_or}};

Values gradient(const Tensor& leaf, const std::function<Tensor(const Tensor&)>& f) {
  const Tensor x = leaf.detach().set_requires_grad();
  Tape tape;
  tape.backward(sum(f(x)));
  return x.grad().to_vector();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "edges: a number beside a tensor takes its type") {
  CHECK(eq(from({0.1}, bf16, device), 0.1).to_vector() == Values{1});
  CHECK(eq(0.1, from({0.1}, f16, device)).to_vector() == Values{1});
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const Tensor x = from({0.1, 0.3, 1.0 / 3, 2.7, 257.0, 0.0}, dtype, device);
    const Tensor mask = from({1.0, 0.0, 1.0, 0.0, 1.0, 0.0}, boolean, device);
    for (const Scalar& s : {Scalar(0.1), Scalar(1.0 / 3), Scalar(2.7), Scalar(257), Scalar(true)}) {
      CAPTURE(to_string(s));
      const Tensor t = full({6}, s.real(), dtype, device),
                   one = scalar_tensor(s.real(), dtype, device);
      for (const Binary& op : binaries) {
        CAPTURE(op.name);
        CHECK(same_bits(op.f(x, s), op.f(x, t)));
        CHECK(same_bits(op.f(s, x), op.f(t, x)));
        if (op.f == eq || op.f == ne || op.f == lt || op.f == le || op.f == gt || op.f == ge ||
            op.f == logical_and || op.f == logical_or)
          continue;
        CHECK(gradient(x, [&](const Tensor& y) { return op.f(y, s); }) ==
              gradient(x, [&](const Tensor& y) { return op.f(y, t); }));
      }
      CHECK(same_bits(where(mask, x, s), where(mask, x, one)));
      CHECK(same_bits(where(mask, s, x), where(mask, one, x)));
      CHECK(same_bits(masked_fill(x, mask, s), where(mask, t, x)));
      CHECK(same_bits(clamp(x, s), maximum(x, t)));
      CHECK(same_bits(clamp(x, {}, s), minimum(x, t)));
      CHECK(same_bits(clamp(x, s, 300), minimum(maximum(x, t), 300)));
      CHECK(gradient(x, [&](const Tensor& y) { return clamp(y, s); })[0] ==
            (x.to_vector()[0] >= one.item() ? 1.0 : 0.0));
      CHECK(same_bits(x.clone().fill_(s), t));
      CHECK(same_bits(x.clone().clamp_(s, 300), clamp(x, s, 300)));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "edges: a number beyond the range of a reduced type stays as it is") {
  const Tensor x = from({0.0, 0.5, -infinity, infinity}, f16, device);
  check_values(x * 1e5, {0, 49984, -infinity, infinity});
  check_values(gt(x, 1e5), {0, 0, 0, 1});
  check_values(eq(x, 1e5), {0, 0, 0, 0});
  check_values(minimum(x, 1e5), {0, 0.5, -infinity, infinity});
  check_values(masked_fill(x, gt(x, 0), -1e9), {0, -infinity, -infinity, -infinity});
}

TEST_CASE_FIXTURE(EachDevice, "edges: comparisons with whole numbers that do not fit are right") {
  const struct {
    DType dtype;
    double low, high;
  } types[] = {{u8, 0, 255}, {boolean, 0, 1}, {i32, -2147483648.0, 2147483647.0}};
  for (const auto& [dtype, low, high] : types) {
    const Tensor x = from({low, high}, dtype, device);
    CAPTURE(x.dtype());
    for (const std::int64_t above :
         {std::int64_t{300}, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()}) {
      if (static_cast<double>(above) <= high) continue;
      check_values(lt(x, above), {1, 1});
      check_values(le(x, above), {1, 1});
      check_values(gt(x, above), {0, 0});
      check_values(ge(above, x), {1, 1});
      check_values(eq(x, above), {0, 0});
      check_values(ne(x, -above), {1, 1});
      check_values(gt(x, -above), {1, 1});
      check_values(minimum(x, above), {low, high});
      check_values(minimum(above, x), {low, high});
      check_values(maximum(x, -above), {low, high});
      check_values(clamp(x, -above, above), {low, high});
      check_values(clamp(x, -above), {low, high});
      check_values(clamp(x, {}, above), {low, high});
      check_values(x.clone().clamp_(-above, above), {low, high});
      const Tensor mask = ones({2}, boolean, device);
      const char* type = dtype == u8 ? "u8" : dtype == i32 ? "i32" : "bool";
      expect_error([&] { maximum(x, above); }, "maximum", "out of range", type, ".to(i64)");
      expect_error([&] { minimum(-above, x); }, "minimum", "out of range", type);
      expect_error([&] { clamp(x, above); }, "clamp", "out of range", type);
      expect_error([&] { clamp(x, {}, -above); }, "clamp", "out of range", type);
      expect_error([&] { clamp(x, above, above); }, "clamp", "out of range", type);
      expect_error([&] { x.clamp_(above, above); }, "clamp_", "out of range", type);
      expect_error([&] { where(mask, x, above); }, "where", "out of range", type);
      expect_error([&] { where(mask, -above, x); }, "where", "out of range", type);
      expect_error([&] { masked_fill(x, mask, above); }, "masked_fill", "out of range", type);
      expect_error([&] { x.fill_(above); }, "fill_", "out of range", type);
    }
  }
  check_values(maximum(from({250.0, 3.0}, u8, device), 200), {250, 200});
  // Sums and products wrap, as those of tensors do.
  check_values(from({250.0}, u8, device) + 300, {38});
  check_values(from({250.0}, u8, device).mul_(300), {static_cast<double>(250 * 300 % 256)});
}

TEST_CASE("edges: a whole number beyond i64 is not another one") {
  const std::uint64_t large = ~std::uint64_t{0};
  CHECK(Scalar(large).real() == 0x1p64);
  CHECK((zeros({1}) + large).item() == 0x1p64);
  expect_error([&] { lt(zeros({1}, i64), large); }, "lt", "i64");
}

TEST_CASE_FIXTURE(EachDevice, "edges: maximum, minimum and clamp at NaN") {
  const Values a{nan, 1, nan, 2, 2}, b{1, nan, nan, 2, 3};
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const Tensor x = from(a, {5}, dtype, device), y = from(b, {5}, dtype, device);
    check_values(maximum(x, y), {nan, nan, nan, 2, 3});
    check_values(minimum(x, y), {nan, nan, nan, 2, 2});
    // The gradient goes where the value came from, and is shared where it came from both.
    CHECK(gradient(x, [&](const Tensor& t) { return maximum(t, y); }) == Values{1, 0, 0.5, 0.5, 0});
    CHECK(gradient(y, [&](const Tensor& t) { return maximum(x, t); }) == Values{0, 1, 0.5, 0.5, 1});
    CHECK(gradient(x, [&](const Tensor& t) { return minimum(t, y); }) == Values{1, 0, 0.5, 0.5, 1});
    CHECK(gradient(y, [&](const Tensor& t) { return minimum(x, t); }) == Values{0, 1, 0.5, 0.5, 0});
    const auto total = [](const Values& values) {
      double sum = 0;
      for (const double v : values) sum += v;
      return Values{sum};
    };
    // Summed over what was broadcast, too.
    CHECK(gradient(from({nan}, dtype, device), [&](const Tensor& t) { return maximum(t, y); }) ==
          total({1, 0.5, 0.5, 1, 1}));
    check_values(maximum(x, 1.5), {nan, 1.5, nan, 2, 2});
    check_values(clamp(x, 1, 1.5), {nan, 1, nan, 1.5, 1.5});
    CHECK(gradient(x, [](const Tensor& t) { return clamp(t, 1, 1.5); }) == Values{1, 1, 1, 0, 0});
  }
}

TEST_CASE_FIXTURE(EachDevice, "edges: powers of zero") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const Tensor zero = zeros({6}, dtype, device);
    const Tensor b = from({-2.0, -1.0, -0.5, 0.0, 0.5, 2.0}, dtype, device);
    const Values wanted{infinity, infinity, infinity, 1, 0, 0};
    check_values(pow(zero, b), wanted);
    const Values slopes{-infinity, -infinity, -infinity, 0, infinity, 0};
    const auto by_a = [&](const Tensor& x) { return pow(x, b); };
    check_values(gradient(zero, by_a), slopes);
    const Values of_exponent{-infinity, -infinity, -infinity, 0, 0, 0};
    const auto by_b = [&](const Tensor& y) { return pow(zero, y); };
    check_values(gradient(b, by_b), of_exponent);
    check_values(gradient(b, [](const Tensor& y) { return pow(0, y); }), of_exponent);
    for (std::size_t i = 0; i < wanted.size(); ++i) {  // exponents that are numbers
      CAPTURE(i);
      const double exponent = b.to_vector()[i];
      check_values(pow(zero, exponent), Values(6, wanted[i]));
      const auto f = [&](const Tensor& x) { return pow(x, exponent); };
      check_values(gradient(zero, f), Values(6, slopes[i]));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "edges: rows of nothing but -infinity") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    for (const std::int64_t n : {3, 70, 5000}) {
      CAPTURE(n);
      const Tensor rows = zeros({2, n}, dtype, device);
      rows[0].fill_(-infinity);
      const double share = scalar_tensor(1.0 / static_cast<double>(n), dtype).item();
      for (const int dim : {1, 0}) {  // along rows, and along columns of the same
        const Tensor x = dim == 1 ? rows : rows.t().contiguous();
        const auto row = [&](const Tensor& t, std::int64_t i) {
          return (dim == 1 ? t : t.t())[i].to_vector();
        };
        // There is no softmax of them: NaN, in that row alone.
        const Tensor leaf = x.detach().set_requires_grad();
        Tape tape;
        const Tensor y = act(leaf, Act::softmax, dim);
        tape.backward(y, {ones(x.shape(), dtype, device), false});
        for (const double v : row(y.detach(), 0)) CHECK(std::isnan(v));
        for (const double v : row(y.detach(), 1)) CHECK(v == doctest::Approx(share));
        for (const double v : row(leaf.grad(), 0)) CHECK(std::isnan(v));
        for (const double v : row(leaf.grad(), 1)) CHECK(std::abs(v) <= epsilon_of(dtype));

        // Their logarithm is that of 0, which no small change of one of them moves.
        const auto lse = [&](const Tensor& t) { return logsumexp(t, dim); };
        CHECK(lse(x).to_vector()[0] == -infinity);
        const Tensor d = from(gradient(x, lse), x.shape(), f64);
        for (const double v : row(d, 0)) CHECK(v == 0);
        for (const double v : row(d, 1)) CHECK(v == doctest::Approx(share).epsilon(0.01));
      }
      // No class can be.
      const auto loss = [&](const Tensor& z) {
        return cross_entropy(z, zeros({2}, i64, device), {.reduction = LossReduction::none});
      };
      CHECK(std::isnan(loss(rows).to_vector()[0]));
      CHECK(std::isfinite(loss(rows).to_vector()[1]));
      const Tensor d = from(gradient(rows, loss), {2, n}, f64);
      for (const double v : d[0].to_vector()) CHECK(std::isnan(v));
      for (const double v : d[1].to_vector()) CHECK(std::isfinite(v));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "edges: heads of tpa_decode whose scores are all -infinity") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const std::int64_t m = 70, d = 16;
    const Tensor aq = ones({1, 1, 2, 1}, dtype, device), bq = ones({1, 1, 1, d}, dtype, device);
    const Tensor a = ones({1, m, 2}, dtype, device), b = ones({1, m, d}, dtype, device);
    aq(0, 0, 0).fill_(-infinity);
    const Tensor o = tpa_decode(aq, a, a, bq, b, b);
    check_values(o(0, 0, 0), Values(static_cast<std::size_t>(d), 0.0));  // as if nothing attends
    for (const double v : o(0, 0, 1).to_vector()) CHECK(v == doctest::Approx(1).epsilon(0.01));
  }
}

TEST_CASE_FIXTURE(EachDevice, "edges: queries whose scores are all -infinity") {
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CAPTURE(dtype);
    const std::int64_t n = 5, m = 70, d = 16;
    const Tensor q = ones({1, 1, n, d}, dtype, device), k = ones({1, 1, m, d}, dtype, device),
                 v = ones({1, 1, m, d}, dtype, device);
    q[0][0][1].fill_(-infinity);  // no other query sees it
    const Tensor leaf = q.detach().set_requires_grad();
    v.set_requires_grad();
    Tape tape;
    const Tensor o = attention(leaf, k, v);
    tape.backward(o, {ones(o.shape(), dtype, device), false});
    for (std::int64_t i = 0; i < n; ++i) {
      CAPTURE(i);
      for (const double x : o.detach()[0][0][i].to_vector()) CHECK(std::isnan(x) == (i == 1));
      for (const double x : leaf.grad()[0][0][i].to_vector()) CHECK(std::isnan(x) == (i == 1));
    }
    for (const double x : v.grad().to_vector()) CHECK(std::isnan(x));  // all values have part in it
  }
}
