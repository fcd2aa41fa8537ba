// Adding rows at indices on the emulated device: what that reads grows with the entries, whatever
// destinations they have, and the sums do not depend on the order in which blocks run.
#include <quipu/quipu.h>

#include <cmath>

#include "quipu/ops/index/gather_kernels.h"
#include "support/support.h"

#include "traffic.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

const Device cuda("cuda");

/// All entries go to one row, each to its own, to rows as often as words are used, or to many rows
/// and one that has a third of all.
Tensor destinations(const char* kind, std::int64_t entries, std::int64_t rows) {
  const std::string name = kind;
  std::vector<double> values(static_cast<std::size_t>(entries));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto mixed = static_cast<double>((i * 2654435761u) % static_cast<std::uint64_t>(rows));
    values[i] = name == "one"    ? 5.0
                : name == "each" ? static_cast<double>((i * 7) % values.size())
                : name == "zipf" ? std::floor(static_cast<double>(rows) / (mixed + 1))
                : i % 3 == 0     ? 9.0
                                 : mixed;
    values[i] = std::min(values[i], static_cast<double>(rows - 1));
  }
  return from(values, {entries}, i64, cuda);
}

/// Sectors that are read and written.
double moved(const char* kind, std::int64_t entries) {
  const std::int64_t rows = 20000, columns = 32;
  const Tensor index = destinations(kind, entries, rows);
  const Tensor x = ones({entries, columns}, f32, cuda), o = zeros({rows, columns}, f32, cuda);
  return traffic_of([&] { add_at_index(o, index, x, 0); }).sector_bytes();
}

/// The sums in f64, on the host.
std::vector<double> sums_of(const Tensor& index, const Tensor& x, std::int64_t rows) {
  const std::int64_t columns = x.size(1);
  std::vector<double> result(static_cast<std::size_t>(rows * columns));
  const std::vector<double> at = index.to_vector(), values = x.to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto column = static_cast<double>(i % static_cast<std::size_t>(columns));
    const double row = at[i / static_cast<std::size_t>(columns)];
    result[static_cast<std::size_t>(row * static_cast<double>(columns) + column)] += values[i];
  }
  return result;
}

}  // namespace

TEST_CASE("scatter rows: what is moved grows with the entries, whatever their destinations") {
  if (!is_available(cuda)) return;
  for (const char* kind : {"one", "each", "zipf", "third"}) {
    CAPTURE(kind);
    const double once = moved(kind, 9000), twice = moved(kind, 18000);
    CHECK(twice <= 2.1 * once);
    // rows of 128 bytes: one of x, and one of o read and written; 8 bytes of the index read twice,
    // and pairs of 8 bytes that two passes move; partial sums are two rows in 64
    CHECK(once <= 9000 * (3 * 128 + 16 + 2 * 64 + 4.0 * 128 / 64));
  }
}

TEST_CASE("scatter rows: long and short runs of every type and layout") {
  if (!is_available(cuda)) return;
  for (const DType dtype : {f64, f32, bf16, f16, i64, i32}) {
    for (const char* kind : {"one", "each", "zipf", "third"}) {
      for (const std::int64_t entries : {1, 63, 64, 65, 300, 4097}) {
        CAPTURE(dtype);
        CAPTURE(kind);
        CAPTURE(entries);
        const std::int64_t rows = std::max<std::int64_t>(entries, 10), columns = 24;
        const Tensor index = destinations(kind, entries, rows);
        // sums of whole numbers that every type has
        std::vector<double> numbers(static_cast<std::size_t>(entries * columns));
        for (std::size_t i = 0; i < numbers.size(); ++i)
          numbers[i] = static_cast<double>(i % 3) - 1;
        const Tensor x = from(numbers, {entries, columns}, dtype, cuda);
        const Tensor wanted = from(sums_of(index, x, rows), {rows, columns}, f64, cuda);
        const Tensor dense = ones({rows, columns}, dtype, cuda);
        const Tensor loose = ones({rows, 2 * columns}, dtype, cuda).slice(1, 0, {}, 2);
        for (const Tensor& o : {dense, loose}) {
          add_at_index(o, index, x, 0);
          // rounded once: the old values are 1, and all partial sums are exact
          CHECK(same_bits(o.contiguous(), (wanted + 1).to(dtype)));
        }
      }
    }
  }
}

TEST_CASE("scatter rows: gradients of an embedding are the same bits every time") {
  if (!is_available(cuda)) return;
  Generator generator(4);
  const std::int64_t rows = 300, entries = 5000;
  const Tensor x = randn({entries, 40}, f32, cuda, generator);
  const Tensor index = destinations("third", entries, rows);
  Tensor first;
  for (int time = 0; time < 3; ++time) {
    const Tensor d = zeros({rows, 40}, f32, cuda);
    embedding_backward(index, x, Grad::write_to(d));
    if (time == 0) first = d;
    CHECK(same_bits(d, first));
  }
  // f32 sums of 1667 numbers of about 1
  const Tensor wanted = from(sums_of(index, x, rows), {rows, 40}, f64, cuda);
  const Difference d = compare(first.to(f64), wanted, {.relative = 1e-5, .absolute = 1667 * 1e-7});
  CHECK_MESSAGE(d.ok, d.text);
}
