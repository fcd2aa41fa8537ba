// How far apart a fast kernel and the reference may be. The reference computes in f64 and does not
// round here: floating operands are copied to f64. Allowed is one rounding of the result, and as
// much as the result moves when the operands move by rounding: the reference runs again on operands
// that are randomly off by a small relative amplitude, one way and the other, as in Monte Carlo
// arithmetic (Denis et al. 2016, arXiv:1509.01347). The amplitude is 8 sqrt(n) epsilon of the type
// that kernels compute in, n being the largest size of an operand: what a sum of n terms in any
// order gathers. With bf16 and f16 it is at least half their epsilon: a kernel
// may round a factor to them once before the last product. A result whose formula subtracts what is
// larger than the result, however well it is defined, may be off by the amplitude of those terms:
// the reference tells how large they are.
#include "quipu/core/dispatch/kernel_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "quipu/core/context.h"
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/dispatch/elements.h"
#include "quipu/core/dispatch/host_memory.h"
#include "quipu/core/text.h"

namespace quipu {
namespace detail {

constinit thread_local KernelMode kernel_mode = KernelMode::unset;

namespace {

KernelMode mode_of_environment() {
  const char* kernels = std::getenv("QUIPU_KERNELS");
  const std::string_view name = kernels == nullptr ? "" : kernels;
  check(name.empty() || name == "fast" || name == "reference", "QUIPU_KERNELS is '", name,
        "', but it must be fast or reference");
  if (name == "reference") return KernelMode::reference;
  const char* checked = std::getenv("QUIPU_CHECK_KERNELS");
  const std::string_view answer = checked == nullptr ? "" : checked;
  return answer.empty() || answer == "0" ? KernelMode::fast : KernelMode::checked;
}

/// What note_term_sizes said of a view, while a check listens.
struct TermSizes {
  View view;
  std::vector<double> sizes;

  /// In the order of another view of the same elements.
  std::vector<double> in_order_of(const View& other) const {
    std::unordered_map<std::int64_t, double> by_offset;
    for_each_element(view.shape, view.strides, [&](std::int64_t i, std::int64_t offset) {
      by_offset[offset] = sizes[static_cast<std::size_t>(i)];
    });
    std::vector<double> ordered;
    for_each_element(other.shape, other.strides, [&](std::int64_t, std::int64_t offset) {
      ordered.push_back(by_offset[offset]);
    });
    return ordered;
  }
};
constinit thread_local std::vector<TermSizes>* listening = nullptr;
class Listener {
 public:
  explicit Listener(std::vector<TermSizes>& to) { listening = &to; }
  ~Listener() { listening = nullptr; }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
};

/// Kernels that a check itself needs run as usual.
class ModeScope {
 public:
  explicit ModeScope(KernelMode mode) : outer_(std::exchange(kernel_mode, mode)) {}
  ~ModeScope() { kernel_mode = outer_; }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  KernelMode outer_;
};

/// The values of an operand, row-major; partial sums are added up.
struct Values {
  Shape shape;
  std::vector<double> real;
  std::vector<std::int64_t> whole;  // of the same elements, where the type is not floating
  std::vector<double> terms;        // that they were summed from, if the reference told
};

Values values_of(const KernelOperand& operand) {
  const View& view = *operand.view;
  Values v{view.shape, {}, {}, {}};
  if (operand.role == Role::partial_sums) v.shape.erase(0);
  const auto count = static_cast<std::size_t>(numel(v.shape));
  v.real.assign(count, 0);
  if (!is_floating(view.dtype)) v.whole.assign(count, 0);
  if (count == 0) return v;
  for_each_element(view.shape, view.strides, [&](std::int64_t position, std::int64_t offset) {
    const auto i = static_cast<std::size_t>(position) % count;
    v.real[i] += load_element<double>(view.data, view.dtype, offset);
    if (!v.whole.empty()) v.whole[i] = load_element<std::int64_t>(view.data, view.dtype, offset);
  });
  return v;
}

/// The relative amount by which operands may be off.
double amplitude_of(const std::vector<KernelOperand>& operands) {
  std::int64_t longest = 1;
  double compute = 0, reduced = 0;
  for (const KernelOperand& o : operands) {
    if (o.role == Role::workspace) continue;
    for (const std::int64_t size : o.view->shape) longest = std::max(longest, size);
    if (!is_floating(o.view->dtype)) continue;
    compute = std::max(compute, epsilon_of(compute_type(o.view->dtype)));
    if (is_reduced(o.view->dtype)) reduced = std::max(reduced, epsilon_of(o.view->dtype));
  }
  return std::max(8 * std::sqrt(static_cast<double>(longest)) * compute, reduced / 2);
}

/// Largest finite number and half the distance of the smallest ones.
double largest_of(DType dtype) {
  return dtype == f64    ? 0x1.fffffffffffffp1023
         : dtype == f32  ? 0x1.fffffep127
         : dtype == bf16 ? 0x1.fep127
                         : 65504.0;
}
double smallest_of(DType dtype) {
  return dtype == f64 ? 0x1p-1074 : dtype == f32 ? 0x1p-149 : dtype == bf16 ? 0x1p-133 : 0x1p-24;
}

/// A call of the fast kernel beside those of the reference.
class Comparison {
 public:
  Comparison(const AnyKernel& kernel, const RepeatCall& repeat)
      : kernel_(kernel), repeat_(repeat), fast_(repeat()), before_(fast_->operands) {
    for (const KernelOperand& o : fast_->operands) devices_.push_back(o.view->device);
    if (kernel.agreement() != Agreement::equal) amplitude_ = amplitude_of(fast_->operands);
  }

