// Position encodings. Rows (head, token) are cut into blocks, in the order in which they lie in
// memory; cos and sin of a block are found once, stay in the second-level cache, and serve every
// batch entry. So each row is read once and written once, and memory bounds it. Long sequences have
// long blocks: a block of an entry is a stretch of memory, and beyond the caches stretches of 128
// KiB are read in 0.8 of the time of those of 16 KiB.
//
// Where there is softmax over the sequence, its columns come first: see sequence.h.
#include <optional>

#include "quipu/core/threads/parallel.h"
#include "sequence.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// Elements of a block's tables of cos and sin.
template <class T>
constexpr std::int64_t table = 65536 / static_cast<std::int64_t>(sizeof(T));

/// Rows of a block: as many as its tables take, but few enough to make work for many threads.
template <class T>
std::int64_t block_rows(std::int64_t rows, std::int64_t angles) {
  constexpr std::int64_t blocks = 32, shortest = 32, longest = 256;
  const std::int64_t fitting = table<T> / std::max<std::int64_t>(angles, 1);
  return std::clamp<std::int64_t>(std::min(fitting, std::clamp(rows / blocks, shortest, longest)),
                                  1, longest);
}

template <class T>
class Encoding {
 public:
  Encoding(const View& x, const View& angles, const RowTransform& transform, std::int64_t features,
           const SequenceColumns<T>* columns)
      : encoder_(transform, features),
        source_(angles, encoder_, x.size(2)),
        columns_(columns),
        batch_(x.size(0)),
        heads_(x.size(1)),
        tokens_(x.size(2)),
        heads_inside_(columns ? columns->heads_side_by_side()
                              : std::abs(x.stride(1)) < std::abs(x.stride(2))) {}

 protected:
  static constexpr std::int64_t longest = most_features(dtype_of<T>);
  struct Place {
    std::int64_t head, token;
  };
  struct Buffers {
    alignas(64) T cos[table<T>], sin[table<T>];  // of a block
    alignas(64) T row[longest], spare[longest], wide[2 * longest];
  };

  std::int64_t offset(const View& v, std::int64_t b, const Place& p) const {
    return b * v.stride(0) + p.head * v.stride(1) + p.token * v.stride(2);
  }

  /// Calls f(buffers, b, place, cos, sin) for all rows.
  template <class F>
  void for_each_row(Angles how, F f) const {
    if (!columns_) return encode_entries(0, batch_, how, f);
    const std::int64_t entries = columns_->entries();
    for (std::int64_t first = 0; first < batch_; first += entries) {
      const std::int64_t last = std::min(first + entries, batch_);
      // The first ones enter the angles.
      const Angles here = first > 0 ? Angles::read : how;
      if (columns_->in_parts()) {
        columns_->find(0, heads_, first, last - first);
        encode_entries(first, last, here, f);
      } else {
        encode_heads(first, last, here, f);
      }
    }
  }

  /// What is known of the columns of a row.
  ColumnRow<T> columns_of(std::int64_t b, const Place& p) const {
    return columns_ ? columns_->of(b, p.head) : ColumnRow<T>{};
  }

  RowEncoder<T> encoder_;

 private:
  std::int64_t block() const { return block_rows<T>(heads_ * tokens_, encoder_.angles()); }

  template <class F>
  void encode_entries(std::int64_t first, std::int64_t last, Angles how, F f) const {
    const std::int64_t several = std::max<std::int64_t>(1, 8 / (last - first));
    parallel_for(heads_ * tokens_, block() * several, [&](std::int64_t begin, std::int64_t end) {
      encode_rows(begin, end, first, last, how, f);
    });
  }

  /// A head of a few entries at a time: where its rows lie together, they are still near when they
  /// are read again.
  template <class F>
  void encode_heads(std::int64_t first, std::int64_t last, Angles how, F f) const {
    constexpr std::int64_t few = SequenceColumns<T>::few;
    const std::int64_t parts = (last - first + few - 1) / few;
    parallel_for(heads_ * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / parts, b = first + i % parts * few;
        const std::int64_t b_end = std::min(b + few, last);
        columns_->find(head, 1, b, b_end - b);
        // One task of a head enters its angles.
        const Angles here = b > first && how == Angles::enter ? Angles::find : how;
        encode_rows(head * tokens_, (head + 1) * tokens_, b, b_end, here, f);
      }
    });
  }

  template <class F>
  void encode_rows(std::int64_t begin, std::int64_t end, std::int64_t first_entry,
                   std::int64_t last_entry, Angles how, F f) const {
    const std::int64_t n = encoder_.angles(), block = this->block();
    Buffers buffers;
    for (std::int64_t first = begin; first < end; first += block) {
      const std::int64_t last = std::min(first + block, end);
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t turn = (r - first) * n;
        const auto [head, token] = place(r);
        const T* angle = source_.get(how, head, token, buffers.row);
        find_turns(angle, buffers.cos + turn, buffers.sin + turn, n);
      }
      for (std::int64_t b = first_entry; b < last_entry; ++b) {
        for (std::int64_t r = first; r < last; ++r) {
          const std::int64_t turn = (r - first) * n;
          f(buffers, b, place(r), buffers.cos + turn, buffers.sin + turn);
        }
      }
    }
  }

  Place place(std::int64_t row) const {
    return heads_inside_ ? Place{row % heads_, row / heads_} : Place{row / tokens_, row % tokens_};
  }

  AngleSource<T> source_;
  const SequenceColumns<T>* columns_;  // with softmax over the sequence
  std::int64_t batch_, heads_, tokens_;
  bool heads_inside_;
};

