// Gated linear attention: what it keeps and holds, and the number of threads.
#include "flao_support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing::gated;

TEST_CASE_FIXTURE(EachDevice, "flao: the number of threads changes nothing") {
  const Sizes s{2, 2, 90, 77, 40, 24};
  for (const DType dtype : {f64, f32, bf16}) {
    const FlaoOptions options{.q_act = Act::softmax,
                              .q_dim = -2,
                              .k_act = Act::silu,
                              .lrpe = FlaoLrpe::rotate,
                              .theta = theta_of({2, 20}, dtype, device)};
    const auto in = inputs_of(s, dtype, device);
    const Tensor upstream = upstream_of(s, dtype, device);
    const int threads = set_num_threads(1);
    const auto alone = run(flao, in, options, upstream);
    for (const int count : {2, 3}) {
      set_num_threads(count);
      const auto together = run(flao, in, options, upstream);
      for (std::size_t i = 0; i < alone.size(); ++i) CHECK(same_bits(alone[i], together[i]));
    }
    set_num_threads(threads);
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: saves what it says and nothing else") {
  const Sizes s{2, 3, 70, 50, 24, 16};
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  for (const DType dtype : {f64, f32, bf16}) {
    const std::size_t io = size_of(dtype), wide = dtype == f64 ? 8 : 4;
    const std::size_t q = io * count(s.b * s.h * s.n * s.d), k = io * count(s.b * s.h * s.m * s.d);
    const std::size_t v = io * count(s.b * s.h * s.m * s.e), g = io * count(s.b * s.h * s.n * s.e);
    const std::size_t kv = wide * count(s.b * s.h * s.d * s.e);
    const auto saved = [&](unsigned subset, const FlaoOptions& options) {
      const auto in = inputs_of(s, dtype, device, subset);
      Tape tape;
      const Tensor o = flao(in[0], in[1], in[2], in[3], options);
      CHECK(tape.size() == 1);
      return tape.saved_bytes();
    };
    CHECK(saved(15, {}) == q + k + v + g);
    CHECK(saved(15, {.keep = FlaoKeep::kv}) == q + k + v + g + kv);
    CHECK(saved(15, {.keep = FlaoKeep::kv_and_qkv}) == q + k + v + g + kv + g);
    // Only what the wanted gradients need.
    CHECK(saved(1, {}) == g + k + v);
    CHECK(saved(1, {.keep = FlaoKeep::kv}) == g + kv);
    CHECK(saved(1, {.q_act = Act::silu, .keep = FlaoKeep::kv}) == q + g + kv);
    CHECK(saved(2, {}) == q + g + v);
    CHECK(saved(4, {}) == q + g + k);
    CHECK(saved(8, {}) == q + k + v);
    CHECK(saved(8, {.keep = FlaoKeep::kv_and_qkv}) == g);
    const Tensor theta = theta_of({3, 12}, dtype, device);
    const FlaoOptions rotated{.lrpe = FlaoLrpe::rotate, .theta = theta};
    CHECK(saved(15, rotated) == q + k + v + g + wide * 36);
    const FlaoOptions doubled{.lrpe = FlaoLrpe::cosine, .theta = theta, .keep = FlaoKeep::kv};
    CHECK(saved(15, doubled) == q + k + v + g + 2 * kv + wide * 36);
  }
}

TEST_CASE_FIXTURE(EachDevice,
                  "flao: saves inputs, theta and what is to be kept, in every variant") {
  const Sizes& s = variant_sizes;
  const auto bytes = [](std::int64_t n, DType dtype) {
    return static_cast<std::size_t>(n) * size_of(dtype);
  };
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const Variant& variant : variants(dtype, device)) {
      CAPTURE(variant.name);
      const FlaoOptions& o = variant.options;
      const auto in = inputs_of(s, dtype, device);
      Tape tape;
      const Tensor output = flao(in[0], in[1], in[2], in[3], o);
      std::size_t wanted = 0;
      for (const Tensor& x : in) wanted += x.nbytes();
      if (o.theta.defined()) wanted += o.theta.nbytes();
      const bool doubled = o.lrpe == FlaoLrpe::cosine || o.lrpe == FlaoLrpe::cosine_md;
      const std::int64_t kv = s.b * s.h * s.d * (doubled ? 2 : 1) * s.e;
      if (o.keep != FlaoKeep::nothing) wanted += bytes(kv, compute_type(dtype));
      if (o.keep == FlaoKeep::kv_and_qkv) wanted += output.nbytes();
      CHECK(tape.saved_bytes() == wanted);
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "flao: keeps no qkv where tensor cores compute it again") {
  const Sizes s{2, 3, 70, 50, 32, 16};
  for (const Device on : {device, Device(device.kind(), 0, true)}) {
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(to_string(on));
      CAPTURE(dtype);
      const auto saved = [&](unsigned subset, FlaoKeep keep) {
        const auto in = inputs_of(s, dtype, on, subset);
        Tape tape;
        const Tensor o = flao(in[0], in[1], in[2], in[3], {.keep = keep});
        return tape.saved_bytes();
      };
      const std::size_t units = 2 * 3, kv = units * 32 * 16 * 4;
      const std::size_t q = units * 70 * 32 * size_of(dtype), g = q / 2;
      const bool by_tensor_cores = on.kind() == DeviceKind::cuda && dtype != f32;
      CHECK(saved(15, FlaoKeep::kv_and_qkv) == saved(15, FlaoKeep::kv) + (by_tensor_cores ? 0 : g));
      CHECK(saved(8, FlaoKeep::kv_and_qkv) == (by_tensor_cores ? q + kv : g));
    }
  }
}

