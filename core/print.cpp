// Readable tensors: nested brackets, aligned numbers, "..." in the middle of long dimensions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "quipu/core/tensor.h"

namespace quipu {
namespace {

constexpr std::int64_t edge = 3;               // entries shown at each end of a cut dimension
constexpr std::int64_t whole_up_to = 200;      // elements; larger tensors are cut
constexpr std::int64_t longest_uncut = 2 * edge + 1;

struct Printer {
  std::vector<double> values;  // of the entries that are shown
  DType dtype;
  bool cut;
  std::size_t next = 0;
  std::size_t width = 0;

  std::string number(double v) const {
    if (dtype == DType::boolean) return v != 0 ? "true" : "false";
    if (!is_floating(dtype)) return fmt::format("{}", static_cast<std::int64_t>(v));
    if (std::isnan(v)) return "nan";
    return fmt::format("{:.5g}", v);
  }

  bool is_cut(std::int64_t size) const { return cut && size > longest_uncut; }

  std::string nested(const Shape& shape, int dim, int indent) {
    if (dim == shape.size()) return fmt::format("{:>{}}", number(values[next++]), width);
    const bool last = dim + 1 == shape.size();
    const std::string separator = last ? ", " : ",\n" + std::string(static_cast<std::size_t>(indent) + 1, ' ');
    std::string text = "[";
    const std::int64_t size = shape[dim];
    for (std::int64_t i = 0; i < size; ++i) {
      if (i) text += separator;
      if (is_cut(size) && i == edge) {
        text += "...";
        i = size - edge - 1;
        continue;
      }
      text += nested(shape, dim + 1, indent + 1);
    }
    return text + "]";
  }
};

/// The corners that are shown, gathered dimension by dimension.
void gather(const Tensor& x, const Printer& p, std::vector<double>& out) {
  const View v = x.view();
  const auto one = [&](std::int64_t offset) {
    const Tensor element(Ref<Storage>(&x.storage()), x.offset() + offset, {}, {}, x.dtype());
    out.push_back(element.item());
  };
  const auto visit = [&](const auto& self, int dim, std::int64_t offset) -> void {
    if (dim == v.dim()) return one(offset);
    for (std::int64_t i = 0; i < v.size(dim); ++i) {
      if (p.is_cut(v.size(dim)) && i == edge) i = v.size(dim) - edge;
      self(self, dim + 1, offset + i * v.stride(dim));
    }
  };
  visit(visit, 0, 0);
}

}  // namespace

std::string to_string(const Tensor& x) {
  if (!x.defined()) return "undefined tensor";
  const std::string kind = fmt::format("{}{} on {}", to_string(x.dtype()), to_string(x.shape()), to_string(x.device()));
  if (x.device().is_meta()) return "(no values) " + kind;
  if (x.numel() == 0) return "[] " + kind;
  Printer p{{}, x.dtype(), x.numel() > whole_up_to};
  if (p.cut) {
    gather(x, p, p.values);
  } else {
    p.values = x.to_vector();
  }
  for (const double v : p.values) p.width = std::max(p.width, p.number(v).size());
  const std::string body = p.nested(x.shape(), 0, 0);
  return body + (x.dim() > 1 ? "\n" : " ") + kind;
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }

}  // namespace quipu
