// Every product of the batch is cut into tiles by its shape alone, so that the bits are the same on
// any number of threads; a chunk of work is one large tile or many small products. Tiles half as
// large would be work for more threads, but b is packed once for each row of tiles: 16 instead of 8
// tiles take 1 % more at 1024 and 3 % at 512. Few results of long sums come cut into parts
// (ops/matmul/support.cpp). Products that are summed go one after the other into the same tile. A
// result of another type than the sums are made in is collected in a buffer of one tile and rounded
// once. What bounds it is in gemm.cpp, and for few rows in gemv.cpp.
#include "gemm.h"

#include <algorithm>
#include <utility>

#include "gemv.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/layout.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/ops/matmul/kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

Matrix matrix_of(const View& v) {
  const int rows = v.dim() - 2, columns = v.dim() - 1;
  return {v.data, v.dtype, v.size(rows), v.size(columns), v.stride(rows), v.stride(columns)};
}

Matrix moved(Matrix m, std::int64_t elements) {
  m.data = static_cast<char*>(m.data) + elements * static_cast<std::int64_t>(size_of(m.dtype));
  return m;
}

class Plan {
 public:
  Plan(const View& a, const View& b, const Target& o)
      : a_(matrix_of(a)), b_(matrix_of(b)), o_(matrix_of(o.view)), add_(o.add) {
    split_batch(a, b, o.view);
    // Few rows rather than few columns, dense rows rather than dense columns: o^T = b^T a^T.
    const bool narrow = o_.columns <= few && o_.columns < o_.rows;
    if (narrow || (o_.rows > few && !has_dense_rows())) {
      o_ = o_.transposed();
      a_ = std::exchange(b_, a_.transposed()).transposed();
      std::swap(apart_[0], apart_[1]);
      std::swap(summed_[0], summed_[1]);
    }
    sums_ = numel(summed_.shape);
  }

  /// The elements of the result are sums of no products.
  bool sums_nothing() const { return sums_ == 0 || a_.columns == 0; }

  template <class T>
  void run() {
    if (o_.rows == 0 || o_.columns == 0) return;
    direct_ = o_.dtype == dtype_of<T> && has_dense_rows();
    if (o_.rows <= few) {
      direct_ = direct_ && o_.rows == 1;  // rows whole pages apart get in each other's way
      cut_long_rows<T>();
      run_tiles<T, Gemv<T>>();
    } else {
      cut_tiles<T>();
      run_tiles<T, Gemm<T>>();
    }
  }

 private:
  /// Dimensions that o has belong to products apart; those that only a or b has are summed.
  void split_batch(const View& a, const View& b, const View& o) {
    const auto stride = [](const View& v, int d) { return v.size(d) == 1 ? 0 : v.stride(d); };
    for (int d = 0; d + 2 < o.dim(); ++d) {
      const std::int64_t size = a.size(d) == 1 ? b.size(d) : a.size(d);
      if (o.size(d) == size) {
        apart_.shape.push_back(size);
        apart_[0].push_back(stride(a, d));
        apart_[1].push_back(stride(b, d));
        apart_[2].push_back(stride(o, d));
      } else {
        summed_.shape.push_back(size);
        summed_[0].push_back(stride(a, d));
        summed_[1].push_back(stride(b, d));
      }
    }
  }

  /// Large tiles pack less; but a large product gives at least 16 of them, a smaller one four.
  template <class T>
  void cut_tiles() {
    constexpr std::int64_t granule = 64 / sizeof(T);
    tile_columns_ = direct_ ? Gemm<T>::max_columns : 128;
    tile_rows_ = direct_ ? 512 : Gemm<T>::max_tile / tile_columns_;
    const auto even_out = [&] {
      tile_rows_ = even_part(o_.rows, tile_rows_);
      tile_columns_ = std::min(o_.columns, round_up(even_part(o_.columns, tile_columns_), granule));
    };
    for (even_out();; even_out()) {
      const std::int64_t size = tile_rows_ * tile_columns_, count = numel(apart_.shape) * tiles();
      if (count >= 16 || (count >= 4 && size <= 128 * 128)) break;
      if (size <= 48 * 64 || size * depth() < 1 << 21) break;
      const bool wide = tile_columns_ > 128 || tile_columns_ >= tile_rows_;
      std::int64_t& longer = wide ? tile_columns_ : tile_rows_;
      longer = (longer + 1) / 2;
    }
    grain_ = (1 << 19) / (tile_rows_ * tile_columns_ * depth() + 2048);  // about ten microseconds
  }

