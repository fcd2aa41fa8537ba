// Gated linear attention in the sizes and types that devices multiply by tensor cores: bf16 and
// f16, rows of 16 to 128 features. The bounds are those of the golden cases, against the
// composition in f64 on the same numbers.
#include <algorithm>

#include "golden/golden_sizes.h"
#include "ops/fused/flao_support.h"
#include "support/accuracy.h"
#ifdef QUIPU_EMULATE
#include "quipu/cuda/emulator/emulator.h"
#endif

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;
using namespace quipu::testing::gated;

namespace {

/// f has a device multiply by tensor cores alone, as far as that can be seen; backward of encoded
/// rows does where a block can have the shared memory that it needs (cuda/flao/mma.cuh).
template <class F>
auto by_tensor_cores(const Device& device, F f, bool only_encoded_backward = false) {
#ifdef QUIPU_EMULATE
  constexpr std::size_t of_backward = 124 * 1024;
  const bool has_room = emulator::card_of(0).shared_per_block >= of_backward;
  emulator::clear_counters();
  const auto result = f();
  bool found = false;
  std::string others;
  for (const emulator::LaunchRecord& launch : emulator::launches()) {
    const auto has = [&](const char* text) {
      return launch.kernel.find(text) != launch.kernel.npos;
    };
    found = found || has("flao_mma");
    if (!has("flao_mma") && (has("_queries") || has("_keys"))) others += launch.kernel + " ";
  }
  CHECK(found == (device.is_cuda() && (has_room || !only_encoded_backward)));
  if (has_room) CHECK(others == "");
  return result;
#else
  static_cast<void>(device), static_cast<void>(only_encoded_backward);
  return f();
#endif
}

std::vector<Tensor> in_f64(const std::vector<Tensor>& in) {
  std::vector<Tensor> wide;
  for (const Tensor& x : in) {
    wide.push_back(x.detach().to(cpu).to(f64));
    wide.back().set_requires_grad(x.requires_grad());
  }
  return wide;
}

/// The output and the gradients that are wanted, and how large the terms are that they are summed
/// from.
struct Exact {
  std::vector<Tensor> results, sizes;
};

Exact exact_results(const std::vector<Tensor>& in, FlaoOptions options, const Tensor& upstream) {
  if (options.theta.defined()) options.theta = options.theta.to(cpu).to(f64);
  const std::vector<Tensor> wide = in_f64(in);
  const Tensor d_o = upstream.to(cpu).to(f64);
  Exact exact{run(flao_composed, wide, options, d_o), {}};
  const NoGrad no_grad;
  const auto sizes = sizes_of_flao(options, wide, d_o);
  exact.sizes.push_back(sizes[0]);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (wide[i].requires_grad()) exact.sizes.push_back(sizes[i + 1]);
  }
  return exact;
}

/// Those of the golden cases for what is left of the terms, and of the terms themselves what a
/// product of split operands leaves out, 2^-16 (mma.cuh). Where terms cancel, as in d_v of one
/// query, nothing less would do: f16 is off there by 1.2 times the first part alone.
Tensor bounds_of_split(const Tensor& wanted, DType dtype, const Tensor& sizes) {
  return bounds_of_reduced(wanted, dtype, of_flao) + max(sizes, -1, true) * std::exp2(-16);
}

void check_results(const std::vector<Tensor>& got, const Exact& exact, DType dtype) {
  REQUIRE(got.size() == exact.results.size());
  REQUIRE(got.size() == exact.sizes.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    const Tensor& wanted = exact.results[i];
    const auto beyond =
        first_beyond(got[i], wanted, bounds_of_split(wanted, dtype, exact.sizes[i]));
    CHECK_MESSAGE(!beyond, beyond.value_or(""));
  }
}

void check_against_f64(const gated::Sizes& s, DType dtype, const Device& device,
                       const FlaoOptions& options) {
  CAPTURE(text_of(s));
  CAPTURE(dtype);
  const auto in = inputs_of(s, dtype, device);
  const Tensor upstream = upstream_of(s, dtype, device);
  const auto got = by_tensor_cores(device, [&] { return run(flao, in, options, upstream); });
  check_results(got, exact_results(in, options, upstream), dtype);
}

constexpr DType reduced_types[] = {bf16, f16};

