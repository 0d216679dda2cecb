#include "copus/orchestrator/controller/switch_outcomes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/record/batch_worth.h"
#include "copus/statistics/student_t.h"

namespace copus {

namespace {

// A trend is fitted to at most this many of the latest losses, because the loss follows a straight line only for a
// short time.
constexpr size_t most_losses = 512;
constexpr int64_t least_losses = 8;
// This fraction of the steps after a switch is left out of the trend, because the loss may jump when the batch changes,
// and then recover (Merrill et al. 2025, arXiv 2505.23971).
constexpr double bump_share = 0.25;
// A median is taken of at most this many step times: no later step changes it much.
constexpr size_t most_step_seconds = 4096;

std::vector<LossPoint> without_bump(const std::deque<LossPoint>& losses) {
  const auto bump = static_cast<std::ptrdiff_t>(bump_share * static_cast<double>(losses.size()));
  return {losses.begin() + bump, losses.end()};
}

std::optional<LossTrend> significant_trend(const std::vector<LossPoint>& points) {
  if (std::ssize(points) < least_losses || points.front().elapsed_seconds == points.back().elapsed_seconds) {
    return std::nullopt;
  }
  const LossTrend trend = loss_trend(points);
  return trend.is_significant() ? std::optional(trend) : std::nullopt;
}

}  // namespace

bool LossTrend::is_significant() const {
  return -per_second > student_t_quantile(0.975, static_cast<double>(steps - 2)) * error;
}

LossTrend loss_trend(const std::vector<LossPoint>& points) {
  COPUS_CHECK(points.size() >= 3, points.size());
  const auto count = static_cast<double>(points.size());
  double mean_seconds = 0, mean_loss = 0;
  for (const LossPoint& point : points) {
    mean_seconds += point.elapsed_seconds / count;
    mean_loss += point.loss / count;
  }
  double seconds_squared = 0, products = 0, loss_squared = 0;
  for (const LossPoint& point : points) {
    const double seconds = point.elapsed_seconds - mean_seconds, loss = point.loss - mean_loss;
    seconds_squared += seconds * seconds;
    products += seconds * loss;
    loss_squared += loss * loss;
  }
  COPUS_CHECK(seconds_squared > 0);
  LossTrend trend;
  trend.per_second = products / seconds_squared;
  const double residual = std::max(0.0, loss_squared - trend.per_second * products);
  trend.error = std::sqrt(residual / (count - 2) / seconds_squared);
  trend.steps = std::ssize(points);
  return trend;
}

void SwitchOutcomes::observe(const Observation& observation, bool counts) {
  consumed_samples_ = observation.consumed_samples;
  // An edited log may lack the seconds of a step.
  if (std::isfinite(observation.elapsed_seconds)) losses_.push_back({observation.elapsed_seconds, observation.loss});
  if (losses_.size() > most_losses) losses_.pop_front();
  if (!open_ || !counts) return;
  if (step_seconds_.size() < most_step_seconds) step_seconds_.push_back(observation.step_seconds);
  if (observation.noise_scale) {
    noise_sum_ += *observation.noise_scale;
    ++noise_count_;
  }
}

void SwitchOutcomes::moved(const Promise& promise, int64_t consumed_samples, const Knowledge& knowledge) {
  interrupted(knowledge);
  open_ = promise;
  moved_at_ = consumed_samples;
}

void SwitchOutcomes::interrupted(const Knowledge& knowledge) {
  if (open_ && has_enough_steps()) conclude(knowledge);
  open_.reset();
  before_ = without_bump(losses_);
  losses_.clear();
  step_seconds_.clear();
  noise_sum_ = 0;
  noise_count_ = 0;
}

bool SwitchOutcomes::is_due() const { return !concluded_.empty() || is_complete(); }

std::vector<Realised> SwitchOutcomes::take(const Knowledge& knowledge) {
  if (is_complete()) conclude(knowledge);
  return std::exchange(concluded_, {});
}

bool SwitchOutcomes::has_enough_steps() const {
  return std::ssize(step_seconds_) >= StepTimeLearner::steps_per_measurement;
}

bool SwitchOutcomes::is_complete() const {
  return open_ && has_enough_steps() && consumed_samples_ - moved_at_ >= config_.adapt.dwell_samples;
}

void SwitchOutcomes::conclude(const Knowledge& knowledge) {
  const Promise promise = *std::exchange(open_, std::nullopt);
  Realised realised = promise.switched;
  realised.realised_step_seconds = quantile(step_seconds_, 0.5);

  const auto measured = knowledge.cells().find(realised.from);
  const double from_seconds =
      measured == knowledge.cells().end() ? promise.from_step_seconds : measured->second.seconds();
  const auto worth = [this](const Configuration& configuration, double seconds, double rate_factor) {
    const double phi = noise_sum_ / static_cast<double>(noise_count_);
    const BatchWorth by_run(config_);
    const double critical = by_run.critical_batch(phi, static_cast<double>(consumed_samples_));
    return by_run.goodput(configuration.global_batch, seconds, critical, rate_factor);
  };
  realised.realised_gain = std::numeric_limits<double>::quiet_NaN();
  if (noise_count_ > 0) {
    realised.realised_gain = worth(realised.to, realised.realised_step_seconds, promise.to_rate_factor) /
                                 worth(realised.from, from_seconds, promise.from_rate_factor) -
                             1;
  }

  const auto trend_before = significant_trend(before_), trend_after = significant_trend(without_bump(losses_));
  if (trend_before && trend_after) realised.progress_ratio = trend_after->per_second / trend_before->per_second;
  concluded_.push_back(realised);
}

}  // namespace copus
