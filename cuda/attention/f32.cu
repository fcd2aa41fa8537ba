// The passes of attention that compute in f32; tiles.cuh explains them.
//
// sass attend_tiles: need LDG.E.128 LDS.128 STG.E.128 BAR.SYNC; forbid STL LDL LD.E$ ST.E$
//
// sass attend_tiles<float,1,: registers 128
//
// sass attend_tiles<float,2,.*{AttentionPass:forward,d_v}: registers 128
//
// sass attend_tiles<float,2,.*{AttentionPass:d_q,d_k}: registers 192
#include "tiles.cuh"

namespace quipu::detail::on_cuda {

template <>
void attention_general<float>(const View& on, const Attention<float>& a, std::int64_t heads,
                              AttentionPass pass) {
  const int features = goes_through_scores(pass) ? a.d : a.e;
  (features > 64 ? attention_tiles::run_pass<float, 2>
                 : attention_tiles::run_pass<float, 1>)(on, a, heads, pass);
}

}  // namespace quipu::detail::on_cuda
