// flao, linear attention with an output gate: backward. As forward, a batch entry and head is one
// piece of work. Blocks of queries give d_g and d_q and are summed into d_kv; then blocks of keys,
// multiplied by it, give d_k and d_v. What lies between the products, q~ kv and its gradient,
// exists for one block only, and gradients of plain rows are added to where they belong part by
// part. Inputs are read once, and once more where softmax goes over the sequence: that needs a mean
// over all tokens before the first gradient can go back; few heads are cut further (FlaoPieces).
// Bound by the multiply-add units: with kv and q kv kept, at 256 tokens of 128 features, 0.71 of
// their peak in f32 and 0.68 in bf16, whose products here have an operand with more digits.
#include "gradients.h"
#include "quipu/core/threads/parallel.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// Four steps, each for all units: kv, d_q and d_g, d_kv, d_k and d_v. Gates are
/// multiplied once more for each part of d_kv.
template <class T>
void backward_in_pieces(const FlaoPieces& pieces, const View& d_o, const FlaoSaved& saved,
                        const View& d_kv, const FlaoGrads& grads,
                        const FlaoTransforms& transforms) {
  const FlaoUnits& units = pieces.units;
  const FlaoSizes& s = saved.sizes;
  const auto part = [&](const View& x, std::int64_t unit) {
    return x.defined ? x.as<T>() + units.place(unit) * s.width * s.e : nullptr;
  };
  const auto run = [&](std::int64_t count, auto f) {
    parallel_for(units.count() * count, 1, [&](std::int64_t begin, std::int64_t end) {
      FlaoScratch<T> scratch;
      FlaoRows<T> q(scratch, saved.q, transforms.q, s.d), k(scratch, saved.k, transforms.k, s.d);
      FlaoRows<T> v(scratch, saved.v, transforms.v, s.e), g(scratch, saved.g, transforms.g, s.e);
      QueryGradients<T> queries(scratch, d_o, saved.qkv, {q, grads.q}, {g, grads.g});
      KeyGradients<T> keys(scratch, {k, grads.k}, {v, grads.v}, s.m);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t unit = i / count, b = units.entry(unit), h = units.head(unit);
        for (FlaoRows<T>* rows : {&q, &k, &v, &g}) rows->begin(b, h);
        f(unit, i % count, [&](auto step) { step(scratch, k, v, queries, keys, b, h); });
      }
    });
  };
  const auto rows_from = [&](std::int64_t index) {
    return Range{index * pieces.rows, std::min((index + 1) * pieces.rows, s.width)};
  };
  const auto tokens_from = [&](std::int64_t index, std::int64_t n) {
    return Range{index * pieces.tokens, std::min((index + 1) * pieces.tokens, n)};
  };
  if (saved.fill_kv) {
    run(pieces.parts(), [&](std::int64_t unit, std::int64_t index, auto with) {
      const Range rows = rows_from(index);
      with([&](auto& scratch, auto& k, auto& v, auto&, auto&, std::int64_t, std::int64_t) {
        multiply_keys(scratch, k, v, part(saved.kv, unit), {}, rows.begin, rows.end - rows.begin);
      });
    });
  }
  run(pieces.blocks(s.n), [&](std::int64_t unit, std::int64_t index, auto with) {
    with([&](auto&, auto&, auto&, auto& queries, auto&, std::int64_t b, std::int64_t h) {
      queries.run_tokens(b, h, part(saved.kv, unit), tokens_from(index, s.n));
    });
  });
  if (!d_kv.defined) return;
  run(pieces.parts(), [&](std::int64_t unit, std::int64_t index, auto with) {
    with([&](auto&, auto&, auto&, auto& queries, auto&, std::int64_t b, std::int64_t h) {
      queries.run_rows(b, h, part(d_kv, unit), rows_from(index));
    });
  });
  run(pieces.blocks(s.m), [&](std::int64_t unit, std::int64_t index, auto with) {
    with([&](auto&, auto&, auto&, auto&, auto& keys, std::int64_t b, std::int64_t h) {
      keys.run_tokens(b, h, part(d_kv, unit), tokens_from(index, s.m));
    });
  });
}

template <class T>
void backward_as(const View& d_o, const FlaoSaved& saved, const View& d_kv, const FlaoGrads& grads,
                 const FlaoTransforms& transforms) {
  const std::int64_t d = saved.sizes.d, width = saved.sizes.width, e = saved.sizes.e;
  const auto part = [&](const View& v, std::int64_t place) {
    return v.defined ? v.as<T>() + place * width * e : nullptr;
  };
  const FlaoUnits units{d_o.size(0), d_o.size(1),
                        4 * saved.sizes.n * std::max<std::int64_t>(width, 1) * e};
  const FlaoPieces pieces(units, transforms, width);
  if (pieces.wanted()) {
    return backward_in_pieces<T>(pieces, d_o, saved, d_kv, grads, transforms);
  }
  parallel_for(units.count(), units.grain(), [&](std::int64_t begin, std::int64_t end) {
    FlaoScratch<T> scratch;
    FlaoRows<T> q(scratch, saved.q, transforms.q, d), k(scratch, saved.k, transforms.k, d);
    FlaoRows<T> v(scratch, saved.v, transforms.v, e), g(scratch, saved.g, transforms.g, e);
    QueryGradients<T> queries(scratch, d_o, saved.qkv, {q, grads.q}, {g, grads.g});
    const std::int64_t m = grads.k.wanted() || grads.v.wanted() ? saved.sizes.m : 0;
    KeyGradients<T> keys(scratch, {k, grads.k}, {v, grads.v}, m);
    const auto first_of = [&](std::int64_t unit) -> Next<T> {
      if (unit == units.count()) return {};
      const std::int64_t b = units.entry(unit), h = units.head(unit);
      return saved.fill_kv
                 ? Next<T>{k.ahead(b, h, 0, saved.sizes.m), v.ahead(b, h, 0, saved.sizes.m)}
                 : queries.ahead(b, h, 0, some_rows);
    };
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t b = units.entry(unit), h = units.head(unit), place = units.place(unit);
      for (FlaoRows<T>* rows : {&q, &k, &v, &g}) rows->begin(b, h);
      if (saved.fill_kv) {
        multiply_keys(scratch, k, v, part(saved.kv, place), queries.ahead(b, h, 0, some_rows));
      }
      const Next<T> next = first_of(unit + 1);  // most likely this thread's, too
      queries.run(b, h, part(saved.kv, place), part(d_kv, place),
                  m > 0 ? keys.ahead(b, h, 0) : next);
      keys.run(b, h, part(d_kv, place), next);
    }
  });
}

void backward(View d_o, const FlaoSaved& saved, View d_kv, const FlaoGrads& d, View /*space*/,
              const FlaoTransforms& transforms) {
  (d_o.dtype == f64 ? backward_as<double> : backward_as<float>)(d_o, saved, d_kv, d, transforms);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_flao_backward() {
  flao_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
