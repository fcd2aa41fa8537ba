// Readable tensors: nested brackets, aligned numbers, "..." in the middle of long dimensions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "quipu/core/tensor.h"

namespace quipu {
using namespace detail;
namespace {

// The middle of larger tensors and longer rows is cut out.
constexpr std::int64_t most_elements = 200;
constexpr std::int64_t longest_row = 32;

/// Digits behind the point, up to four, that a number needs.
int decimals_of(double value) {
  const std::string text = fmt::format("{:.4f}", value);
  return static_cast<int>(text.find_last_not_of('0') - text.find('.'));
}

/// Plain numbers with as many digits behind the point as the longest needs; where sizes differ too
/// much for that, five digits and an exponent.
std::vector<std::string> texts(const std::vector<double>& values) {
  bool moderate = true, whole = true;
  int decimals = 0;
  for (const double v : values) {
    const double size = std::abs(v);
    if (v == 0 || !std::isfinite(v)) continue;
    moderate = moderate && size >= 1e-4 && size < 1e5;
    whole = whole && v == std::trunc(v) && size < 1e15;
    if (moderate) decimals = std::max(decimals, decimals_of(v));
  }
  std::vector<std::string> result;
  for (const double v : values) {
    result.push_back(std::isnan(v)       ? "nan"
                     : whole || moderate ? fmt::format("{:.{}f}", v, whole ? 0 : decimals)
                                         : fmt::format("{:.5g}", v));
  }
  return result;
}

std::vector<std::string> texts(const std::vector<std::int64_t>& values, bool truth) {
  std::vector<std::string> result;
  for (const std::int64_t v : values) {
    result.push_back(!truth ? std::to_string(v) : v ? "true" : "false");
  }
  return result;
}

class Printer {
 public:
  explicit Printer(const Tensor& x) : shape_(x.shape()) {
    cut_ = x.numel() > most_elements || (x.dim() > 0 && x.size(-1) > longest_row);
    if (is_floating(x.dtype())) {
      cells_ = texts(shown<double>(x));
    } else {
      cells_ = texts(shown<std::int64_t>(x), x.dtype() == DType::boolean);
    }
    for (const std::string& cell : cells_) width_ = std::max(width_, cell.size());
  }

  std::string text() { return nested(0); }

 private:
  /// Entries that a cut dimension shows at its start and at its end. Matrices show their corners;
  /// of stacks of matrices the first and the last are shown, of stacks of those the first. So a
  /// text has at most 14 x 14 numbers.
  struct Edges {
    std::int64_t front, back;
  };
  Edges edges_of(int dim) const {
    const int below = shape_.size() - dim - 1;
    const Edges edges = below < 2 ? Edges{3, 3} : below < 4 ? Edges{1, 1} : Edges{1, 0};
    const bool fits = shape_[dim] <= edges.front + edges.back + (below < 2 ? 1 : 0);
    return cut_ && !fits ? edges : Edges{shape_[dim], 0};
  }

  /// Calls f(i) for the entries of a dimension that are shown, and gap() where some are not.
  template <class F, class G>
  void visit(int dim, F f, G gap) const {
    const Edges edges = edges_of(dim);
    for (std::int64_t i = 0; i < edges.front; ++i) f(i);
    if (edges.front + edges.back < shape_[dim]) gap();
    for (std::int64_t i = shape_[dim] - edges.back; i < shape_[dim]; ++i) f(i);
  }

  template <class T>
  std::vector<T> shown(const Tensor& x) const {
    std::vector<T> values;
    if (cut_) {
      gather(x, 0, x.offset(), values);
    } else {
      values.resize(static_cast<std::size_t>(x.numel()));
      read_values(x, dtype_of<T>, values.data());
    }
    return values;
  }

  template <class T>
  void gather(const Tensor& x, int dim, std::int64_t offset, std::vector<T>& values) const {
    if (dim == shape_.size()) {
      const Tensor element(Ref<Storage>(&x.storage()), offset, {}, {}, x.dtype());
      read_values(element, dtype_of<T>, &values.emplace_back());
      return;
    }
    const auto enter = [&](std::int64_t i) {
      gather(x, dim + 1, offset + i * x.strides()[dim], values);
    };
    visit(dim, enter, [] {});
  }

  std::string nested(int dim) {
    if (dim == shape_.size()) return fmt::format("{:>{}}", cells_[next_++], width_);
    // Rows start on lines of their own; a blank line stands between matrices.
    const int below = shape_.size() - dim - 1;
    const std::string lines(static_cast<std::size_t>(std::min(below, 2)), '\n');
    const std::string indent(below == 0 ? 1 : static_cast<std::size_t>(dim) + 1, ' ');
    std::string inside;
    const auto append = [&](const std::string& part) {
      if (!inside.empty()) inside += "," + lines + indent;
      inside += part;
    };
    const auto enter = [&](std::int64_t) { append(nested(dim + 1)); };
    visit(dim, enter, [&] { append("..."); });
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