namespace {

/// What a step of training takes above the inputs and their gradients.
std::size_t peak_of(Operation f, const Sizes& s, Device device, const FlaoOptions& options) {
  const auto in = inputs_of(s, f32, device);
  const Tensor upstream = upstream_of(s, f32, device);
  const auto step = [&] {
    Tape tape;
    const Tensor o = f(in[0], in[1], in[2], in[3], options);
    tape.backward(o, {upstream, false});
  };
  step();  // gradients are there from now on
  const PeakMemory memory(device);
  step();
  return memory.bytes_above();
}

FlaoOptions options_of(const Sizes& s, Device device, FlaoKeep keep, bool encoded) {
  if (!encoded) return FlaoOptions{.keep = keep};
  return FlaoOptions{.q_act = Act::silu,
                     .k_act = Act::softmax,
                     .k_dim = -2,
                     .lrpe = FlaoLrpe::cosine,
                     .theta = theta_of({s.h, s.d}, f32, device),
                     .keep = keep};
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "flao: memory on meta is that on the device") {
  const Device meta(device.kind(), 0, true);
  for (const Sizes& s : {Sizes{2, 1, 70, 50, 24, 16}, Sizes{1, 1, 600, 1100, 4, 8}}) {
    for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
      for (const bool encoded : {false, true}) {
        CHECK(peak_of(flao, s, device, options_of(s, device, keep, encoded)) ==
              peak_of(flao, s, meta, options_of(s, meta, keep, encoded)));
      }
    }
  }
}

TEST_CASE("flao: memory on the cpu is less than the composition takes") {
  const Sizes s{2, 3, 512, 512, 64, 64};
  for (const FlaoKeep keep : {FlaoKeep::nothing, FlaoKeep::kv, FlaoKeep::kv_and_qkv}) {
    for (const bool encoded : {false, true}) {
      const std::size_t real = peak_of(flao, s, cpu, options_of(s, cpu, keep, encoded));
      CHECK(real == peak_of(flao, s, meta_cpu, options_of(s, meta_cpu, keep, encoded)));
      CHECK(real < peak_of(flao_composed, s, cpu, options_of(s, cpu, keep, encoded)));
      // The output, kv and d_kv, and what is kept.
      const std::size_t u = 2 * 3 * 512 * 64 * 4, kv = 2 * 3 * 64 * 64 * 4 * (encoded ? 2 : 1);
      CHECK(real == u + 2 * kv + (keep == FlaoKeep::kv_and_qkv ? u : 0));
    }
  }
}
