#pragma once
// A step of training that a GPU repeats by one launch (a CUDA graph): for models so small that the
// host, which queues some hundred kernels a step, is what training waits for.
//
//   const Tensor x = empty({batch, features}, f32, device), y = ...;  // every step reads these
//   Tensor loss;
//   StepGraph graph([&] {
//     optimizer.zero_grad();
//     Tape tape;
//     loss = mse_loss(network(x), y);
//     tape.backward(loss);
//     optimizer.step();
//   });                                     // has made one step, and recorded another
//   for (std::int64_t i = 1; i < steps; ++i) {
//     x.copy_from(batch(i));                // new values in the same memory
//     optimizer.set_lr(schedule(i));
//     graph.replay();                       // the next step
//   }
#include <functional>
#include <memory>

#include "quipu/core/memory/memory.h"

namespace quipu {

namespace detail {
class StepRecorder;
}

/// A function whose work on one CUDA device is recorded once and then repeated by one launch, with
/// the bits that calling it again would give. On other devices replay() calls the function, so that
/// a program has one code path.
///
/// - The constructor calls the function twice: once as usual, which is a step, and makes what is
///   made at a first step; and once to record it, when nothing is computed. So what the function
///   does beside operators, such as counting or loading data, happens twice here and never again.
/// - Shapes and the order of operators are those of the recording. Values may change: all that lies
///   in tensors, the learning rates of optimizers, and random numbers, which go on from where their
///   generators are at each replay.
/// - Values are not there yet while the function is recorded: reading one, or copying from or to
///   the host, is an error that says so. The constructor throws what the function throws, and then
///   nothing has changed but the first step.
/// - Tensors that the recorded call leaves behind, such as a loss or gradients, have the values of
///   the last replay. Their memory stays theirs after the graph is gone.
/// - The memory of the step is the graph's while it lives: its temporaries, which the ledger enters
///   as one holder called StepGraph, and every tensor that it uses, even if the program lets it go.
/// - Under KernelCheck and ReferenceKernels nothing is recorded: replay() calls the function.
/// - Optimizers and generators that the function uses must stay where they are while it lives. It
///   may be replayed by any thread, one at a time; a thread synchronises the device before another
///   one goes on.
class StepGraph {
 public:
  explicit StepGraph(std::function<void()> step);
  ~StepGraph();
  StepGraph(StepGraph&&) noexcept;
  StepGraph& operator=(StepGraph&&) noexcept;

  /// The next step: queued, not waited for. Throws if a learning rate has changed that the recorded
  /// kernels do not read, which is that of an optimizer of the program's own.
  void replay();
  /// Whether there is a recording; if not, replay() calls the function.
  bool recorded() const;
  /// What the temporaries of the step held when it was most, by operator and scope; empty where
  /// nothing is recorded.
  MemoryReport memory() const;

 private:
  std::function<void()> step_;
  std::unique_ptr<detail::StepRecorder> recorder_;
};

}  // namespace quipu