  /// Throws for the first difference from what the operands are now.
  void compare() {
    HostMemory after(fast_->operands);
    after.lend_to(fast_->operands);
    const std::vector<Values> wanted = run_reference(0, 0);
    std::vector<std::vector<Values>> moved;
    if (amplitude_ > 0) {
      // A few numbers may all be shifted alike, by chance; many are not.
      const unsigned shifts = wanted_elements(wanted) <= 2000 ? 4 : 1;
      for (unsigned seed = 1; seed <= shifts; ++seed) {
        for (const double side : {1.0, -1.0}) {
          moved.push_back(run_reference(side * amplitude_, seed));
        }
      }
    }
    for (std::size_t k = 0; k < fast_->operands.size(); ++k) {
      const Role role = fast_->operands[k].role;
      if (role == Role::workspace) continue;
      Values got = values_of(fast_->operands[k]), want = wanted[k];
      std::vector<Values> near;
      for (const auto& values : moved) near.push_back(values[k]);
      if (role == Role::rest) {
        add(got, values_of(fast_->operands[k - 1]));
        add(want, wanted[k - 1]);
        for (std::size_t r = 0; r < near.size(); ++r) add(near[r], moved[r][k - 1]);
      }
      got.whole.empty() ? compare_real(k, got, want, near) : compare_whole(k, got, want, near);
    }
  }

 private:
  static std::size_t wanted_elements(const std::vector<Values>& operands) {
    std::size_t count = 0;
    for (const Values& v : operands) count += v.real.size();
    return count;
  }

  /// The operands as the reference leaves them.
  std::vector<Values> run_reference(double amplitude, unsigned seed) {
    const std::unique_ptr<KernelCall> call = repeat_();
    HostMemory memory = before_;
    if (kernel_.agreement() == Agreement::rounded) memory.widen();
    if (amplitude != 0) memory.shift(amplitude, seed);
    memory.lend_to(call->operands);
    std::vector<TermSizes> terms;
    try {
      const Listener listener(terms);
      call->run();
    } catch (const Error& error) {
      if (amplitude != 0) return run_reference(0, 0);  // rounding would make it an error
      fail("kernel ", kernel_.name(), where(), " took what the reference refuses: ", error.what());
    }
    std::vector<Values> values;
    for (const KernelOperand& o : call->operands) {
      values.push_back(values_of(o));
      for (TermSizes& t : terms) {
        if (t.view.data == o.view->data) values.back().terms = t.in_order_of(*o.view);
      }
    }
    return values;
  }

  static void add(Values& to, const Values& from) {
    for (std::size_t i = 0; i < to.real.size(); ++i) to.real[i] += from.real[i];
  }

  /// How far each entry moved where the operands did.
  static std::vector<double> distances(const Values& want, const std::vector<Values>& near) {
    std::vector<double> moved(want.real.size(), 0);
    for (const Values& n : near) {
      for (std::size_t i = 0; i < moved.size(); ++i) {
        const double by = std::abs(n.real[i] - want.real[i]);
        if (!(by <= moved[i])) moved[i] = by;
      }
    }
    return moved;
  }

