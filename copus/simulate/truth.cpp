#include "copus/simulate/truth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "copus/base/error.h"

namespace copus {

Truth::Truth(WorthShape shape, std::vector<TruthPiece> pieces, const RateGain& gain)
    : shape_(shape), pieces_(std::move(pieces)), gain_(gain) {
  COPUS_CHECK(!pieces_.empty() && pieces_.front().begin == 0, pieces_.size());
  for (size_t i = 1; i < pieces_.size(); ++i) COPUS_CHECK(pieces_[i - 1].begin < pieces_[i].begin, i);
}

double Truth::end_of(size_t piece) const {
  return piece + 1 < pieces_.size() ? pieces_[piece + 1].begin : std::numeric_limits<double>::infinity();
}

double Truth::worth(int64_t batch, size_t piece) const {
  const TruthPiece& at = pieces_[piece];
  const auto samples = static_cast<double>(batch);
  const double worth = worth_of(shape_, samples, at.critical_batch, at.maturity);
  if (gain_.alpha == 0) return worth;
  return worth * std::pow(rate_factor(gain_.rule, samples, at.critical_batch), 2 * gain_.alpha);
}

double Truth::samples_to(double progress, int64_t batch) const {
  double samples = 0;
  for (size_t i = 0; i < pieces_.size() && pieces_[i].begin < progress; ++i) {
    samples += (std::min(progress, end_of(i)) - pieces_[i].begin) / worth(batch, i);
  }
  return samples;
}

double TruthWalk::advance(double samples, int64_t batch, double target) {
  double left = samples, needed = samples;
  while (left > 0) {
    const double worth = truth_->worth(batch, piece_), end = truth_->end_of(piece_);
    const bool leaves = progress_ + left * worth >= end;
    const double to = leaves ? end : progress_ + left * worth;
    if (progress_ < target && target <= to) needed = samples - left + (target - progress_) / worth;
    left = leaves ? left - (end - progress_) / worth : 0;
    progress_ = to;
    if (leaves) ++piece_;
  }
  return std::min(needed, samples);
}

}  // namespace copus
