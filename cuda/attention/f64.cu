// The passes of attention that compute in f64; tiles.cuh explains them.
//
// sass attend_tiles: need LDG.E.128 LDS.128 STG.E.128 BAR.SYNC DFMA; forbid STL LDL LD.E$ ST.E$;
// registers 255
#include "tiles.cuh"

namespace quipu::detail::on_cuda {

template <>
void attention_general<double>(const View& on, const Attention<double>& a, std::int64_t heads,
                               AttentionPass pass) {
  attention_tiles::run_pass<double, 1>(on, a, heads, pass);
}

}  // namespace quipu::detail::on_cuda