  void compare_real(std::size_t k, const Values& got, const Values& want,
                    const std::vector<Values>& near) const {
    const std::vector<double> moved = distances(want, near);
    double squares = 0;
    for (const double by : moved) squares += std::isfinite(by) ? by * by : 0;
    const double usual = moved.empty() ? 0 : std::sqrt(squares / static_cast<double>(moved.size()));
    const DType dtype = fast_->operands[k].view->dtype;
    for (std::size_t i = 0; i < want.real.size(); ++i) {
      const double g = got.real[i], w = want.real[i];
      if (g == w || (std::isnan(g) && std::isnan(w))) continue;
      const double rounding = epsilon_of(dtype) / 2 * std::abs(w) + smallest_of(dtype);
      const double size = want.terms.empty() ? std::abs(w) : std::max(std::abs(w), want.terms[i]);
      const double allowed = rounding + amplitude_ * size + moved[i] + usual;
      if (std::abs(g - w) <= allowed) continue;
      if (std::isinf(g) && std::abs(w) + allowed >= largest_of(dtype) && g * w > 0) continue;
      if (std::isfinite(w) && !std::isfinite(moved[i])) continue;  // on the edge of a number
      report(k, static_cast<std::int64_t>(i), got.shape, number(g, dtype), number(w, dtype),
             fmt::format("{:.3g} apart where {:.3g} is allowed", std::abs(g - w), allowed));
    }
  }
  void compare_whole(std::size_t k, const Values& got, const Values& want,
                     const std::vector<Values>& near) const {
    for (std::size_t i = 0; i < want.whole.size(); ++i) {
      bool same = got.whole[i] == want.whole[i];
      if (kernel_.agreement() == Agreement::drawn) {
        for (const Values& n : near) same = same || got.whole[i] == n.whole[i];
      }
      if (same) continue;
      report(k, static_cast<std::int64_t>(i), got.shape, std::to_string(got.whole[i]),
             std::to_string(want.whole[i]), "they must be equal");
    }
  }

  static std::string number(double value, DType dtype) {
    return fmt::format("{:.{}g}", value, dtype == f64 ? 17 : dtype == f32 ? 9 : 6);
  }
  static std::string where() {
    const std::string scope = scope_path(thread_context().scope);
    return scope.empty() ? "" : " (scope " + scope + ")";
  }
  [[noreturn]] void report(std::size_t k, std::int64_t position, const Shape& shape,
                           const std::string& got, const std::string& want,
                           const std::string& distance) const {
    fail("kernel ", kernel_.name(), where(), ": ", fast_->operands[k].name,
         index_text(position, shape), " is ", got, " on ", devices_[k], ", but the reference has ",
         want, ": ", distance, "; found by the check of kernels");
  }

  const AnyKernel& kernel_;
  const RepeatCall& repeat_;
  const std::unique_ptr<KernelCall> fast_;  // the operands of the fast call
  std::vector<Device> devices_;             // where they lie
  const HostMemory before_;                 // and what they were
  double amplitude_ = 0;
};

}  // namespace

KernelMode resolved_kernel_mode() {
  if (kernel_mode == KernelMode::unset) {
    static const KernelMode by_environment = mode_of_environment();
    kernel_mode = by_environment;
  }
  return kernel_mode;
}

void note_term_sizes(const View& result, std::vector<double> sizes) {
  if (listening != nullptr) listening->push_back({result, std::move(sizes)});
}

void run_on_host(const RepeatCall& repeat) {
  const ModeScope plain(KernelMode::fast);
  const std::unique_ptr<KernelCall> call = repeat();
  HostMemory memory(call->operands);
  const HostMemory before = memory;
  memory.lend_to(call->operands);
  call->run();
  memory.write_back(before);
}

void run_checked(const AnyKernel& kernel, const RepeatCall& repeat,
                 const std::function<void()>& run_fast) {
  const ModeScope plain(KernelMode::fast);
  Comparison comparison(kernel, repeat);
  run_fast();
  comparison.compare();
}

}  // namespace detail

using detail::KernelMode;

ReferenceKernels::ReferenceKernels()
    : outer_(std::exchange(detail::kernel_mode, KernelMode::reference)) {}
ReferenceKernels::~ReferenceKernels() {
  detail::kernel_mode = outer_;
}
KernelCheck::KernelCheck() : outer_(std::exchange(detail::kernel_mode, KernelMode::checked)) {}
KernelCheck::~KernelCheck() {
  detail::kernel_mode = outer_;
}

}  // namespace quipu
