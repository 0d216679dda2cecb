// Holds the true values of one simulated training along its progress: the noise scale and the statistical efficiency of
// batches. They are constant within intervals of progress, so that the seconds of a run, and of the best run in
// hindsight, can be computed exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/simulate/worth.h"
#include "copus/statistics/learning_rate_scaling.h"

namespace copus {

// The true values in one interval of a training's progress.
struct TruthPiece {
  double begin = 0;             // in samples of a vanishing batch (B -> 0)
  double noise_scale = 1;       // phi in samples, at the learning rate of the reference batch
  double critical_batch = 1;    // for worth_of, in samples
  double maturity = 0;          // for worth_of
  double squared_gradient = 1;  // |G|^2
};

// The true gain from the larger learning rate of a larger batch. The statistical efficiency is multiplied by the rate's
// factor to the power 2 alpha, as in Goodput (statistics/efficiency.h). The factor follows `rule` up to the true
// critical batch; larger rates gain no more.
struct RateGain {
  double alpha = 0;
  RateRule rule = {};
};

class Truth {
 public:
  // Takes consecutive intervals, the first beginning at 0; the last one has no end.
  Truth(WorthShape shape, std::vector<TruthPiece> pieces, const RateGain& gain = {});

  const std::vector<TruthPiece>& pieces() const { return pieces_; }
  // Returns the end of an interval; infinite for the last one.
  double end_of(size_t piece) const;
  // Returns the worth of a sample in this batch within an interval, including the gain from the learning rate.
  double worth(int64_t batch, size_t piece) const;

  // Returns the samples that a batch needs from the beginning to reach this progress.
  double samples_to(double progress, int64_t batch) const;

 private:
  WorthShape shape_;
  std::vector<TruthPiece> pieces_;
  RateGain gain_;
};

// The path of a training through the intervals.
class TruthWalk {
 public:
  explicit TruthWalk(const Truth& truth) : truth_(&truth) {}

  double progress() const { return progress_; }
  // Returns the current interval.
  const TruthPiece& piece() const { return truth_->pieces()[piece_]; }
  // Returns the worth of a sample in this batch within the current interval.
  double worth(int64_t batch) const { return truth_->worth(batch, piece_); }

  // Advances by `samples` samples in this batch. Returns the number of samples after which the progress reaches
  // `target`, or `samples` if it does not.
  double advance(double samples, int64_t batch, double target);

 private:
  const Truth* truth_;
  size_t piece_ = 0;
  double progress_ = 0;
};

}  // namespace copus
