#include "copus/orchestrator/learning_rate/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "copus/base/error.h"

namespace copus {

namespace {

// Converts a length into a share of a run of `total_tokens`. Lengths below 1 are shares already, others are tokens.
double as_share(double length, double total_tokens) { return length < 1 ? length : length / total_tokens; }

}  // namespace

LearningRate::LearningRate(const OptimizerConfig& optimizer, const TrainConfig& train)
    : optimizer_(optimizer),
      total_tokens_(static_cast<double>(limit_in_tokens(train))),
      total_seconds_(total_tokens_ > 0 ? 0 : train.max_seconds) {
  if (total_tokens_ == 0 && total_seconds_ <= 0) {
    throw UserError("train: the run has no end: set train.max_steps, train.max_tokens or train.max_seconds");
  }
  const bool decays = optimizer.schedule == LearningRateSchedule::wsd;
  if (decays && optimizer.decay_tokens >= 1 && total_tokens_ == 0) {
    throw UserError(concat("optimizer.decay_tokens = ", optimizer.decay_tokens,
                           ": a run that is limited by train.max_seconds alone does not know its last tokens in "
                           "advance; give a share of the run below 1, such as 0.2, or set train.max_tokens"));
  }
  if (total_tokens_ == 0 && optimizer.warmup_tokens >= 1) return;  // the warm-up is clocked in tokens until it is over
  const double warmup = as_share(optimizer.warmup_tokens, total_tokens_);
  const double decay = decays ? as_share(optimizer.decay_tokens, total_tokens_) : 0;
  if (warmup + decay > 1) {
    throw UserError(concat("optimizer.warmup_tokens = ", optimizer.warmup_tokens,
                           decays ? concat(" and optimizer.decay_tokens = ", optimizer.decay_tokens, " are") : " is",
                           " longer than the run",
                           total_tokens_ > 0 ? concat(" of ", limit_in_tokens(train), " tokens") : "",
                           "; give shares of the run below 1, or train for longer"));
  }
}

double LearningRate::share(const RunProgress& progress) const {
  const double share =
      total_tokens_ > 0 ? static_cast<double>(progress.tokens) / total_tokens_ : progress.seconds / total_seconds_;
  return std::clamp(share, 0.0, 1.0);
}

// Share of the warm-up that is done, in [0, 1].
double LearningRate::warmup_share(const RunProgress& progress) const {
  const double length = optimizer_.warmup_tokens;
  if (length <= 0) return 1;
  const double done = length < 1 ? share(progress) : static_cast<double>(progress.tokens);
  return std::min(1.0, done / length);
}

// Share of the run that the final decay takes; 0 if there is none.
double LearningRate::decay_share() const {
  return optimizer_.schedule == LearningRateSchedule::wsd ? as_share(optimizer_.decay_tokens, total_tokens_) : 0;
}

SchedulePhase LearningRate::phase(const RunProgress& progress) const {
  if (warmup_share(progress) < 1) return SchedulePhase::warm_up;
  return 1 - share(progress) < decay_share() ? SchedulePhase::decay : SchedulePhase::main;
}

double LearningRate::at(const RunProgress& progress) const {
  const double warm = warmup_share(progress);
  if (warm < 1) return optimizer_.lr * warm;

  const double now = share(progress);
  const double floor = optimizer_.lr * optimizer_.min_lr_ratio;
  switch (optimizer_.schedule) {
    case LearningRateSchedule::constant:
      return optimizer_.lr;
    case LearningRateSchedule::cosine: {
      // Cosine decay (Loshchilov & Hutter 2017, SGDR), one half period from the end of the warm-up to the end of the
      // run. If only time limits the run, the fraction of the run that a warm-up in tokens takes is unknown, and is
      // treated as 0.
      const bool is_unknown = optimizer_.warmup_tokens >= 1 && total_tokens_ == 0;
      const double begin = is_unknown ? 0 : as_share(optimizer_.warmup_tokens, total_tokens_);
      const double done = begin < 1 ? (now - begin) / (1 - begin) : 0;
      return floor + (optimizer_.lr - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
    }
    case LearningRateSchedule::wsd: {
      // Warm-up-stable-decay (Hu et al. 2024, MiniCPM) with a linear decay (Haegele et al. 2024).
      const double decay = decay_share();
      const double left = 1 - now;
      if (left >= decay) return optimizer_.lr;
      return floor + (optimizer_.lr - floor) * left / decay;
    }
  }
  COPUS_CHECK(false, "unknown learning rate schedule");
  return 0;
}

}  // namespace copus
