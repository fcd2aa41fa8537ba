// The passes of attention that compute in f64; attention_tiles.cuh tells how.
//
// sass attend_tiles: need LDG.E.128 LDS.128 STG.E.128 BAR.SYNC DFMA; forbid STL LDL LD.E$ ST.E$;
// registers 255
#include "attention_tiles.cuh"

namespace quipu::on_cuda {

template <>
void attend_by_tiles<double>(const View& on, const Attention<double>& a, std::int64_t heads,
                             AttentionPass pass) {
  attention_tiles::run_pass<double, 1>(on, a, heads, pass);
}

}  // namespace quipu::on_cuda
