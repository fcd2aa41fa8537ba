#pragma once
// The tape: records operators on its thread while it lives, and walks them in reverse.
//
// The rules it keeps:
// - No tape, nothing recorded and nothing saved. Other threads record nothing unless they open a
// tape of their own.
// - Tapes nest; the inner one records. A tensor recorded by another tape, gone or outer, is an
// error until detach().
// - A walk frees every knot as soon as it is undone; a second one needs `retain`.
// - Gradients are added into what the leaves already hold. The upstream gradient is borrowed, never
// added into.
// - An exception in the middle of backward spends the tape and marks the gradients it touched as
// partial.
// - Second derivatives are not supported: a tape records nothing while one is walked.
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "quipu/autograd/knot.h"
#include "quipu/core/report/memory_report.h"
#include "quipu/core/tensor.h"

namespace quipu {

namespace detail {
class TapeOwner;
}

/// For one walk of a tape.
struct BackwardOptions {
  Tensor upstream = {};  // gradient of the loss; may be left out when it has one element
  bool retain = false;   // keep the knots for another walk
};

/// Records from its construction to its end: compute the loss while it lives, then call backward.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Adds the gradients of `loss` into every leaf that it depends on.
  void backward(const Tensor& loss, const BackwardOptions& options = {});
  /// Gradients of `loss` with respect to some tensors, leaves or not; nothing is stored. Zeros
  /// where it does not depend.
  std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& with_respect_to,
                                const BackwardOptions& options = {});

  std::size_t size() const;         // knots recorded so far
  std::size_t saved_bytes() const;  // what the knots still hold, as they declared it
  /// What its knots keep, the largest first.
  std::vector<detail::KnotMemory> knots() const;
  /// One row a knot: operator, scope, output shape, bytes saved, workspace, time. The time is the
  /// host's, on a GPU that of queueing; under DeviceTimes it is the device's.
  std::string text() const;

 private:
  std::unique_ptr<detail::TapeOwner> owner_;
};
/// Prints the text.
std::ostream& operator<<(std::ostream& out, const Tape& tape);

/// Gradient checkpointing (Chen et al. 2016, arXiv:1604.06174): runs f(inputs) but saves the inputs
/// only; backward runs f again. Random numbers drawn inside
/// come out the same, whichever generator they are from. f may use tensors that it captures, and
/// gradients reach them, too; but they must be there, and unchanged, when backward runs: a change
/// in place, or another tensor in its place, is an error then.
Tensor recompute(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                 const std::vector<Tensor>& inputs);

/// While it lives, the first NaN or infinity in forward or backward on this thread is an error that
/// names the operator, the scope and the tensor.
class AnomalyMode {
 public:
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

 private:
  bool outer_;
};

}  // namespace quipu
