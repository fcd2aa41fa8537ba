// Readable tensors: nested brackets, aligned numbers, "..." in the middle of long dimensions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "quipu/core/tensor.h"

namespace quipu {
namespace {

constexpr std::int64_t whole_up_to = 200;  // elements; larger tensors are cut

/// Entries shown at each end of a cut dimension: matrices show their corners, of long stacks of
/// matrices only the first and the last are shown.
std::int64_t edge_of(int dim, int dims) {
  return dim + 2 >= dims ? 3 : 1;
}

std::string text_of(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.5g}", value);
}

/// All values in row-major order as text. Whole numbers are exact.
std::vector<std::string> texts(const Tensor& x) {
  std::vector<std::string> result;
  if (is_floating(x.dtype())) {
    for (const double value : x.to_vector()) result.push_back(text_of(value));
    return result;
  }
  std::vector<std::int64_t> values(static_cast<std::size_t>(x.numel()));
  read_values(x, i64, values.data());
  for (const std::int64_t value : values) {
    const bool truth = x.dtype() == DType::boolean;
    result.push_back(truth ? value != 0 ? "true" : "false" : fmt::format("{}", value));
  }
  return result;
}

class Printer {
 public:
  explicit Printer(const Tensor& x) : shape_(x.shape()), cut_(x.numel() > whole_up_to) {
    if (cut_) {
      gather(x, 0, x.offset());
    } else {
      cells_ = texts(x);
    }
    for (const std::string& cell : cells_) width_ = std::max(width_, cell.size());
  }

  std::string text() { return nested(0); }

 private:
  bool is_cut(int dim) const { return cut_ && shape_[dim] > 2 * edge_of(dim, shape_.size()) + 1; }

  /// Calls f(i) for the entries of a dimension that are shown, and gap() where some are not.
  template <class F, class G>
  void visit(int dim, F f, G gap) const {
    const std::int64_t size = shape_[dim];
    const std::int64_t edge = is_cut(dim) ? edge_of(dim, shape_.size()) : size;
    for (std::int64_t i = 0; i < std::min(edge, size); ++i) f(i);
    if (!is_cut(dim)) return;
    gap();
    for (std::int64_t i = size - edge; i < size; ++i) f(i);
  }

  /// Reads the entries that are shown.
  void gather(const Tensor& x, int dim, std::int64_t offset) {
    if (dim == shape_.size()) {
      const Tensor element(Ref<Storage>(&x.storage()), offset, {}, {}, x.dtype());
      cells_.push_back(texts(element)[0]);
      return;
    }
    visit(
        dim, [&](std::int64_t i) { gather(x, dim + 1, offset + i * x.strides()[dim]); }, [] {});
  }

  std::string nested(int dim) {
    if (dim == shape_.size()) return fmt::format("{:>{}}", cells_[next_++], width_);
    // Rows start on lines of their own; a blank line stands between matrices.
    const int below = shape_.size() - dim - 1;
    const std::string separator =
        below == 0 ? ", "
                   : "," + std::string(static_cast<std::size_t>(std::min(below, 2)), '\n') +
                         std::string(static_cast<std::size_t>(dim) + 1, ' ');
    std::string inside;
    const auto append = [&](const std::string& part) {
      inside += (inside.empty() ? "" : separator) + part;
    };
    visit(
        dim, [&](std::int64_t) { append(nested(dim + 1)); }, [&] { append("..."); });
    return "[" + inside + "]";
  }

  Shape shape_;
  bool cut_;
  std::vector<std::string> cells_;  // of the entries that are shown
  std::size_t width_ = 0;
  std::size_t next_ = 0;
};

}  // namespace

std::string to_string(const Tensor& x) {
  if (!x.defined()) return "undefined tensor";
  const std::string kind =
      fmt::format("{}{} on {}", to_string(x.dtype()), to_string(x.shape()), to_string(x.device()));
  if (x.device().is_meta()) return "(no values) " + kind;
  if (x.numel() == 0) return "[] " + kind;
  return Printer(x).text() + (x.dim() > 1 ? "\n" : " ") + kind;
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  return out << to_string(x);
}

}  // namespace quipu
