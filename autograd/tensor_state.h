#pragma once
// What autograd knows of a tensor, and what a tape holds. Internal to autograd/.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quipu/autograd/knot.h"
#include "quipu/core/report/memory_report.h"
#include "quipu/core/tensor.h"

namespace quipu::detail {

struct TapeState;

struct AutogradMeta : TensorExtra {
  explicit AutogradMeta(const Tensor& x) : shape(x.shape()), dtype(x.dtype()), device(x.device()) {}

  // Of every tensor that has one: what its gradient looks like, and who wants to see it.
  Shape shape;
  DType dtype;
  Device device;
  std::vector<Hook> hooks;

  // Of a leaf.
  bool leaf = false;
  Tensor grad;
  std::optional<DType> grad_dtype;
  bool partial = false;

  // Of an operator's output.
  std::shared_ptr<TapeState> tape;
  std::size_t knot = 0;
  std::uint32_t output = 0;

  // Of a gradient that Tape::gradients returned: it has no history, and must not become a constant
  // in silence.
  bool is_gradient = false;

  bool recorded() const { return tape != nullptr; }
};

/// The tensor's own, or null.
AutogradMeta* meta_of(const Tensor& x);
/// The tensor's own, made if it has none.
AutogradMeta& ensure_meta(const Tensor& x);
/// Makes a leaf that wants a gradient without counting its memory as a parameter.
void make_leaf(const Tensor& x);

struct TapeState {
  bool alive = true;
  /// For the first run of a recomputed function: outputs are marked as recorded, so that what will
  /// be an error when it is run again is one now, but no knot is kept and nothing saved.
  bool keeps_nothing = false;
  std::string spent_by;  // not empty: an error ended a walk
  struct Entry {
    std::unique_ptr<Knot> knot;  // null once undone
    const char* name;
    std::size_t first_slot;  // outputs of all knots, counted through
  };
  std::vector<Entry> entries;
  std::size_t slots = 0;
};

/// Ends a tape with its own life: knots and the tensors they made hold each other until then.
class TapeOwner {
 public:
  TapeOwner() : state(std::make_shared<TapeState>()) {}
  ~TapeOwner() {
    state->alive = false;
    // From the last knot back, so that memory is freed in the order of a walk.
    while (!state->entries.empty()) state->entries.pop_back();
  }
  TapeOwner(const TapeOwner&) = delete;
  TapeOwner& operator=(const TapeOwner&) = delete;
  const std::shared_ptr<TapeState> state;
};

/// The tape that records on this thread, or null.
std::shared_ptr<TapeState> current_tape();
bool tape_is_open();  // cheaper, asked by every operator
void push_tape(std::shared_ptr<TapeState> tape);
void remove_tape(const std::shared_ptr<TapeState>& tape);

/// What the largest tape keeps of those that are walked while somebody watches.
struct TapeWatch {
  std::size_t saved = 0;
  std::vector<KnotMemory> knots;  // the largest first
};
/// From now on walks on this thread look at it; null: nobody watches. Returns the one before.
TapeWatch* watch_tapes(TapeWatch* watch);

/// Records on `tape` while it lives, even inside NoGrad; ends the tape's recording with it.
class RecordOn {
 public:
  explicit RecordOn(std::shared_ptr<TapeState> tape);
  ~RecordOn();
  RecordOn(const RecordOn&) = delete;
  RecordOn& operator=(const RecordOn&) = delete;

 private:
  std::shared_ptr<TapeState> tape_;
  bool outer_pause_;
};

/// "mul" -> "mul backward", as a literal that lives forever.
const char* backward_name(const char* op);

}  // namespace quipu::detail
