// Sectors, bank conflicts, unique bytes and multiplications, against numbers worked out by hand.
#include <algorithm>
#include <bit>
#include <cmath>

#include "buffer.h"
#include "kernels.h"

namespace quipu::testing {
namespace {

const emulator::LineTraffic* find_line(const std::vector<emulator::LineTraffic>& lines, bool shared,
                                       const std::string& kind) {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const auto& line) {
    return line.shared == shared && line.kind == kind;
  });
  return found == lines.end() ? nullptr : &*found;
}

TEST_CASE("emulator: an operation at the byte limit") {
  const Watched watched;
  const Buffer<float> x(std::vector<float>(4096)), y(std::vector<float>(4096));
  emulator::clear_counters();
  axpy(1, x.data(), y.data(), 4096, nullptr);
  const emulator::Counters c = emulator::counters();
  CHECK(c.unique_read_bytes == 2 * 4096 * 4);
  CHECK(c.unique_written_bytes == 4096 * 4);
  CHECK(c.load.bytes == 2 * 4096 * 4);
  CHECK(c.load.units == 2 * 4096 * 4 / 32);
  CHECK(c.load.efficiency() == 1);
  CHECK(c.load.requests == 2 * 4096 / 4 / 32);
  CHECK(c.store.units == 4096 * 4 / 32);
  CHECK(c.launches == 1);
  CHECK(c.blocks == 4);
  CHECK(c.switches == 0);  // nothing to wait for
  const auto launches = emulator::launches();
  REQUIRE(launches.size() == 1);
  CHECK(launches[0].kernel.find("axpy_kernel") != std::string::npos);
  CHECK(launches[0].grid[0] == 4);
  CHECK(launches[0].counters.load.bytes == c.load.bytes);
}

TEST_CASE("emulator: strides cost sectors, columns cost passes over the banks") {
  const Watched watched;
  const Buffer<float> in(std::vector<float>(32 * 128)), out(1024);
  emulator::clear_counters();
  copy_columns(in.data(), out.data(), 128, nullptr);
  const auto lines = emulator::lines();
  const auto* load = find_line(lines, false, "load");
  const auto* column = find_line(lines, true, "load");
  const auto* row = find_line(lines, true, "store");
  REQUIRE(load);
  REQUIRE(column);
  REQUIRE(row);
  CHECK(load->traffic.units == 32 * 32);  // a sector a lane
  CHECK(load->traffic.efficiency() == doctest::Approx(4.0 / 32));
  CHECK(column->traffic.units == 32 * column->traffic.requests);
  CHECK(row->traffic.units == row->traffic.requests);
  CHECK(load->file.find("correct.cu") != std::string::npos);
  CHECK(load->line == row->line);
  CHECK(emulator::profile().find("correct.cu:" + std::to_string(column->line)) !=
        std::string::npos);
}

TEST_CASE("emulator: what is read again, and what lies between") {
  const Watched watched;
  emulator::settings().seed = 0;
  const int n = 256, blocks = 5;
  const Buffer<float> in(std::vector<float>(n * blocks)), out(n * blocks);
  const Buffer<float> table(std::vector<float>(32));
  emulator::clear_counters();
  read_twice(in.data(), table.data(), out.data(), n, blocks, nullptr);
  const emulator::Counters c = emulator::counters();
  CHECK(c.unique_read_bytes == 4 * (n * blocks + 32));
  CHECK(c.in_block.sectors == n * blocks / 8);
  // The second reading of the i-th 32 floats comes after all first ones, and after 4 sectors that
  // were written for each 32 floats before.
  std::uint64_t between = 0;
  for (int i = 0; i < n / 32; ++i) between += static_cast<std::uint64_t>(4 * (n / 8 + 4 * i));
  CHECK(c.in_block.distance == between * blocks);
  CHECK(c.in_block.mean_distance() == doctest::Approx(n / 8 + 2 * (n / 32 - 1)));
  CHECK(c.across_blocks.sectors == 4 * (blocks - 1));  // the table
  CHECK(c.across_blocks.mean_distance() == 1);
  CHECK(c.in_block_of_shared.sectors == 0);

  emulator::clear_counters();  // the same floats for all blocks
  read_same_twice(in.data(), out.data(), n, blocks, nullptr);
  const emulator::Counters same = emulator::counters();
  CHECK(same.unique_read_bytes == 4 * n);
  CHECK(same.in_block.sectors == n / 8);  // the first block is alone yet
  CHECK(same.in_block_of_shared.sectors == n / 8 * (blocks - 1));
  CHECK(same.across_blocks.sectors == n / 8 * (blocks - 1));

  emulator::clear_counters();
  axpy(1, in.data(), in.data() + n, n, nullptr);
  CHECK(emulator::counters().in_block.sectors == 0);
  CHECK(emulator::counters().across_blocks.sectors == 0);
}

TEST_CASE("emulator: fills and copies on the device are launches") {
  const Watched watched;
  const Buffer<float> x(1000), y(1000);
  emulator::clear_counters();
  cudaMemsetAsync(x.data(), 0, 4000, nullptr);
  cudaMemcpyAsync(y.data(), x.data(), 4000, cudaMemcpyDeviceToDevice, nullptr);
  CHECK(y.values()[999] == 0);  // a copy to the host is none
  const auto launches = emulator::launches();
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].kernel == "cudaMemsetAsync");
  CHECK(launches[0].counters.unique_written_bytes == 4000);
  CHECK(launches[1].kernel == "cudaMemcpyAsync");
  CHECK(launches[1].counters.unique_read_bytes == 4000);
}

