#pragma once
// The kernels that the emulator is tested with: correct ones, on which it must be silent, and one
// planted mistake each for everything that it must find.
#include <string>
#include <vector>

#include "quipu/cuda/launch.h"

namespace quipu::testing {

/// out (64 x 64) = k^T v for k, v (n x 64), for each of `batch`; tiles through shared memory.
enum class Tiles {
  correct,
  no_barrier_after_fill,
  no_barrier_before_fill,
  row_left_out,
  no_bound_check,
  early_return,
};
void multiply_tiles(const float* k, const float* v, float* out, int n, int batch, Tiles variant,
                    cudaStream_t stream);

/// The same with two stages of asynchronous copies.
enum class Stages { correct, no_wait, no_barrier_before_fill, never_awaited };
void multiply_stages(const float* k, const float* v, float* out, int n, int batch, Stages variant,
                     cudaStream_t stream);

/// Softmax of rows of 128, a warp a row.
void softmax_rows(const __nv_bfloat16* in, __nv_bfloat16* out, int rows, cudaStream_t stream);
/// Counts values modulo 64, with atomics on shared and device memory.
void histogram(const int* in, int* out, int n, cudaStream_t stream);
/// The sum of n floats: each block leaves a part, the last one adds them. `counter` begins at 0 and
/// ends there.
enum class LastBlock { correct, no_fence, no_barrier };
void sum_last_block(const float* in, float* parts, unsigned* counter, float* out, int n,
                    LastBlock variant, cudaStream_t stream);
/// Twelve blocks work on out (64) in turn, after tickets: out = 3 out + number of the turn. `turn`
/// and `tickets` begin at 0.
enum class Turns { correct, no_fence, no_barrier, no_tickets };
void add_in_turn(unsigned* out, unsigned* turn, unsigned* tickets, Turns variant,
                 cudaStream_t stream);
/// out[i] = in[i] + 1 for bytes: neighbours belong to different threads and blocks.
void add_one_bytes(const unsigned char* in, unsigned char* out, int n, cudaStream_t stream);
/// Each of `blocks` warps reads its n floats, and again when it has their sum; all read one table
/// of 32: out = in * sum + table.
void read_twice(const float* in, const float* table, float* out, int n, int blocks,
                cudaStream_t stream);
/// Likewise, but all read the same n floats, twice; no table.
void read_same_twice(const float* in, float* out, int n, int blocks, cudaStream_t stream);
/// y += a x, n floats
void axpy(float a, const float* x, float* y, int n, cudaStream_t stream);

/// c (64 x 64) = a (64 x k) b (k x 64) for each of `batch` by tensor cores; rows in shared memory
/// are `pitch` (64 or 72) elements apart.
void gemm_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int k, int batch,
               int pitch, cudaStream_t stream);
/// d (16 x 8) = a (16 x 16) b (16 x 8) by one warp.
void one_mma_f16(const __half* a, const __half* b, float* d, cudaStream_t stream);
/// d (16 x 8) = a (16 x 8) b (8 x 8) by one warp.
void one_mma_tf32(const float* a, const float* b, float* d, cudaStream_t stream);
/// What ldmatrix gives each lane, for 1, 2 and 4 matrices, plain and transposed: 6 x 32 x 4 words.
void matrix_loads(const unsigned short* matrices, unsigned* out, cudaStream_t stream);
/// One row of 32 results a collective; see warp_test.cpp.
inline constexpr int warp_rows = 20;
void warp_collectives(int* out, cudaStream_t stream);
void block_votes(int* out, cudaStream_t stream);
void atomic_updates(unsigned* words, float* number, double* wide, cudaStream_t stream);
/// Copies 32 x 32 floats column by column: everything about it is slow.
void copy_columns(const float* in, float* out, int pitch, cudaStream_t stream);

/// A kernel with one mistake: what has to be reported at a line with an arrow.
struct Fault {
  std::string name, kind;
  void (*run)(int* device, cudaStream_t stream);
};
/// `device` has 1024 ints that are 0.
const std::vector<Fault>& faults();
/// Kernels that look like the faulty ones and are right.
const std::vector<Fault>& look_alikes();

void read_pointer(const int* from, int* to, cudaStream_t stream);  // 32 ints

}  // namespace quipu::testing
