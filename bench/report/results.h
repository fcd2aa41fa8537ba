#pragma once
// What bench/results/ keeps of a run.
#include <string>

#include "comparison.h"

namespace quipu::bench::report {

/// Versions, date, machine, and a line for each case.
std::string results_json(const Comparison& comparison);

/// Speed beside the fastest peer: a bar for each operator and pass, the geometric mean over sizes
/// and types, with a line from the least to the most. Empty without peers.
std::string speed_svg(const Comparison& comparison);

/// "amd-epyc-v4_bf16-2-threads"
std::string machine_kind(const Machine& machine);

/// Writes <machine kind>.json, <machine kind>.html and, where there are peers, speed.svg.
void save_results(const Comparison& comparison, const std::string& folder);

}  // namespace quipu::bench::report