template <class T>
class Forward : Encoding<T> {
 public:
  Forward(const View& x, const View& o, const View& angles, const RowTransform& transform,
          const SequenceColumns<T>* columns)
      : Encoding<T>(x, angles, transform, x.size(3), columns), x_(x), o_(Target::write_to(o)) {}

  void run() const {
    this->for_each_row(Angles::enter, [&](auto& buffers, std::int64_t b, const auto& place,
                                          const T* cos, const T* sin) {
      const std::int64_t d = this->encoder_.features(), width = this->encoder_.width();
      const std::int64_t to = this->offset(o_.view, b, place), stride = o_.view.stride(3);
      const T* x = read_row(buffers.row, x_, this->offset(x_, b, place), x_.stride(3), d);
      const T* y = this->encoder_.activate(x, this->columns_of(b, place), buffers.spare);
      T* o = place_of_row(buffers.wide, o_, to, stride, width);
      this->encoder_.encode(y, cos, sin, o);
      finish_row(o_, to, stride, o, width);
    });
  }

 private:
  const View& x_;
  Grad o_;
};

template <class T>
class Backward : Encoding<T> {
 public:
  Backward(const View& x, const View& d_o, const Grad& d_x, const View& angles,
           const RowTransform& transform, const SequenceColumns<T>* columns)
      : Encoding<T>(d_o, angles, transform, d_x.view.size(3), columns),
        x_(x),
        d_o_(d_o),
        d_x_(d_x) {}

  void run() const {
    this->for_each_row(Angles::read, [&](auto& buffers, std::int64_t b, const auto& place,
                                         const T* cos, const T* sin) {
      const auto& encoder = this->encoder_;
      const std::int64_t d = encoder.features(), to = this->offset(d_x_.view, b, place);
      const std::int64_t stride = d_x_.view.stride(3);
      const T* d_o = read_row(buffers.wide, d_o_, this->offset(d_o_, b, place), d_o_.stride(3),
                              encoder.width());
      T* d_x = place_of_row(buffers.row, d_x_, to, stride, d);
      encoder.encode_back(d_o, cos, sin, d_x);
      if (encoder.has_act()) {
        // d_o is no longer needed; x and the softmax of it can lie there.
        const T* x = read_row(buffers.wide, x_, this->offset(x_, b, place), x_.stride(3), d);
        encoder.activate_back(x, d_x, this->columns_of(b, place), buffers.spare, d_x);
      }
      finish_row(d_x_, to, stride, d_x, d);
    });
  }

 private:
  const View& x_;
  const View& d_o_;
  const Grad& d_x_;
};

template <class T>
void forward_as(const View& x, const View& o, const View& angles, const RowTransform& transform,
                const View& space) {
  std::optional<SequenceColumns<T>> columns;
  if (transform.softmax_over_sequence()) columns.emplace(x, View{}, angles, transform, space);
  Forward<T>(x, o, angles, transform, columns ? &*columns : nullptr).run();
}

template <class T>
void backward_as(const View& x, const View& d_o, const Grad& d_x, const View& angles,
                 const RowTransform& transform, const View& space) {
  std::optional<SequenceColumns<T>> columns;
  if (transform.softmax_over_sequence()) columns.emplace(x, d_o, angles, transform, space);
  Backward<T>(x, d_o, d_x, angles, transform, columns ? &*columns : nullptr).run();
}

void forward(View x, View o, View angles, const RowTransform& transform, View space) {
  if (x.numel() == 0) return;
  (x.dtype == f64 ? forward_as<double> : forward_as<float>)(x, o, angles, transform, space);
}

void backward(View x, View d_o, Grad d_x, View angles, const RowTransform& transform, View space) {
  if (d_o.numel() == 0) return;
  (d_o.dtype == f64 ? backward_as<double> : backward_as<float>)(x, d_o, d_x, angles, transform,
                                                                space);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_lrpe() {
  lrpe_forward_kernel.provide(Variant::cpu, on_cpu::forward);
  lrpe_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
