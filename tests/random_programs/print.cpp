// A program as C++.
#include <cctype>
#include <map>

#include "custom.h"
#include "program.h"

namespace quipu::programs {
using namespace detail;
namespace {

using detail::concat;
using Names = std::map<Value, std::string>;

std::string list(const Dims& dims) {
  std::string text;
  for (const std::int64_t d : dims) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return "{" + text + "}";
}

template <class List, class F>
std::string joined(const List& items, F&& text_of) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + text_of(item);
  return "{" + text + "}";
}

std::string make_text(const Leaf& leaf) {
  const int dims = leaf.shape.size();
  Shape whole = leaf.shape, reversed = leaf.shape;
  for (int d = 0; d < dims; ++d) reversed[d] = dims - 1 - d;
  if (leaf.layout == Layout::transposed) {
    for (int d = 0; d < dims; ++d) whole[d] = leaf.shape[dims - 1 - d];
  }
  if (leaf.layout == Layout::sliced && dims > 0) whole[dims - 1] *= 2;
  if (leaf.layout == Layout::expanded && dims > 0) whole[0] = 1;
  const std::string type = leaf.dtype == boolean ? "boolean" : name_of(leaf.dtype);
  const std::string rest = concat("Shape", list(whole), ", ", type, ", device, g)");
  std::string text;
  switch (leaf.content) {
    case Content::normal: text = concat("randn(", rest, ".clamp_(-2, 2)"); break;
    case Content::positive: text = concat("rand(", rest, ".add_(0.5)"); break;
    case Content::index: text = concat("randint(0, ", leaf.bound, ", ", rest); break;
    case Content::mask:
      text = concat("(rand(Shape", list(whole), ", f32, device, g) < 0.5)");
      break;
  }
  if (leaf.layout == Layout::transposed) text += concat(".permute(", list(reversed), ")");
  if (leaf.layout == Layout::sliced && dims > 0) text += ".slice(-1, 1, {}, 2)";
  if (leaf.layout == Layout::expanded) text += concat(".expand(", list(leaf.shape), ")");
  if (leaf.requires_grad) text += ".set_requires_grad()";
  if (leaf.grad_dtype) text += concat(".set_grad_dtype(", name_of(*leaf.grad_dtype), ")");
  return text;
}

/// The operator's text with `in`, `n` and `shape` filled in.
std::string call_text(const Statement& s, const Names& names) {
  const std::string text = s.op->text;
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (!std::isalpha(static_cast<unsigned char>(text[i])) && text[i] != '_') {
      result += text[i++];
      continue;
    }
    std::size_t end = i;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
      ++end;
    const std::string word = text.substr(i, end - i);
    i = end;
    std::size_t at = 0;
    const bool indexed = i < text.size() && text[i] == '[';
    if (indexed && (word == "in" || word == "n")) {
      at = std::stoul(text.substr(i + 1));
      i = text.find(']', i) + 1;
      result += word == "in" ? names.at(s.in[at])
                             : concat(s.n[at] < 0 ? "(" : "", s.n[at], s.n[at] < 0 ? ")" : "");
    } else if (word == "in") {
      result += joined(s.in, [&](Value v) { return names.at(v); });
    } else {
      result += word == "shape" ? "Shape" + list(s.shape) : word;
    }
  }
  return result;
}

void name_outputs(const Statement& s, Names& names) {
  if (s.out.empty()) return;
  const std::string base = concat("t", s.out[0]);
  for (std::size_t k = 0; k < s.out.size(); ++k) {
    switch (s.op->outputs) {
      case Operator::Outputs::one: names[s.out[k]] = base; break;
      case Operator::Outputs::list: names[s.out[k]] = concat(base, "[", k, "]"); break;
      case Operator::Outputs::top_k:
        names[s.out[k]] = base + (k == 0 ? ".values" : ".indices");
        break;
      case Operator::Outputs::extremes:
        names[s.out[k]] = base + (k == 0 ? ".values" : ".index");
        break;
    }
  }
}

std::string statement_text(const Statement& s, Names& names, const std::string& indent,
                           const char* constness = "const ") {
  std::string open, close;
  name_outputs(s, names);
  for (int k = 0; k < s.scopes; ++k) {
    open += "const MemoryScope scope" + std::to_string(k) + "(\"scope\"); ";
  }
  if (s.op->is(Operator::in_place)) {
    return concat(indent, "{ ", open, "const NoGrad pause; ", call_text(s, names), "; }\n");
  }
  std::string call;
  if (s.body.empty()) {
    call = call_text(s, names);
  } else {
    call = "recompute([=](const std::vector<Tensor>& in) {\n";
    for (std::size_t k = 0; k < s.in.size(); ++k) {
      names[s.parameters[k]] = concat("p", s.parameters[k]);
      call += concat(indent, "  const Tensor p", s.parameters[k], " = in[", k, "];\n");
    }
    for (const Statement& inner : s.body) call += statement_text(inner, names, indent + "  ");
    call += concat(indent, "  return ", names.at(s.body.back().out[0]), ";\n", indent, "}, ",
                   joined(s.in, [&](Value v) { return names.at(v); }), ")");
  }
  if (s.scopes > 0) call = concat("[&] { ", open, "return ", call, "; }()");
  const char* type = s.op->outputs == Operator::Outputs::one ? "Tensor" : "auto";
  return concat(indent, constness, type, " t", s.out[0], " = ", call, ";\n");
}

