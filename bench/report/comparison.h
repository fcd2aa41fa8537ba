#pragma once
// A run of ours beside the fastest peers and beside an earlier run, row by row.
#include <optional>

#include "runs.h"

// A namespace of its own: bench/tables has comparisons, too, and the tests link both.
namespace quipu::bench::report {

/// Two runs on one machine differ by some percent: what is less is not called slower.
inline constexpr double slack = 0.05;

/// One case of ours. Ratios are above 1 where ours is faster, and unknown where there is no other.
struct Row {
  Case c;
  Timing ours;
  std::string peer = {};  // the fastest
  double peer_ms = unknown, earlier_ms = unknown;

  double to_peer() const { return peer_ms / ours.ms; }
  double to_earlier() const { return earlier_ms / ours.ms; }
};

struct Comparison {
  Run now;
  std::optional<Peers> peers;
  std::optional<Run> earlier;
  std::vector<Row> rows;
};

/// Peers and earlier run may be missing. Throws where a time is not positive.
Comparison compare(Run now, std::optional<Peers> peers, std::optional<Run> earlier);

/// A ratio above 1 of every row that has a partner.
struct Tally {
  int rows = 0, slower = 0;
  double mean = unknown;  // geometric
  std::string slowest;    // the case, and its ratio:
  double least = unknown;
};
Tally tally_peers(const Comparison& comparison);
Tally tally_earlier(const Comparison& comparison);

/// How far the time per byte moved differs between sizes beyond the cache, at worst; only of cases
/// whose multiply-adds grow as their bytes do. Nothing where no case has two such sizes.
struct Flatness {
  double factor = 1;
  std::string text;  // "act_silu fwd f32, n 4096 to 32768"
};
std::optional<Flatness> flatness_of(const Comparison& comparison);

/// "jax_jit, torch (jax 0.10.2, torch 2.15.0)": the peers that a row is compared with.
std::string names_of_peers(const Comparison& comparison);

/// How it stands, in one sentence for each thing that is compared with; with the limits of the
/// machine where that is nothing.
std::string how_it_stands(const Comparison& comparison);

/// The tables that bench/compare prints. Throw where nothing has a partner.
void print_peers(const Comparison& comparison);
void print_earlier(const Comparison& comparison);

}  // namespace quipu::bench::report