  /// Pieces of the few rows that meet at least 64 Ki elements of the matrix, if there are so many.
  template <class T>
  void cut_long_rows() {
    constexpr std::int64_t work = 1 << 16;
    const std::int64_t least = Gemv<T>::by_columns(b_) ? 64 : 256;  // short rows are slow to read
    tile_rows_ = o_.rows;
    tile_columns_ = std::clamp(work / depth(), least, Gemv<T>::max_columns);
    tile_columns_ = std::min(o_.columns, round_up(even_part(o_.columns, tile_columns_), 16));
    grain_ = work / (tile_columns_ * depth() + 512);
  }

  template <class T, class Engine>
  void run_tiles() const {
    parallel_for(numel(apart_.shape) * tiles(), grain_, [&](std::int64_t begin, std::int64_t end) {
      // Of a large matrix that is read once, an element meets few others before the next is due.
      const bool from_far =
          std::min(o_.rows, o_.columns) <= 64 && (o_.rows + o_.columns) * depth() >= 1 << 17;
      Engine engine(direct_ ? 0 : tile_rows_ * tile_columns_, from_far);
      for (std::int64_t unit = begin; unit < end; ++unit) multiply_tile<T>(engine, unit);
    });
  }

  std::int64_t tiles() const {
    return ((o_.rows - 1) / tile_rows_ + 1) * ((o_.columns - 1) / tile_columns_ + 1);
  }
  std::int64_t depth() const { return a_.columns * sums_; }

  bool has_dense_rows() const { return o_.columns <= 1 || o_.column_stride == 1; }

  template <class T, class Engine>
  void multiply_tile(Engine& engine, std::int64_t unit) const {
    Odometer<3> product(apart_);
    product.seek(unit / tiles());
    // Downwards first: threads that write side by side in the same rows slow each other down.
    const std::int64_t in_column = (o_.rows - 1) / tile_rows_ + 1;
    const std::int64_t row = unit % in_column * tile_rows_;
    const std::int64_t column = unit % tiles() / in_column * tile_columns_;
    const Matrix a = moved(a_, product.offsets()[0]).block(row, 0, tile_rows_, a_.columns);
    const Matrix b = moved(b_, product.offsets()[1]).block(0, column, b_.rows, tile_columns_);
    const Matrix o = moved(o_, product.offsets()[2]).block(row, column, tile_rows_, tile_columns_);

    T* const c = direct_ ? static_cast<T*>(o.data) : engine.tile();
    const std::int64_t c_stride = direct_ ? o.row_stride : o.columns;
    Odometer<2> summand(summed_);
    for (std::int64_t s = 0; s < sums_; ++s) {
      engine.multiply(moved(a, summand.offsets()[0]), moved(b, summand.offsets()[1]), c, c_stride,
                      s > 0 || (direct_ && add_));
      summand.next();
    }
    if (direct_) return;
    const auto put = add_ ? add_run<T> : store_run<T>;
    for (std::int64_t i = 0; i < o.rows; ++i) {
      put(o.at(i, 0), o.dtype, o.column_stride, c + i * c_stride, o.columns);
    }
  }

  Matrix a_, b_, o_;   // of the first product
  Layout<3> apart_;    // strides of a, b and o from one product to the next
  Layout<2> summed_;   // strides of a and b from one summand to the next
  std::int64_t sums_;  // summands of a product
  bool add_;

  // How it is cut.
  static constexpr std::int64_t few = Gemv<float>::max_rows;
  bool direct_ = false;  // sums go straight into o
  std::int64_t tile_rows_ = 0, tile_columns_ = 0;
  std::int64_t grain_ = 1;  // tiles in a chunk
};

void matmul(View a, View b, Target o, View) {
  Plan plan(a, b, o);
  if (plan.sums_nothing()) {
    if (!o.add) fill_kernel(o.view, 0.0);
    return;
  }
  if (compute_type(a.dtype) == DType::f64) {
    plan.run<double>();
  } else {
    plan.run<float>();
  }
}

}  // namespace
}  // namespace on_cpu

void register_cpu_matmul() {
  matmul_kernel.provide(Variant::cpu, on_cpu::matmul);
}

}  // namespace quipu::detail
