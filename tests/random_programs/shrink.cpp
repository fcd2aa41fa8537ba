// Makes a failing program shorter as long as it fails in the same way.
#include <algorithm>
#include <set>

#include "rewrite.h"

namespace quipu::programs {
namespace {

class Shrinker {
 public:
  Shrinker(Program program, const std::function<bool(const Program&)>& fails)
      : best_(std::move(program)), fails_(fails) {}

  Program run() {
    take(without_dead(best_));
    for (bool smaller = true; smaller && checks_ < 6000;) {
      smaller = false;
      for (const auto pass :
           {&Shrinker::drop_walks, &Shrinker::drop_hooks, &Shrinker::drop_statements,
            &Shrinker::drop_sums, &Shrinker::inline_bodies, &Shrinker::drop_inner,
            &Shrinker::use_earlier, &Shrinker::simplify, &Shrinker::plain_leaves,
            &Shrinker::shrink_shapes}) {
        smaller = (this->*pass)() || smaller;
      }
    }
    return best_;
  }

 private:
  bool take(const Program& p) {
    ++checks_;
    if (!fails_(p)) return false;
    best_ = p;
    values_known_ = false;
    return true;
  }
  bool change(const std::function<void(Program&)>& f) {
    Program p = best_;
    f(p);
    p = without_dead(std::move(p));
    return fit_upstreams(p) && take(p);
  }
  const Tensors& values() {
    if (!values_known_) values_ = run_along(best_);
    values_known_ = true;
    return values_;
  }
  const Tensor& at(Value v) { return values()[static_cast<std::size_t>(v)]; }
  bool alike(Value a, Value b) {
    return at(a).defined() && at(b).defined() && at(a).shape() == at(b).shape() &&
           at(a).dtype() == at(b).dtype();
  }

