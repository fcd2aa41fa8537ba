#pragma once
// Counts the launches of our columns on the emulated device; in the emulated build only.
#include <string>

#include "predict.h"

namespace quipu::bench {

inline double units_of(Size size) {
  return static_cast<double>(size.batch) * static_cast<double>(size.heads);
}

/// The launches of one column of a table at any size. What was counted once is known.
class Counter {
 public:
  Counter(const PublishedTable& table, const Variant& variant);

  /// A call with gradients already there. Nothing runs: only how work is cut is told.
  const CallCounts& rehearse(Size size) { return known(size, false); }
  Sample rehearsed(Size size) { return sample(size, false); }
  Sample counted(Size size) { return sample(size, true); }

 private:
  Sample sample(Size size, bool for_real);
  const CallCounts& known(Size size, bool for_real);
  CallCounts run(Size size, bool for_real) const;

  const PublishedTable& table_;
  const Variant& variant_;
  std::string name_;
};

}  // namespace quipu::bench
