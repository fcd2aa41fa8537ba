#include "quipu/core/dispatch/host_memory.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include "quipu/core/dispatch/elements.h"
#include "quipu/core/dispatch/kernels.h"

namespace quipu::detail {
namespace {

/// Bytes as a view, for copies between a device and the host.
View bytes_of(std::byte* data, std::size_t count, Device device) {
  View v;
  v.data = data;
  v.shape = Shape{static_cast<std::int64_t>(count)};
  v.strides = contiguous_strides(v.shape);
  v.dtype = DType::u8;
  v.device = device;
  v.defined = true;
  return v;
}

/// From the first to behind the last byte of a view that has elements.
std::pair<std::byte*, std::byte*> extent_of(const View& view) {
  std::int64_t first = 0, last = 0;
  for (int d = 0; d < view.dim(); ++d) {
    const std::int64_t reach = (view.size(d) - 1) * view.stride(d);
    (reach < 0 ? first : last) += reach;
  }
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  std::byte* data = view.as<std::byte>();
  return {data + first * size, data + (last + 1) * size};
}

}  // namespace

HostMemory::HostMemory(const std::vector<KernelOperand>& operands) {
  std::vector<Region> found;
  for (const KernelOperand& o : operands) {
    if (o.view->numel() == 0) continue;
    const auto [begin, end] = extent_of(*o.view);
    found.push_back({begin, end, o.view->device, o.view->dtype, true, false, {}});
  }
  std::sort(found.begin(), found.end(), [](const Region& a, const Region& b) {
    return std::tuple(a.device.kind(), a.device.index(), a.begin) <
           std::tuple(b.device.kind(), b.device.index(), b.begin);
  });
  for (Region& r : found) {
    if (regions_.empty() || regions_.back().device != r.device || regions_.back().end <= r.begin) {
      regions_.push_back(std::move(r));
      continue;
    }
    Region& last = regions_.back();
    last.one_type = last.one_type && last.dtype == r.dtype;
    last.end = std::max(last.end, r.end);
  }
  for (Region& r : regions_) {
    const auto size = static_cast<std::size_t>(r.end - r.begin);
    r.copy.resize(size);
    if (r.device.is_cpu()) {
      std::memcpy(r.copy.data(), r.begin, size);
    } else {
      download_kernel(bytes_of(r.begin, size, r.device), bytes_of(r.copy.data(), size, cpu));
    }
  }
}

void HostMemory::widen() {
  for (const Region& r : regions_) {
    if (!r.one_type) return;
  }
  for (Region& r : regions_) {
    if (!is_floating(r.dtype)) continue;
    const std::size_t count = r.copy.size() / size_of(r.dtype);
    std::vector<std::byte> wide(count * sizeof(double));
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      store_element(wide.data(), DType::f64, at, load_element<double>(r.copy.data(), r.dtype, at));
    }
    r.copy = std::move(wide);
    r.widened = true;
  }
}

void HostMemory::shift(double amplitude, unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> draw(-1, 1);
  for (Region& r : regions_) {
    if (!is_floating(r.dtype) || !r.one_type) continue;
    const DType dtype = r.widened ? DType::f64 : r.dtype;
    const auto count = static_cast<std::int64_t>(r.copy.size() / size_of(dtype));
    for (std::int64_t i = 0; i < count; ++i) {
      const double by = draw(random) * amplitude;
      const double value = load_element<double>(r.copy.data(), dtype, i);
      store_element(r.copy.data(), dtype, i, value * (1 + by));
    }
  }
}

HostMemory::Region& HostMemory::region_of(const View& view) {
  const auto [begin, end] = extent_of(view);
  for (Region& r : regions_) {
    if (r.device == view.device && r.begin <= begin && end <= r.end) return r;
  }
  throw_internal("an operand lies outside the memory that was copied");
}

void HostMemory::lend_to(std::vector<KernelOperand>& operands) {
  for (KernelOperand& o : operands) {
    View& view = *o.view;
    if (view.numel() > 0) {
      Region& r = region_of(view);
      // Bytes as they are, whatever types overlap in them, or one type that became another.
      const std::ptrdiff_t bytes = view.as<std::byte>() - r.begin;
      const auto from = static_cast<std::ptrdiff_t>(size_of(r.dtype));
      const std::ptrdiff_t to = sizeof(double);
      view.data = r.copy.data() + (r.widened ? bytes / from * to : bytes);
      if (r.widened) view.dtype = DType::f64;
    }
    view.device = cpu;
  }
}

void HostMemory::write_back(const HostMemory& before) const {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const Region& r = regions_[i];
    if (r.copy == before.regions_[i].copy) continue;
    auto* changed = const_cast<std::byte*>(r.copy.data());
    if (r.device.is_cpu()) {
      std::memcpy(r.begin, changed, r.copy.size());
    } else {
      upload_kernel(bytes_of(r.begin, r.copy.size(), r.device),
                    bytes_of(changed, r.copy.size(), cpu));
    }
  }
}

}  // namespace quipu::detail
