// How counts grow, as in predict.h: least squares over the terms that the samples tell apart.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "predict.h"
#include "quipu/core/error.h"

namespace quipu::bench {
using namespace detail;
namespace {

using Column = std::vector<double>;

constexpr std::size_t squares = 4, plain_terms = 5;  // then the blocks of each launch

double term(std::size_t which, double tokens, double units, const CallCounts& cut) {
  switch (which) {
    case 0: return 1;
    case 1: return tokens;
    case 2: return units;
    case 3: return tokens * units;
    case squares: return tokens * tokens;
    default: return cut[which - plain_terms].blocks;
  }
}

constexpr std::pair<Count, Count> gaps[] = {{Count::again_in_block, Count::gap_in_block},
                                            {Count::again_shared, Count::gap_shared},
                                            {Count::again_across, Count::gap_across}};

double dot(const Column& a, const Column& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

Growth::Growth(std::vector<Sample> samples, Work work) : samples_(std::move(samples)) {
  check(samples_.size() >= 2, "growth: wanted two samples or more, got ", samples_.size());
  for (const Sample& s : samples_) {
    check(same_kernels(s.counts, samples_[0].counts), "growth: the samples run different kernels");
  }
  for (std::size_t which = 0; which < plain_terms + samples_[0].counts.size(); ++which) {
    if (which == squares && work == Work::tokens) continue;
    Column rest;
    for (const Sample& s : samples_) rest.push_back(term(which, s.tokens, s.units, s.counts));
    const double size = std::sqrt(dot(rest, rest));
    Column parts;  // of the earlier columns in this one
    for (const Column& earlier : orthogonal_) {
      parts.push_back(dot(earlier, rest));
      for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= parts.back() * earlier[i];
    }
    // Numbers of blocks are rounded up, so a little that is left of them tells nothing.
    const double left = std::sqrt(dot(rest, rest)), least = which < plain_terms ? 1e-6 : 0.02;
    if (!(left > least * size)) continue;
    for (double& value : rest) value /= left;
    parts.push_back(left);
    used_.push_back(which);
    orthogonal_.push_back(std::move(rest));
    triangular_.push_back(std::move(parts));
  }
}

std::vector<double> Growth::weights(double tokens, double units, const CallCounts& cut) const {
  Column result(samples_.size());
  Column solved;
  for (std::size_t k = 0; k < used_.size(); ++k) {
    double value = term(used_[k], tokens, units, cut);
    for (std::size_t i = 0; i < k; ++i) value -= triangular_[k][i] * solved[i];
    solved.push_back(value / triangular_[k][k]);
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += solved[k] * orthogonal_[k][i];
  }
  return result;
}

CallCounts Growth::at(double tokens, double units, const CallCounts& cut) const {
  const Column weight = weights(tokens, units, cut);
  const auto grown = [&](const auto& value_of) {
    double sum = 0;
    for (std::size_t j = 0; j < samples_.size(); ++j)
      sum += weight[j] * value_of(samples_[j].counts);
    return std::max(0.0, sum);
  };
  CallCounts result = cut;
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t k = 0; k < result[i].values.size(); ++k) {
      result[i].values[k] = grown([&](const CallCounts& c) { return c[i].values[k]; });
    }
    for (const auto& pair : gaps) {
      const Count again = pair.first, gap = pair.second;
      const double sum = grown([&](const CallCounts& c) { return c[i][again] * c[i][gap]; });
      if (sums_of_gaps_ && result[i][again] > 0) result[i][gap] = sum / result[i][again];
    }
  }
  return result;
}

void Growth::choose_gaps(const Sample& other) {
  const auto missed = [&](bool sums) {
    sums_of_gaps_ = sums;
    const CallCounts fitted = at(other.tokens, other.units, other.counts);
    double sum = 0;
    for (std::size_t i = 0; i < fitted.size(); ++i) {
      for (const auto& [again, gap] : gaps) {
        sum += other.counts[i][again] * std::abs(fitted[i][gap] - other.counts[i][gap]);
      }
    }
    return sum;
  };
  const double by_mean = missed(false), by_sum = missed(true);
  sums_of_gaps_ = by_sum < by_mean;
}

double Growth::deviation_from(const Sample& other) const {
  if (!same_kernels(samples_[0].counts, other.counts)) return INFINITY;
  const CallCounts fitted = at(other.tokens, other.units, other.counts);
  double worst = 0;
  for (const Count c : {Count::read_bytes, Count::written_bytes, Count::sectors, Count::passes,
                        Count::mma_flops, Count::lane_bytes, Count::shared_lane_bytes}) {
    double missed = 0, all = 0;
    for (std::size_t i = 0; i < fitted.size(); ++i) {
      missed += std::abs(fitted[i][c] - other.counts[i][c]);
      all += other.counts[i][c];
    }
    constexpr double rounding = 1e-6;
    if (missed > rounding) worst = std::max(worst, all > 0 ? missed / all : INFINITY);
  }
  return worst;
}

bool Growth::knows(double tokens, double units, const CallCounts& cut) const {
  if (!same_kernels(samples_[0].counts, cut)) return false;
  const Column weight = weights(tokens, units, cut);
  for (std::size_t i = 0; i < cut.size(); ++i) {
    if (std::find(used_.begin(), used_.end(), plain_terms + i) != used_.end()) continue;
    double grown = 0;
    for (std::size_t j = 0; j < samples_.size(); ++j) {
      grown += weight[j] * samples_[j].counts[i].blocks;
    }
    if (!(std::abs(grown - cut[i].blocks) <= 0.02 * cut[i].blocks)) return false;
  }
  return true;
}

}  // namespace quipu::bench