  bool drop_walks() {
    bool any = false;
    for (std::size_t k = best_.walks.size(); k-- > 0;) {
      any = (best_.walks.size() > 1 && change([&](Program& p) {
               p.walks.erase(p.walks.begin() + static_cast<std::ptrdiff_t>(k));
             })) ||
            any;
    }
    for (std::size_t k = 0; k < best_.walks.size(); ++k) {
      const auto now = [&]() -> const WalkFrom& { return best_.walks[k]; };
      if (now().retain) any = change([&](Program& p) { p.walks[k].retain = false; }) || any;
      if (now().double_grads_first)
        any = change([&](Program& p) { p.walks[k].double_grads_first = false; }) || any;
      if (now().zero_grad_first)
        any = change([&](Program& p) { p.walks[k].zero_grad_first = false; }) || any;
      if (!now().with_respect_to.empty())
        any = change([&](Program& p) { p.walks[k].with_respect_to.clear(); }) || any;
      if (now().with_respect_to.size() > 1)
        any = change([&](Program& p) { p.walks[k].with_respect_to.pop_back(); }) || any;
    }
    return any;
  }
  bool drop_hooks() {
    bool any = false;
    for (std::size_t k = best_.hooks.size(); k-- > 0;) {
      any = change([&](Program& p) {
              p.hooks.erase(p.hooks.begin() + static_cast<std::ptrdiff_t>(k));
            }) ||
            any;
    }
    return any;
  }
  /// Its outputs become inputs of the same shape, or leaves.
  bool drop_statements() {
    bool any = false;
    for (std::size_t k = best_.statements.size(); k-- > 0;) {
      if (k >= best_.statements.size()) continue;
      const Statement s = best_.statements[k];
      const auto erase = [&](Program& p) {
        p.statements.erase(p.statements.begin() + static_cast<std::ptrdiff_t>(k));
      };
      bool dropped = s.out.empty() && change(erase);
      for (const Value v : s.in) {
        if (dropped || s.out.empty() || !is_floating(at(v).dtype())) continue;
        dropped = change([&](Program& p) {
          erase(p);
          for (const Value o : s.out) rename(p, o, v);
        });
      }
      if (!dropped && !s.out.empty()) {
        Tensors outputs;
        for (const Value v : s.out) outputs.push_back(at(v));
        dropped = change([&](Program& p) {
          erase(p);
          for (std::size_t i = 0; i < s.out.size(); ++i) {
            if (!is_floating(outputs[i].dtype())) continue;
            p.leaves.push_back({.value = s.out[i],
                                .seed = static_cast<std::uint64_t>(s.out[i]),
                                .shape = outputs[i].shape(),
                                .dtype = outputs[i].dtype(),
                                .requires_grad = outputs[i].requires_grad()});
          }
        });
      }
      any = any || dropped;
    }
    return any;
  }
  /// Losses that are sums of sums become sums.
  bool drop_sums() {
    const auto is_sum = [](const Statement& s) { return std::string(s.op->name) == "sum"; };
    if (std::none_of(best_.statements.begin(), best_.statements.end(), is_sum)) return false;
    return change([&](Program& p) {
      const Statements before = p.statements;
      std::erase_if(p.statements, is_sum);
      for (const Statement& s : before) {
        if (is_sum(s)) rename(p, s.out[0], s.in[0]);
      }
    });
  }
  /// Bodies lose statements as programs do.
  bool drop_inner() {
    std::vector<std::pair<Statement, std::size_t>> inner;  // whose body, and where in it
    for_each_statement(best_.statements, [&](Statement& s) {
      for (std::size_t k = s.body.size(); s.body.size() > 1 && k-- > 0;) inner.emplace_back(s, k);
    });
    bool any = false;
    for (const auto& place : inner) {
      const Statement &outer = place.first, gone = outer.body[place.second];
      for (const Value v : gone.in) {
        const bool done =
            gone.out.size() == 1 && change([&](Program& p) {
              for_each_statement(p.statements, [&](Statement& s) {
                if (s.out == outer.out) {
                  std::erase_if(s.body, [&](const Statement& b) { return b.out == gone.out; });
                }
              });
              rename(p, gone.out[0], v);
            });
        any = any || done;
        if (done) break;
      }
    }
    return any;
  }
  bool inline_bodies() {
    bool any = false;
    for (std::size_t k = 0; k < best_.statements.size(); ++k) {
      if (best_.statements[k].body.empty()) continue;
      any = change([&](Program& p) {
              const Statement s = p.statements[k];
              p.statements.erase(p.statements.begin() + static_cast<std::ptrdiff_t>(k));
              p.statements.insert(p.statements.begin() + static_cast<std::ptrdiff_t>(k),
                                  s.body.begin(), s.body.end());
              for (std::size_t i = 0; i < s.in.size(); ++i) rename(p, s.parameters[i], s.in[i]);
              rename(p, s.out[0], s.body.back().out[0]);
            }) ||
            any;
    }
    return any;
  }
  bool use_earlier() {
    bool any = false;
    for (std::size_t k = 0; k < best_.statements.size(); ++k) {
      for (std::size_t i = 0; k < best_.statements.size() && i < best_.statements[k].in.size();
           ++i) {
        const Value now = best_.statements[k].in[i];
        for (Value v = 0; v < now; ++v) {
          if (alike(v, now) && change([&](Program& p) { p.statements[k].in[i] = v; })) {
            any = true;
            break;
          }
        }
        if (k >= best_.statements.size()) break;
      }
    }
    return any;
  }
  /// Operators become sums and products with a number; scopes and temporaries go.
  bool simplify() {
    const auto with_text = [](const char* text) {
      return &*std::find_if(operators().begin(), operators().end(),
                            [&](const Operator& o) { return std::string(o.text) == text; });
    };
    static const Operator *const sum = with_text("in[0] + in[1]"), *const twice = with_text(
                                                                       "in[0] * (n[0] / 4.0)");
    bool any = best_.drop_values && change([](Program& p) { p.drop_values = false; });
    for (std::size_t k = 0; k < best_.statements.size(); ++k) {
      const Statement s = best_.statements[k];
      if (s.scopes > 0) any = change([&](Program& p) { p.statements[k].scopes = 0; }) || any;
      if (s.op == sum || s.op == twice || s.out.size() != 1) continue;
      std::vector<Value> same;
      for (const Value v : s.in) {
        if (alike(v, s.out[0])) same.push_back(v);
      }
      bool done = same.empty() || change([&](Program& p) {
                    p.statements[k] = {.op = twice, .in = {same[0]}, .out = s.out, .n = {8}};
                  });
      if (!done && same.size() > 1) {
        done = change([&](Program& p) {
          p.statements[k] = {.op = sum, .in = {same[0], same[1]}, .out = s.out};
        });
      }
      any = any || (done && !same.empty());
    }
    return any;
  }
  bool plain_leaves() {
    bool any = false;
    for (std::size_t k = 0; k < best_.leaves.size(); ++k) {
      const Leaf leaf = best_.leaves[k];
      if (leaf.layout != Layout::contiguous)
        any = change([&](Program& p) { p.leaves[k].layout = Layout::contiguous; }) || any;
      if (k < best_.leaves.size() && leaf.requires_grad)
        any = change([&](Program& p) {
                p.leaves[k].requires_grad = false;
                p.leaves[k].grad_dtype.reset();
              }) ||
              any;
    }
    for (std::size_t k = 0; k < best_.walks.size(); ++k) {
      const auto& upstream = best_.walks[k].upstream;
      if (!upstream) continue;
      if (change([&](Program& p) { p.walks[k].upstream.reset(); })) {
        any = true;
      } else if (upstream->layout != Layout::contiguous) {
        any = change([&](Program& p) { p.walks[k].upstream->layout = Layout::contiguous; }) || any;
      }
    }
    return any;
  }
  /// All shapes lose a dimension, or one size becomes a smaller one everywhere.
  bool shrink_shapes() {
    const auto each_shape = [](Program& p, const std::function<void(Shape&)>& f) {
      for (Leaf& leaf : p.leaves) f(leaf.shape);
      for_each_statement(p.statements, [&](Statement& s) { f(s.shape); });
      for (WalkFrom& w : p.walks) {
        if (w.upstream) f(w.upstream->shape);
      }
    };
    bool any = change([&](Program& p) {
                 each_shape(p, [](Shape& s) { s = s.empty() ? s : Shape{s[0]}; });
               }) &&
               best_.leaves.end() != std::find_if(best_.leaves.begin(), best_.leaves.end(),
                                                  [](const Leaf& l) { return l.shape.size() > 1; });
    std::set<std::int64_t> sizes;
    each_shape(best_, [&](Shape& s) { sizes.insert(s.begin(), s.end()); });
    for (auto from = sizes.rbegin(); from != sizes.rend() && *from > 1; ++from) {
      for (const std::int64_t to : {1, 2}) {
        if (to >= *from) continue;
        const bool done = change([&](Program& p) {
          each_shape(p, [&](Shape& s) {
            for (int d = 0; d < s.size(); ++d) s[d] = s[d] == *from ? to : s[d];
          });
        });
        any = any || done;
        if (done) break;
      }
    }
    return any;
  }

  Program best_;
  const std::function<bool(const Program&)>& fails_;
  Tensors values_;
  bool values_known_ = false;
  int checks_ = 0;
};

}  // namespace

Program shrink(Program program, const std::function<bool(const Program&)>& fails) {
  return Shrinker(std::move(program), fails).run();
}

}  // namespace quipu::programs
