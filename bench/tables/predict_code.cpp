// What machine_code.csv tells of kernels, and what follows for a launch.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "../../examples/shared_file.h"
#include "predict.h"
#include "quipu/core/error.h"

namespace quipu::bench {
using namespace detail;
namespace {

using Key = std::pair<int, std::string>;

MachineCode::Part read_part(std::istream& line) {
  MachineCode::Part part;
  char comma = 0;
  line >> part.instructions >> comma >> part.mma >> comma >> part.bytes >> comma >>
      part.shared_bytes >> comma;
  return part;
}

std::map<Key, MachineCode> read_machine_code() {
  const std::string path = shared_file("machine_code.csv");
  std::ifstream file(path);
  std::map<Key, MachineCode> codes;
  std::string line;
  std::getline(file, line);  // names of the columns
  while (std::getline(file, line)) {
    std::istringstream text(line);
    MachineCode code;
    int sm = 0;
    char comma = 0;
    text >> sm >> comma >> code.registers >> comma >> code.fetches_ahead >> comma;
    code.once = read_part(text);
    for (MachineCode::Part& loop : code.loops) loop = read_part(text);
    std::string kernel;
    std::getline(text, kernel);
    check(text && !kernel.empty(), path, ": cannot be read at '", line, "'");
    codes.emplace(Key(sm, kernel), code);
  }
  return codes;
}

}  // namespace

const MachineCode* code_of(const std::string& kernel, int sm) {
  static const std::map<Key, MachineCode> all = read_machine_code();
  const auto it = all.find({sm, kernel});
  return it == all.end() ? nullptr : &it->second;
}

double issue_slots(const LaunchCounts& launch, const MachineCode& code) {
  constexpr double mma_flops = 2 * 16 * 8 * 16, lanes = 32, least_share = 0.1;
  using Member = double MachineCode::Part::*;
  constexpr Member kinds[] = {&MachineCode::Part::mma, &MachineCode::Part::bytes,
                              &MachineCode::Part::shared_bytes};
  const double all[] = {launch[Count::mma_flops] / mma_flops, launch[Count::lane_bytes] / lanes,
                        launch[Count::shared_lane_bytes] / lanes};
  double left[] = {all[0], all[1], all[2]}, slots = 0;
  const auto run = [&](const MachineCode::Part& part, double times) {
    slots += times * part.instructions;
    for (std::size_t k = 0; k < 3; ++k) left[k] = std::max(0.0, left[k] - times * part.*kinds[k]);
  };
  double warps = launch.blocks * std::ceil(launch.threads / lanes);
  for (std::size_t k = 0; k < 3; ++k) {  // of several ways each warp takes one
    if (code.once.*kinds[k] > 0) warps = std::min(warps, left[k] / (code.once.*kinds[k]));
  }
  run(code.once, warps);
  for (std::size_t k = 0; k < 3; ++k) {
    const MachineCode::Part& part = code.loops[k];
    if (part.*kinds[k] > 0 && left[k] >= least_share * all[k])
      run(part, left[k] / (part.*kinds[k]));
  }
  return slots;
}

double blocks_fitting(int sm, double threads, double registers, double shared_bytes) {
  struct Multiprocessor {
    double shared, warps, blocks;
  };
  // CUDA Programming Guide, "Technical Specifications per Compute Capability".
  static const std::map<int, Multiprocessor> all{{80, {164 << 10, 64, 32}},
                                                 {86, {100 << 10, 48, 16}},
                                                 {89, {100 << 10, 48, 24}},
                                                 {90, {228 << 10, 64, 32}},
                                                 {120, {100 << 10, 48, 24}}};
  constexpr double system_bytes = 1024, shared_unit = 128, register_unit = 256;
  constexpr double registers_of_quarter = 65536 / 4;
  const auto found = all.find(sm);
  check(found != all.end(), "blocks on a multiprocessor of sm_", sm, " are not known");
  const Multiprocessor& m = found->second;
  const double block_warps = std::max(1.0, std::ceil(threads / 32));
  const double shared = std::ceil((shared_bytes + system_bytes) / shared_unit) * shared_unit;
  const double warp_registers =
      std::ceil(32 * std::max(1.0, registers) / register_unit) * register_unit;
  const double warps = 4 * std::floor(registers_of_quarter / warp_registers);
  return std::min({m.blocks, std::floor(m.warps / block_warps), std::floor(warps / block_warps),
                   std::floor(m.shared / shared)});
}

}  // namespace quipu::bench
