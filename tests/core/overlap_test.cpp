// Whether two views may share an element, beside all pairs of elements.
#include "quipu/core/dispatch/overlap.h"

#include <set>
#include <vector>

#include "quipu/core/tensor.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

std::set<const void*> elements_of(const View& v) {
  std::set<const void*> elements;
  for (std::int64_t i = 0; i < v.numel(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = v.dim() - 1; d >= 0; --d) {
      at += rest % v.size(d) * v.stride(d);
      rest /= v.size(d);
    }
    elements.insert(v.as<float>() + at);
  }
  return elements;
}

bool share(const View& a, const View& b) {
  const std::set<const void*> in_a = elements_of(a);
  for (const void* element : elements_of(b)) {
    if (in_a.contains(element)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("overlap: never missed, and none is seen between slices of one tensor") {
  const Tensor x = empty({6, 5, 8});
  std::vector<Tensor> parts{x, x.transpose(0, 2), x.slice(2, 7, 8), x.slice(1, 0, 5, 2)};
  for (const std::int64_t i : {0, 2, 3, 5}) {
    parts.push_back(x.slice(2, i, i + 3));
    parts.push_back(x.slice(1, i > 2 ? 2 : i, 3));
    parts.push_back(x.slice(0, i, i + 1));
    parts.push_back(x.slice(2, i, 8, 3));
    parts.push_back(x.select(1, i % 5));
  }
  int seen = 0;
  for (const Tensor& a : parts) {
    for (const Tensor& b : parts) {
      const bool shares = share(a, b);
      if (shares) {
        CHECK(may_overlap(a, b));
      }
      seen += shares;
      if (a.dim() == 3 && b.dim() == 3 && a.strides() == b.strides()) {
        CHECK(may_overlap(a, b) == shares);
      }
    }
  }
  CHECK(seen > 100);
}

TEST_CASE("overlap: columns of long packed rows are told apart at once") {
  const Tensor rows = empty({2, 100000, 40});
  const Tensor a = rows.slice(2, 0, 8).unsqueeze(2), b = rows.slice(2, 8, 40).unsqueeze(2);
  CHECK_FALSE(may_overlap(a, b));
  CHECK(may_overlap(a, rows.slice(2, 7, 40).unsqueeze(2)));
}
