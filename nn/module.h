#pragma once
// A module: parameters, buffers and smaller modules, each with a name.
//
//   struct Block : nn::Module {
//     nn::RMSNorm norm;
//     nn::Linear up;
//     std::vector<Layer> layers;
//     void members(nn::Members& m) override { m("norm", norm)("up", up)("layers", layers); }
//     Tensor operator()(const Tensor& x);
//   };
//
// Names are the path: `layers.0.attention.out.weight`. A module is a value: it may be moved, and a
// copy shares its tensors, as copies of a tensor do (nn::clone makes them its own).
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/io/safetensors.h"
#include "quipu/core/tensor.h"
#include "quipu/nn/named_state.h"

namespace quipu::nn {

class Module;

/// What a module tells its members to, in the order in which they are listed ever after. Tensors
/// that are not defined, and pointers and optionals that are empty, are left out.
class Members {
 public:
  /// A parameter.
  Members& operator()(std::string_view name, Tensor& parameter);
  /// A tensor that belongs to the module and its checkpoints, but is not learned.
  Members& buffer(std::string_view name, Tensor& buffer);
  /// A smaller module: its own members stand behind its name and a dot.
  Members& operator()(std::string_view name, Module& module);
  /// Parts called name.0, name.1, ...
  template <class T>
  Members& operator()(std::string_view name, std::vector<T>& parts) {
    enter(name, nullptr);
    for (std::size_t i = 0; i < parts.size(); ++i) (*this)(std::to_string(i), parts[i]);
    return leave();
  }
  template <class T>
  Members& operator()(std::string_view name, std::unique_ptr<T>& part) {
    return part ? (*this)(name, *part) : *this;
  }
  template <class T>
  Members& operator()(std::string_view name, std::shared_ptr<T>& part) {
    return part ? (*this)(name, *part) : *this;
  }
  template <class T>
  Members& operator()(std::string_view name, std::optional<T>& part) {
    return part ? (*this)(name, *part) : *this;
  }

 private:
  friend class Module;
  enum class Kind : std::uint8_t { module, parameter, buffer };
  /// A part of a tree in preorder. A list is a module that is not there.
  struct Entry {
    Kind kind;
    int depth;
    std::string name;  // its own
    std::string path;  // from the root
    Module* module = nullptr;
    Tensor* tensor = nullptr;
  };
  explicit Members(Module& root);
  void add(Kind kind, std::string_view name, Module* module, Tensor* tensor);
  void enter(std::string_view name, Module* module);
  Members& leave();

  std::vector<Entry> entries_;
  std::vector<std::size_t> open_;  // where the modules around the next entry stand
};

/// The base of everything that has parameters. A module of one's own derives from it, names its
/// parts in members(), and has an operator() with arguments of its choice.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;

  /// Names its parameters, buffers and modules. Called whenever they are needed: nothing is kept.
  virtual void members(Members& m) = 0;

  // Those of the parts included, under their paths. A tensor that stands under several names is
  // listed under the first.
  NamedTensors parameters() const;
  NamedTensors buffers() const;
  NamedTensors state() const;  // both, in the order of the members

  /// Copies values in; floating ones are cast to the type that is there. Names and shapes must be
  /// those of state(), in a partial load the shapes of the names that are in both: otherwise
  /// nothing changes, and the error lists all that differ. The report tells what a partial load
  /// left out.
  LoadReport load_state(const NamedTensors& state, Loading loading = Loading::strict);

  /// Makes new tensors on the device or of the type: gradients are gone and optimizers must be made
  /// afterwards; requires_grad stays. Buffers stay f32 where parameters become bf16 or f16, because
  /// angles and the like need their digits.
  void to(Device device);
  void to(DType dtype);

  /// Tells all parts whether they are being trained; they are until told otherwise.
  void train(bool on = true);
  // Whether dropout drops or lets everything pass. Gradients flow in both cases (see NoGrad).
  void eval() { train(false); }
  bool training() const { return training_; }
  /// Freezes all parameters, or lets them learn again.
  void set_requires_grad(bool on);

  /// Numbers in all parameters, shared ones counted once, frozen ones too.
  std::int64_t parameter_count() const;
  /// Parameters and buffers with shapes, types and bytes, one row each. Equal parts of a list are
  /// shown once.
  std::string tree() const;

 protected:
  Module(const Module&) = default;
  Module(Module&&) = default;
  Module& operator=(const Module&) = default;
  Module& operator=(Module&&) = default;

  /// For the beginning of a forward pass: what happens while it lives stands in the ledger under
  /// the module's name (`layers.0/attention`). Names are known after parameters() or another
  /// function of the whole was called.
  MemoryScope scope() const;

 private:
  friend class Members;
  template <class M>
  friend M clone(const M& module);
  using Entry = Members::Entry;
  std::vector<Entry> walk() const;
  NamedTensors tensors(bool parameters, bool buffers) const;
  /// Replaces every tensor by f(tensor, is a parameter).
  void replace(const std::function<Tensor(const Tensor&, bool)>& f);
  void own_tensors();

  std::string name_;  // relative to the module around it
  bool training_ = true;
};

/// Writes tree().
std::ostream& operator<<(std::ostream& out, const Module& module);

/// A copy with tensors of its own; gradients are not copied.
template <class M>
M clone(const M& module) {
  M copy = module;
  static_cast<Module&>(copy).own_tensors();
  return copy;
}

}  // namespace quipu::nn