/// Every pair of two options for 37 tokens.
std::vector<gated::Variant> tensor_core_variants(const gated::Sizes& s, DType dtype,
                                                 Device device) {
  const std::pair<Act, std::optional<int>> acts[] = {
      {Act::none, {}}, {Act::relu, {}}, {Act::sigmoid, {}}, {Act::silu, {}}, {Act::softmax, -1}};
  std::vector<gated::Variant> found;
  // Activations of q, k, v and g, the encoding, what is kept.
  for (const std::vector<int>& row : pairwise({5, 5, 5, 5, 4, 3})) {
    FlaoOptions o;
    std::tie(o.q_act, o.q_dim) = acts[row[0]];
    std::tie(o.k_act, o.k_dim) = acts[row[1]];
    std::tie(o.v_act, o.v_dim) = acts[row[2]];
    std::tie(o.g_act, o.g_dim) = acts[row[3]];
    o.lrpe = static_cast<FlaoLrpe>(row[4]);
    o.keep = static_cast<FlaoKeep>(row[5]);
    if (o.lrpe == FlaoLrpe::rotate) o.theta = theta_of({1, s.d / 2}, dtype, device);
    if (o.lrpe == FlaoLrpe::cosine) o.theta = theta_of({s.h, s.d}, dtype, device);
    if (o.lrpe == FlaoLrpe::cosine_md) o.theta = theta_of({s.h, s.d / 2}, dtype, device);
    if (o.lrpe == FlaoLrpe::cosine_md) o.shape = {5, 7};
    if (o.lrpe == FlaoLrpe::cosine_md) o.l = 2;
    if (o.lrpe == FlaoLrpe::rotate || o.lrpe == FlaoLrpe::cosine) o.offset = 3;
    std::string name;
    for (const int choice : row) name += std::to_string(choice) + " ";
    found.push_back({name, o});
  }
  return found;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "flao: in the sizes of tensor cores within the golden bounds") {
  for (const DType dtype : reduced_types) {
    for (const gated::Sizes& s :
         {gated::Sizes{2, 2, 70, 50, 16, 16}, gated::Sizes{1, 1, 33, 100, 48, 80},
          gated::Sizes{1, 2, 40, 17, 128, 128}, gated::Sizes{1, 1, 16, 1, 112, 16},
          gated::Sizes{1, 1, 1, 600, 16, 128}, gated::Sizes{1, 1, 1100, 1300, 32, 16}}) {
      check_against_f64(s, dtype, device, {});
      check_against_f64(s, dtype, device,
                        {.q_act = Act::silu, .g_act = Act::sigmoid, .keep = FlaoKeep::kv});
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: every activation and encoding on tensor cores") {
  const gated::Sizes s{1, 2, 37, 37, 32, 48};
  for (const DType dtype : reduced_types) {
    for (const gated::Variant& variant : tensor_core_variants(s, dtype, device)) {
      CAPTURE(variant.name);
      check_against_f64(s, dtype, device, variant.options);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: tensor cores take any layout of whole rows") {
  const gated::Sizes s{2, 3, 37, 21, 32, 16};
  const FlaoOptions options{
      .k_act = Act::silu, .lrpe = FlaoLrpe::rotate, .theta = theta_of({3, 16}, bf16, device)};
  const auto in = inputs_of(s, bf16, device);
  const Tensor upstream = upstream_of(s, bf16, device);
  const auto wanted = run(flao, in, options, upstream);
  // Heads side by side, in rows that are part of longer ones.
  const auto laid_out = [&](const Tensor& x) {
    const Tensor room = zeros({x.size(2), x.size(0), x.size(1), x.size(3) + 8}, bf16, device);
    const Tensor view = room.permute({1, 2, 0, 3}).slice(3, 8, x.size(3) + 8);
    view.copy_from(x.detach());
    return view;
  };
  std::vector<Tensor> turned, d;
  for (const Tensor& x : in) turned.push_back(laid_out(x));
  for (const Tensor& x : in) d.push_back(laid_out(ones(x.shape(), bf16, device)));
  const auto results = by_tensor_cores(device, [&] {
    const Tensor o = flao(turned[0], turned[1], turned[2], turned[3], options);
    flao_backward(turned[0], turned[1], turned[2], turned[3], laid_out(upstream),
                  Grad::write_to(d[0]), Grad::write_to(d[1]), Grad::write_to(d[2]),
                  Grad::write_to(d[3]), options);
    return std::vector<Tensor>{o, d[0], d[1], d[2], d[3]};
  });
  for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(allclose(results[i], wanted[i]));
}

TEST_CASE_FIXTURE(EachDevice, "flao: tensor cores add to gradients, rounding once") {
  const gated::Sizes s{1, 2, 37, 50, 16, 32};
  for (const DType dtype : reduced_types) {
    const auto in = inputs_of(s, dtype, device);
    const Tensor upstream = upstream_of(s, dtype, device);
    const auto exact = exact_results(in, {}, upstream).results;
    for (const DType grad_type : {dtype, f32}) {
      CAPTURE(grad_type);
      std::vector<Tensor> d;
      for (const Tensor& x : in) d.push_back(full(x.shape(), 3.0, grad_type, device));
      const auto backward = [&] {
        flao_backward(in[0], in[1], in[2], in[3], upstream, Grad::add_to(d[0]), Grad::add_to(d[1]),
                      Grad::add_to(d[2]), Grad::add_to(d[3]));
        return 0;
      };
      by_tensor_cores(device, backward, dtype == f16);
      for (std::size_t i = 0; i < 4; ++i) {
        const Tensor wanted = exact[i + 1] + 3;
        // Half a unit from the last rounding; what is before it is of f32's precision.
        const Tensor bound =
            abs(wanted) * (0.5 * epsilon_of(grad_type)) + max(abs(exact[i + 1])) * std::exp2(-15);
        const auto beyond = first_beyond(d[i], wanted, bound);
        CHECK_MESSAGE(!beyond, beyond.value_or(""));
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: any gradients alone on tensor cores") {
  const gated::Sizes s{1, 1, 40, 24, 16, 32};
  const Tensor theta = theta_of({1, 8}, bf16, device);
  const Act softmax = Act::softmax;
  for (const FlaoOptions& options :
       {FlaoOptions{}, FlaoOptions{.lrpe = FlaoLrpe::rotate, .theta = theta},
        FlaoOptions{.q_act = softmax,
        .q_dim = -1,
        .k_act = softmax,
        .k_dim = -1,
        .v_act = softmax,
        .v_dim = -1,
        .g_act = softmax,
        .g_dim = -1}}) {
    const Tensor upstream = upstream_of(s, bf16, device);
    for (unsigned subset = 1; subset < 16; ++subset) {
      CAPTURE(subset);
      const auto in = inputs_of(s, bf16, device, subset);
      const auto exact = exact_results(in, options, upstream);
      for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
        CAPTURE(static_cast<int>(keep));
        FlaoOptions keeping = options;
        keeping.keep = keep;
        check_results(by_tensor_cores(device, [&] { return run(flao, in, keeping, upstream); }),
                      exact, bf16);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: kv keeps more digits than its inputs have") {
  const gated::Sizes s{1, 1, 64, 64, 128, 64};
  for (const DType dtype : reduced_types) {
    CAPTURE(dtype);
    // All entries of kv are nearly the same, and q takes the differences of neighbours.
    Generator g(5);
    const auto near_one = [&](const Shape& shape) {
      return (1 + randn(shape, f64, cpu, g) / 8).to(dtype).to(device);
    };
    const Tensor signs = 1 - 2 * (rand({s.b, s.h, s.n, s.d / 2}, f64, cpu, g) < 0.5).to(f64);
    const Tensor q = stack({signs, -signs}, -1).reshape({s.b, s.h, s.n, s.d}).to(dtype).to(device);
    const Tensor k = near_one({s.b, s.h, s.m, s.d}), v = near_one({s.b, s.h, s.m, s.e});
    const Tensor gate = ones({s.b, s.h, s.n, s.e}, dtype, device);
    const Tensor got = by_tensor_cores(device, [&] { return flao(q, k, v, gate); });
    const auto wide = in_f64({q, k, v, gate});
    const Tensor exact = flao_composed(wide[0], wide[1], wide[2], wide[3]);
    const auto sizes = sizes_of_flao({}, wide, ones(exact.shape(), f64));
    const Tensor bounds = bounds_of_split(exact, dtype, sizes[0]);
    const auto beyond = first_beyond(got, exact, bounds);
    CHECK_MESSAGE(!beyond, beyond.value_or(""));
    // With kv rounded to the type of the inputs this would not hold.
    const Tensor kv = matmul(wide[1].transpose(2, 3), wide[2]).to(dtype).to(f64);
    CHECK(first_beyond(matmul(wide[0], kv), exact, bounds));
  }
}
