// Gated linear attention: gradients in all shapes, options and subsets of inputs.
#include "flao_support.h"

using namespace quipu;
using namespace quipu::testing::gated;

namespace {

const Sizes shapes[] = {
    {1, 1, 1, 1, 1, 1},  {1, 1, 1, 1, 2, 3},  {2, 1, 3, 2, 1, 1},  {1, 2, 2, 5, 3, 1},
    {2, 2, 3, 4, 2, 5},  {1, 1, 7, 1, 4, 2},  {1, 1, 1, 7, 2, 4},  {3, 1, 2, 2, 5, 2},
    {1, 3, 4, 4, 4, 4},  {2, 2, 2, 2, 2, 2},  {1, 1, 13, 5, 2, 2}, {1, 1, 5, 13, 2, 2},
    {1, 1, 3, 3, 17, 2}, {1, 1, 3, 3, 2, 17}, {2, 3, 3, 5, 3, 5},  {1, 2, 6, 1, 1, 6},
    {1, 1, 8, 8, 3, 3},  {4, 1, 2, 3, 2, 1},  {1, 4, 3, 2, 1, 2},  {1, 1, 9, 4, 4, 1},
    {1, 1, 2, 3, 8, 8},  {2, 1, 5, 5, 2, 3},  {1, 2, 4, 7, 2, 3},  {1, 1, 16, 16, 2, 2},
    {1, 1, 31, 3, 1, 2}, {1, 1, 3, 31, 2, 1}, {1, 1, 2, 2, 33, 1}, {1, 1, 2, 2, 1, 33},
    {5, 1, 2, 2, 2, 2},  {1, 5, 2, 2, 2, 2},
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "flao: gradients, many shapes") {
  for (const Sizes& s : shapes) {
    CAPTURE(text_of(s));
    CHECK(gradcheck(function_of({}), inputs_of(s, f64, device)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: gradients, pairs of options") {
  for (const Variant& variant : variants(f64, device)) {
    CAPTURE(variant.name);
    const FlaoOptions& options = variant.options;
    CHECK(gradcheck(function_of(options), inputs_of(variant_sizes, f64, device)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: gradients, every subset of inputs") {
  for (const Sizes& s : {Sizes{1, 2, 3, 5, 4, 3}, Sizes{2, 1, 6, 2, 2, 5}}) {
    for (unsigned subset = 1; subset < 16; ++subset) {
      for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
        CAPTURE(subset);
        FlaoOptions options{.keep = keep};
        const auto in = inputs_of(s, f64, device, subset);
        CHECK(gradcheck(function_of(options), in));
        options.q_act = options.k_act = Act::silu;
        options.v_act = Act::sigmoid;
        options.g_act = Act::softmax;
        options.g_dim = -2;
        options.lrpe = FlaoLrpe::rotate;
        options.theta = theta_of({1, s.d / 2}, f64, device);
        CHECK(gradcheck(function_of(options), in));
      }
    }
  }
}