TEST_CASE("emulator: a rehearsal tells how work is cut and runs nothing") {
  const Watched watched;
  const Buffer<float> x(std::vector<float>(4096, 1)), y(std::vector<float>(4096, 2));
  emulator::clear_counters();
  emulator::settings().run = false;
  axpy(1, x.data(), y.data(), 4096, nullptr);
  {
    const Buffer<char> large(std::size_t{7} << 30);  // costs nothing
    cudaMemsetAsync(large.data(), 0, std::size_t{7} << 30, nullptr);
  }
  const auto launches = emulator::launches();
  emulator::settings().run = true;
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].kernel.find("axpy_kernel") != std::string::npos);
  CHECK(launches[0].grid[0] == 4);
  CHECK(launches[0].counters.load.requests == 0);
  CHECK(y.values()[0] == 2);
  axpy(1, x.data(), y.data(), 4096, nullptr);
  CHECK(y.values()[0] == 3);
  CHECK(emulator::report_text() == "");
}

TEST_CASE("emulator: tensor cores: values, flops, conflicts of ldmatrix") {
  const Watched watched;
  const int k = 128, batch = 2;
  const auto fa = random_floats(std::size_t(batch) * 64 * k, 1), fb = random_floats(fa.size(), 2);
  const std::vector<__nv_bfloat16> a(fa.begin(), fa.end()), b(fb.begin(), fb.end());
  const Buffer<__nv_bfloat16> da(a), db(b);
  const Buffer<float> c(std::size_t(batch) * 64 * 64);
  for (const int pitch : {72, 64}) {
    CAPTURE(pitch);
    emulator::clear_counters();
    gemm_bf16(da.data(), db.data(), c.data(), k, batch, pitch, nullptr);
    CHECK(emulator::report_text() == "");
    const emulator::Counters counted = emulator::counters();
    CHECK(counted.mma_flops == 2u * 64 * 64 * k * batch);
    CHECK(counted.unique_read_bytes == 2u * 2 * 64 * k * batch);
    CHECK(counted.shared_load.units == counted.shared_load.ideal * (pitch == 72 ? 1 : 8));
    const auto got = c.values();
    for (std::size_t z = 0; z < batch; ++z) {
      for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t j = 0; j < 64; ++j) {
          double sum = 0;
          for (std::size_t p = 0; p < k; ++p) {
            sum += double(float(a[(z * 64 + i) * k + p])) * double(float(b[(z * k + p) * 64 + j]));
          }
          REQUIRE(std::fabs(got[(z * 64 + i) * 64 + j] - sum) < 1e-4);
        }
      }
    }
  }
}

TEST_CASE("emulator: single products in f16 and tf32") {
  const Watched watched;
  const auto fa = random_floats(256, 1), fb = random_floats(128, 2);
  const std::vector<__half> ha(fa.begin(), fa.end()), hb(fb.begin(), fb.end());
  const Buffer<__half> a16(ha), b16(hb);
  const Buffer<float> a32(fa), b32(fb), d16(128), d32(128);
  one_mma_f16(a16.data(), b16.data(), d16.data(), nullptr);
  one_mma_tf32(a32.data(), b32.data(), d32.data(), nullptr);
  const auto half = d16.values(), tf32 = d32.values();
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      double wanted16 = 0, wanted32 = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        wanted16 += double(float(ha[i * 16 + k])) * double(float(hb[k * 8 + j]));
      }
      for (std::size_t k = 0; k < 8; ++k) wanted32 += double(fa[i * 8 + k]) * fb[k * 8 + j];
      CHECK(std::fabs(half[i * 8 + j] - wanted16) < 1e-5);
      CHECK(std::fabs(tf32[i * 8 + j] - wanted32) < 2e-2);  // 11 bits
    }
  }
  CHECK(emulator::report_text() == "");
}

TEST_CASE("emulator: what ldmatrix gives each lane") {
  const Watched watched;
  std::vector<unsigned short> values(256);
  for (std::size_t i = 0; i < 256; ++i) values[i] = static_cast<unsigned short>(i);
  const Buffer<unsigned short> matrices(values);
  const Buffer<unsigned> out(std::vector<unsigned>(6 * 128));
  matrix_loads(matrices.data(), out.data(), nullptr);
  const auto got = out.values();
  for (std::size_t form = 0; form < 6; ++form) {
    const std::size_t count = std::size_t{1} << form / 2;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t m = 0; m < count; ++m) {
        const std::size_t group = lane / 4, first = 2 * (lane % 4);
        const auto entry = [&](std::size_t row, std::size_t column) {
          return unsigned(m * 64 + row * 8 + column);
        };
        const unsigned wanted = form % 2 == 0 ? entry(group, first) | entry(group, first + 1) << 16
                                              : entry(first, group) | entry(first + 1, group) << 16;
        CHECK(got[form * 128 + lane * 4 + m] == wanted);
      }
    }
  }
  CHECK(emulator::report_text() == "");
}

}  // namespace
}  // namespace quipu::testing
