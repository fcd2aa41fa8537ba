// What differs from card to card: shared memory of a block. Operators that ask for much of it run
// on each emulated card that the library supports, and what a card does not have is an error that
// says so.
#include <quipu/quipu.h>

#include "on_card.h"
#include "ops/fused/attention_support.h"
#include "ops/fused/flao_support.h"
#include "ops/fused/tpa_support.h"
#include "quipu/cuda/emulator/emulator.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

const Device cuda("cuda");
constexpr const char* supported[] = {"a100", "rtx3090", "rtx4090", "h100", "rtx5090"};

/// Output and gradients of attention with wide heads.
Tensors wide_attention(DType dtype, std::int64_t d, std::int64_t e, bool causal) {
  using namespace softmax_attention;
  const Size s{1, 1, 2, 35, 70, d, e};
  manual_seed(3);
  const Three in = inputs_of(s, dtype, cuda);
  return everything(fused, in, randn(output_of(s), dtype, cuda), {.causal = causal});
}

bool ran(const std::string& kernel) {
  for (const emulator::LaunchRecord& launch : emulator::launches()) {
    if (launch.kernel.find(kernel) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("cards: attention of wide heads runs on each, with the same bits") {
  for (const DType dtype : {bf16, f16, f32, f64}) {
    CAPTURE(dtype);
    std::vector<Tensors> results;
    for (const char* card : supported) {
      CAPTURE(card);
      const OnCard on(card);
      results.push_back(wide_attention(dtype, 128, 112, true));
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        CHECK(same_bits(results.back()[i], results[0][i]));
      }
    }
  }
}

TEST_CASE("cards: attention in 16-bit types uses tensor cores in backward on each") {
  for (const char* card : supported) {
    CAPTURE(card);
    for (const DType dtype : {bf16, f16}) {
      const OnCard on(card);
      emulator::clear_counters();
      wide_attention(dtype, 128, 128, false);
      CHECK(ran("differentiate_fragments"));
    }
  }
}

TEST_CASE("cards: tpa_decode with many heads and ranks runs on each, with the same bits") {
  using namespace tpa;
  // Queries, upstream and sums of a block would take 125 KiB together.
  const Size s{1, 5, 48, 40, 128, 128};
  const Six in = inputs_of(s, f32, cuda);
  const Tensor d_o = randn({s.b, 1, s.h, s.e}, f32, cuda);
  std::vector<Tensors> results;
  for (const char* card : supported) {
    CAPTURE(card);
    const OnCard on(card);
    results.push_back(everything(fused, in, d_o));
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      CHECK(same_bits(results.back()[i], results[0][i]));
    }
  }
}

TEST_CASE("cards: flao by tensor cores on each, encoded backward where shared memory suffices") {
  using namespace gated;
  const Sizes s{1, 1, 37, 40, 64, 128};
  const FlaoOptions options{.q_act = Act::silu,
                            .lrpe = FlaoLrpe::cosine,
                            .theta = theta_of({1, 64}, bf16, cuda),
                            .keep = FlaoKeep::kv_and_qkv};
  const auto in = gated::inputs_of(s, bf16, cuda);
  const Tensor upstream = upstream_of(s, bf16, cuda);
  for (const bool encoded : {false, true}) {
    const FlaoOptions o = encoded ? options : FlaoOptions{};
    CAPTURE(encoded);
    Tensors first;
    for (const char* card : supported) {
      CAPTURE(card);
      const OnCard on(card);
      emulator::clear_counters();
      const auto got = gated::run(flao, in, o, upstream);
      CHECK(ran("multiply_keys_kernel"));
      CHECK(ran("gate_queries"));
      const bool has_room = !encoded || emulator::card_of(0).shared_per_block > 160 * 1024;
      CHECK(ran("differentiate_queries<quipu::detail::on_cuda::gated::RowShape") != has_room);
      CHECK(ran("flao_mma::(anonymous namespace)::differentiate_queries") == has_room);
      if (first.empty()) first = got;
      CHECK(same_bits(got[0], first[0]));
      for (std::size_t i = 1; i < got.size(); ++i) CHECK(allclose(got[i], first[i]));
    }
  }
}

TEST_CASE("cards: what a card has too little of is named, with operator and bytes") {
  wide_attention(bf16, 128, 128, false);  // what a larger card allowed does not count on this one
  const OnCard on("t4");
  emulator::settings().print = false;
  expect_error([] { wide_attention(bf16, 128, 128, false); }, "attention", "bytes of shared memory",
               "Tesla T4", "has 65536");
  emulator::clear_reports();
  emulator::settings().print = true;
}