const char* body_of(HookOn::Kind kind) {
  switch (kind) {
    case HookOn::Kind::keep: return "kept.push_back(gradient); return Tensor();";
    case HookOn::Kind::nothing: return "return Tensor();";
    case HookOn::Kind::same: return "return gradient;";
    case HookOn::Kind::scale: return "return gradient * 1.5;";
    case HookOn::Kind::in_place: return "gradient.mul_(2); return Tensor();";
    case HookOn::Kind::expanded:
      return "return full({}, 0.5, gradient.dtype(), device).expand(gradient.shape());";
  }
  return "";
}

std::string hooks_text(const Program& program, const std::vector<Value>& values,
                       const Names& names) {
  std::string text;
  for (const HookOn& hook : program.hooks) {
    for (const Value v : values) {
      if (hook.value != v) continue;
      text += concat("  ", names.at(v), ".add_hook([&](const Tensor& gradient) { ",
                     body_of(hook.kind), " });\n");
    }
  }
  return text;
}

/// After a statement: tensors that it used last, or that nobody uses.
std::string let_go_text(const Program& program, const Statement& s, const Names& names) {
  const std::vector<std::size_t> last = last_uses(program);
  const auto index = static_cast<std::size_t>(&s - program.statements.data());
  std::string text;
  for (std::size_t k = 0; k <= index; ++k) {
    const Statement& made = program.statements[k];
    if (made.op->outputs != Operator::Outputs::one || made.out.empty()) continue;
    const std::size_t at = last[static_cast<std::size_t>(made.out[0])];
    if (at == index || (k == index && at < index))
      text += concat("  ", names.at(made.out[0]), " = Tensor();\n");
  }
  return text;
}

std::string walk_text(const Program& program, const WalkFrom& w, const Names& names) {
  std::string text, options = concat(", {", w.upstream ? ".upstream = upstream, " : "",
                                     ".retain = ", w.retain ? "true" : "false", "}");
  for (const Leaf& leaf : program.leaves) {
    if (w.zero_grad_first && leaf.requires_grad)
      text += concat("    ", names.at(leaf.value), ".zero_grad();\n");
  }
  for (const Leaf& leaf : program.leaves) {
    if (!w.double_grads_first || !leaf.requires_grad) continue;
    text += concat("    if (", names.at(leaf.value), ".grad().defined()) { const NoGrad pause; ",
                   names.at(leaf.value), ".grad().mul_(2); }\n");
  }
  if (w.upstream) {
    text += concat("    g.seed(", w.upstream->seed,
                   ");\n    const Tensor upstream = ", make_text(*w.upstream), ";\n");
  }
  if (!w.upstream && !w.retain) options = "";
  if (w.with_respect_to.empty()) {
    text += concat("    tape.backward(", names.at(w.loss), options, ");\n");
  } else {
    const std::string wanted = joined(w.with_respect_to, [&](Value v) { return names.at(v); });
    text += concat("    for (const Tensor& d : tape.gradients(", names.at(w.loss), ", ", wanted,
                   options, ")) std::cout << d << \"\\n\";\n");
  }
  return concat("  {\n", text, "  }\n");
}

}  // namespace

std::string to_cpp(const Program& program) {
  Names names;
  std::string text;
  for (const Leaf& leaf : program.leaves) {
    names[leaf.value] = concat("x", leaf.value);
    text += concat("  g.seed(", leaf.seed, ");\n  const Tensor x", leaf.value, " = ",
                   make_text(leaf), ";\n", hooks_text(program, {leaf.value}, names));
  }
  text += "  Tape tape;\n";
  for (const Statement& s : program.statements) {
    text += statement_text(s, names, "  ", program.drop_values ? "" : "const ");
    text += hooks_text(program, s.out, names);
    if (program.drop_values) text += let_go_text(program, s, names);
  }
  for (const WalkFrom& w : program.walks) text += walk_text(program, w, names);
  for (const Leaf& leaf : program.leaves) {
    if (!leaf.requires_grad) continue;
    text += concat("  if (x", leaf.value, ".grad().defined()) std::cout << \"x", leaf.value,
                   " \" << x", leaf.value, ".grad() << \"\\n\";\n");
  }
  std::string before, seeds = concat("  manual_seed(", program.seed, ");\n");
  if (text.find("apply(") != std::string::npos) before += concat(custom_operators, "\n");
  if (text.find("shared_generator") != std::string::npos) {
    before += "Generator& shared_generator() { static Generator shared; return shared; }\n";
    seeds += concat("  shared_generator().seed(", program.seed + 1, ");\n");
  }
  return concat(
      "#include <quipu/quipu.h>\n\n#include <iostream>\n\nusing namespace quipu;\n", before,
      "\nint main() {\n  const Device device;\n  Generator g;\n  std::vector<Tensor> kept;\n",
      seeds, text, "}\n");
}

}  // namespace quipu::programs
