// Backward of attention over factored keys and values. Blocks of entries go to the threads; in each
// tile the scores are found again, and exponentials of scores less the log-sum-exp are the weights.
// Gradients of ak, av, bk and bv belong to the tile and are written where they belong, with the
// last product where types allow it. Those of aq and bq are sums over all entries: each block has
// its own in the workspace, and they are added in the order of the blocks. Every factor is read
// once; up to eight products bound it (0.45 of the multiply-add peak at the published sizes).
#include "tpa_decode.h"

#include "quipu/core/threads/parallel.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
class Backward {
 public:
  Backward(const TpaInputs& in, const View& o, const LogSums& sums, const View& d_o,
           const TpaInputGrads& d, const View& partial)
      : in_(in),
        o_(o),
        sums_(sums),
        d_o_(d_o),
        d_(d),
        partial_(partial),
        scores_(in),
        lengths_(in),
        blocks_(tpa_blocks(d_o.size(0), in.ak.size(1), in.split)),
        heads_(d_o.size(1)),
        rows_(tile_rows<T>(tile_size, std::max(heads_, scores_.r()))),
        value_scale_(static_cast<T>(in.value_scale)) {}

  void run() const {
    const std::int64_t batch = d_o_.size(0);
    parallel_for(batch * blocks_.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) block(i / blocks_.count, i % blocks_.count);
    });
    parallel_for(batch, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        add_blocks(d_.aq, b, 0);
        add_blocks(d_.bq, b, heads_ * scores_.r());
      }
    });
  }

 private:
  // Six tiles of 10 KiB lie in the room that a product leaves.
  static constexpr std::int64_t tile_size = (10 << 10) / sizeof(T);
  static_assert(tile_size >= most_tpa_width);

  struct Buffers {
    Gemm<T> gemm{6 * tile_size};
    T* weights = gemm.tile();  // then gradients of the scores
    T* products = weights + tile_size;
    T* inner = products + tile_size;
    T* d_weights = inner + tile_size;  // then gradients of `inner`
    T* factors = d_weights + tile_size;
    T* result = factors + tile_size;
    T lse[most_tpa_width], rest[most_tpa_width];
    T mean[most_tpa_width];  // of d_weights, by the weights
  };

  void block(std::int64_t b, std::int64_t index) const {
    Buffers x;
    const std::int64_t first = index * blocks_.length;
    const std::int64_t last = std::min(first + blocks_.length, in_.ak.size(1));
    const std::int64_t end = std::clamp(lengths_[b], first, std::max(first, last));
    if (heads_ > 0) {
      const View &lse = sums_.lse, &rest = sums_.rest;
      load_run(x.lse, at(lse, b * lse.stride(0)), lse.dtype, lse.stride(1), heads_);
      load_run(x.rest, at(rest, b * rest.stride(0)), rest.dtype, rest.stride(1), heads_);
    }
    if (d_.of_scores()) find_means(x, b);
    T* sums = partial_.defined ? part_of(b, index) : nullptr;
    if (sums) std::fill_n(sums, partial_.size(2), T(0));
    TpaTile t{b, first, 0, 0, heads_};
    for (; t.first < end; t.first += t.rows) {
      t.rows = std::min(rows_, end - t.first);
      find_weights(x, t);
      values(x, t);
      if (d_.of_scores()) keys(x, t, sums);
    }
    for (const Grad* g : {&d_.ak, &d_.bk, &d_.av, &d_.bv}) clear(*g, b, end, last);
  }

  /// The sum over all entries of weights times their gradients is the product of o and d_o.
  void find_means(Buffers& x, std::int64_t b) const {
    const std::int64_t e = d_o_.size(2);
    for (std::int64_t h = 0; h < heads_; ++h) {
      x.mean[h] = 0;
      for (std::int64_t j = 0; j < e; j += tile_size) {
        const std::int64_t n = std::min(tile_size, e - j);
        const auto row = [&](T* buffer, const View& v) {
          const std::int64_t offset = b * v.stride(0) + h * v.stride(1) + j * v.stride(2);
          return read_row(buffer, v, offset, v.stride(2), n);
        };
        x.mean[h] += row_product(row(x.weights, o_), row(x.products, d_o_), n);
      }
    }
  }

  void find_weights(Buffers& x, const TpaTile& t) const {
    scores_.score(x.gemm, t, x.inner, x.products, x.weights);
    for (std::int64_t i = 0; i < t.rows; ++i) {
      T* row = x.weights + i * heads_;
      QUIPU_VECTORIZE
      for (std::int64_t h = 0; h < heads_; ++h) {
        row[h] = math::exp((row[h] - x.lse[h]) - x.rest[h]);
      }
    }
  }

  /// Gradients of av and bv, and of the weights.
  void values(Buffers& x, const TpaTile& t) const {
    const std::int64_t value_rank = (in_.av.defined ? in_.av : in_.bv).size(2);
    const Matrix d_o = matrix_of(d_o_, t.b);
    if (d_.of_scores()) std::fill_n(x.d_weights, t.rows * heads_, T(0));
    for (std::int64_t rank = 0; rank < value_rank; ++rank) {
      if (in_.bv.defined) {
        // factors = bv d_o^T
        x.gemm.multiply(entries_of(in_.bv, t.b, t.first, t.rows, rank), d_o.transposed(), x.factors,
                        heads_, false);
        if (d_.of_scores()) add_products(x.d_weights, t, rank, x.factors);
        give_factors(d_.av, t, rank, value_scale_, x.weights, x.factors, x.result);
      }
      if (!d_.bv.wanted()) continue;
      scale_by_factors(in_.av, t, rank, value_scale_, x.weights, x.factors);
      give_entries(x, d_.bv, t, rank, tile_matrix(x.factors, t.rows, heads_), d_o);
    }
  }

  void add_products(T* sums, const TpaTile& t, std::int64_t rank, const T* factors) const {
    TpaScores<T>::for_each_factor(in_.av, t, rank, [&](std::int64_t i, const T* av) {
      T* sum = sums + i * heads_;
      const T* factor = factors + i * heads_;
      QUIPU_VECTORIZE
      for (std::int64_t h = 0; h < heads_; ++h) sum[h] += value_scale_ * (av[h] * factor[h]);
    });
  }

  /// Gradients of ak and bk, and what the tile adds to those of aq and bq.
  void keys(Buffers& x, const TpaTile& t, T* sums) const {
    for (std::int64_t i = 0; i < t.rows; ++i) {
      T* weight = x.weights + i * heads_;
      const T* d_weight = x.d_weights + i * heads_;
      QUIPU_VECTORIZE
      for (std::int64_t h = 0; h < heads_; ++h) weight[h] *= d_weight[h] - x.mean[h];
    }
    const std::int64_t r = scores_.r(), d = in_.bq.size(2);
    T* d_inner = x.d_weights;
    for (std::int64_t rank = 0; rank < scores_.key_rank(); ++rank) {
      if (scores_.key_rank() > 1) scores_.multiply(x.gemm, t, rank, x.inner, x.products);
      give_factors(d_.ak, t, rank, scores_.scale(), x.weights, x.products, x.result);
      if (!sums && !d_.bk.wanted()) continue;
      scale_by_factors(in_.ak, t, rank, scores_.scale(), x.weights, x.factors);
      const Matrix factors = tile_matrix(x.factors, t.rows, heads_);
      if (d_.aq.wanted()) {
        x.gemm.multiply(factors.transposed(), tile_matrix(x.inner, t.rows, r), sums, r, true);
      }
      if (!d_.bq.wanted() && !d_.bk.wanted()) continue;
      x.gemm.multiply(factors, scores_.aq(t), d_inner, r, false);
      const Matrix d_inners = tile_matrix(d_inner, t.rows, r);
      if (d_.bq.wanted()) {
        x.gemm.multiply(d_inners.transposed(), scores_.bk(t, rank), sums + heads_ * r, d, true);
      }
      give_entries(x, d_.bk, t, rank, d_inners, matrix_of(in_.bq, t.b));
    }
  }

  /// out = scale weights a, where a is ak or av.
  void scale_by_factors(const View& a, const TpaTile& t, std::int64_t rank, T scale,
                        const T* weights, T* out) const {
    TpaScores<T>::for_each_factor(a, t, rank, [&](std::int64_t i, const T* factor) {
      const T* weight = weights + i * heads_;
      T* to = out + i * heads_;
      QUIPU_VECTORIZE
      for (std::int64_t h = 0; h < heads_; ++h) to[h] = scale * (weight[h] * factor[h]);
    });
  }

  /// The gradient of ak or av (=|+=) scale weights factors.
  void give_factors(const Grad& g, const TpaTile& t, std::int64_t rank, T scale, const T* weights,
                    const T* factors, T* buffer) const {
    if (!g.wanted()) return;
    for (std::int64_t i = 0; i < t.rows; ++i) {
      const std::int64_t offset = row_offset(g.view, t.b, t.first + i, rank);
      T* to = place_of_row(buffer, g, offset, g.view.stride(3), heads_);
      const T *weight = weights + i * heads_, *factor = factors + i * heads_;
      QUIPU_VECTORIZE
      for (std::int64_t h = 0; h < heads_; ++h) to[h] = scale * (weight[h] * factor[h]);
      finish_row(g, offset, g.view.stride(3), to, heads_);
    }
  }

  /// The gradient of bk or bv (=|+=) a b: straight into its place, or part by part; through a
  /// tile where the sums are long.
  void give_entries(Buffers& x, const Grad& g, const TpaTile& t, std::int64_t rank, const Matrix& a,
                    const Matrix& b) const {
    if (!g.wanted() || g.view.numel() == 0) return;
    const View& v = g.view;
    const std::int64_t offset = row_offset(v, t.b, t.first, rank);
    if (is_dense<T>(v, v.stride(3), v.size(3))) {
      T* to = reinterpret_cast<T*>(at(v, offset));
      return x.gemm.multiply(a, b, to, v.stride(1), g.add);
    }
    const auto put = g.add ? add_run<T> : store_run<T>;
    auto give = [&](const ProductPart<T>& part) {
      for (std::int64_t i = 0; i < part.rows; ++i) {
        const std::int64_t to = (part.row + i) * v.stride(1) + part.column * v.stride(3);
        put(at(v, offset + to), v.dtype, v.stride(3), part.sums + i * part.stride, part.columns);
      }
    };
    const ProductTaker<T> taker(give);
    if (a.columns <= x.gemm.depth_at_once(b.columns)) {
      return x.gemm.multiply(a, b, nullptr, 0, false, {}, &taker);
    }
    const std::int64_t most = tile_size / t.rows;
    for (std::int64_t j = 0; j < v.size(3); j += most) {
      const std::int64_t columns = std::min(most, v.size(3) - j);
      x.gemm.multiply(a, b.block(0, j, b.rows, columns), x.result, columns, false);
      give({0, j, a.rows, columns, x.result, columns});
    }
  }

  /// Entries that do not attend have no gradient.
  void clear(const Grad& g, std::int64_t b, std::int64_t begin, std::int64_t end) const {
    if (!g.wanted() || g.add || g.view.numel() == 0) return;
    constexpr std::int64_t piece = 256;
    const T zeros[piece] = {};
    const View& v = g.view;
    for (std::int64_t m = begin; m < end; ++m) {
      for (std::int64_t rank = 0; rank < v.size(2); ++rank) {
        for (std::int64_t j = 0; j < v.size(3); j += piece) {
          finish_row(g, row_offset(v, b, m, rank) + j * v.stride(3), v.stride(3), zeros,
                     std::min(piece, v.size(3) - j));
        }
      }
    }
  }

  /// The gradient of aq or bq (=|+=) the sum over blocks; its parts begin at `start`.
  void add_blocks(const Grad& g, std::int64_t b, std::int64_t start) const {
    if (!g.wanted()) return;
    constexpr std::int64_t piece = 512;
    T sum[piece];
    const View& v = g.view;
    for (std::int64_t i = 0; i < v.size(1); ++i) {
      for (std::int64_t j = 0; j < v.size(2); j += piece) {
        const std::int64_t n = std::min(piece, v.size(2) - j);
        std::fill_n(sum, n, T(0));
        for (std::int64_t k = 0; k < blocks_.count; ++k) {
          const T* part = part_of(b, k) + start + i * v.size(2) + j;
          for (std::int64_t c = 0; c < n; ++c) sum[c] += part[c];
        }
        finish_row(g, b * v.stride(0) + i * v.stride(1) + j * v.stride(2), v.stride(2), sum, n);
      }
    }
  }

  T* part_of(std::int64_t b, std::int64_t block) const {
    return partial_.as<T>() + (b * blocks_.count + block) * partial_.size(2);
  }

  const TpaInputs& in_;
  const View& o_;
  const LogSums& sums_;
  const View& d_o_;
  const TpaInputGrads& d_;
  const View& partial_;
  TpaScores<T> scores_;
  TpaLengths lengths_;
  TpaBlocks blocks_;
  std::int64_t heads_, rows_;  // of a tile
  T value_scale_;
};

void backward(const TpaInputs& in, View o, const LogSums& sums, View d_o, const TpaInputGrads& d,
              View partial) {
  if (d_o.size(0) == 0) return;
  in.aq.dtype == f64 ? Backward<double>(in, o, sums, d_o, d, partial).run()
                     : Backward<float>(in, o, sums, d_o, d, partial).run();
}

}  // namespace
}  // namespace on_cpu

void register_cpu_tpa_decode_backward() {
  tpa_decode_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
