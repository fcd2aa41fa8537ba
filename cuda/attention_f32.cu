// The passes of attention that compute in f32; attention_tiles.cuh tells how.
//
// sass attend_tiles: need LDG.E.128 LDS.128 STG.E.128 BAR.SYNC; forbid STL LDL LD.E$ ST.E$
//
// sass attend_tiles<float,1,: registers 128
//
// sass attend_tiles<float,2,.*Pass.[03]>: registers 128
//
// sass attend_tiles<float,2,.*Pass.[12]>: registers 192
#include "attention_tiles.cuh"

namespace quipu::on_cuda {

template <>
void attend_by_tiles<float>(const View& on, const Attention<float>& a, std::int64_t heads,
                            AttentionPass pass) {
  const int features = goes_through_scores(pass) ? a.d : a.e;
  (features > 64 ? attention_tiles::run_pass<float, 2>
                 : attention_tiles::run_pass<float, 1>)(on, a, heads, pass);
}

}  // namespace quipu::on_cuda
