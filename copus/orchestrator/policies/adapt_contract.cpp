#include "copus/orchestrator/policies/adapt_contract.h"

#include <cmath>

#include "copus/base/error.h"
#include "copus/base/text/units.h"

namespace copus {

void AdaptContract::observe(const Observation& step, const Configuration& configuration) {
  if (last_ && *last_ != configuration) {
    speed_.restart();
    if (last_->strategy.world_size() != configuration.strategy.world_size()) {
      relayouts_ = 0;
      sentinel_.restart();
    } else {
      relayouts_ += last_->strategy != configuration.strategy;
    }
    if (configuration.global_batch > last_->global_batch) {
      if (sentinel_.begin_watch()) batch_before_ = last_->global_batch;
    } else if (configuration.global_batch < last_->global_batch) {
      sentinel_.restart();
    }
  }
  last_ = configuration;
  speed_.add(step.step_seconds);
  if (speed_.take_change()) {
    relayouts_ = 0;
    if (!counts_samples_) sentinel_.restart();
  }
  seconds_ += step.step_seconds;
  const double place = counts_samples_ ? static_cast<double>(step.consumed_samples) : seconds_;
  if (place > 0 && std::isfinite(step.loss)) sentinel_.add(place, step.loss);
}

std::optional<std::string> AdaptContract::why_too_many(int64_t relayouts) const {
  if (allows(relayouts)) return std::nullopt;
  return concat("of ", counted(adapt_.most_relayouts, "re-layout"), " (adapt.most_relayouts) ", relayouts_,
                " have been made", relayouts > 1 ? ", and a try may need one back" : "");
}

std::optional<AdaptContract::Breach> AdaptContract::breach() const {
  constexpr double deviations = 2;
  if (adapt_.advise) return std::nullopt;
  const std::optional<LossSentinel::Excess> excess = sentinel_.excess();
  if (!excess || !(excess->nats - adapt_.loss_contract > deviations * excess->deviation)) return std::nullopt;
  return Breach{batch_before_, *excess};
}

std::string AdaptContract::describe(const Breach& breach) const {
  return concat("the loss is ", format_number("%.3g", breach.excess.nats),
                " nats above its forecast from the batch of ", breach.batch_before, ", give or take ",
                format_number("%.2g", breach.excess.deviation), ", and adapt.loss_contract allows ",
                format_number("%.3g", adapt_.loss_contract));
}

void AdaptContract::forbid(int64_t batch, int64_t consumed_samples) { forbidden_ = {batch, 2 * consumed_samples}; }

std::optional<std::string> AdaptContract::why_forbidden(int64_t batch, int64_t consumed_samples) const {
  if (!forbidden_ || batch < forbidden_->first || consumed_samples >= forbidden_->second) return std::nullopt;
  return concat("the loss was too high in a batch of ", forbidden_->first,
                " (adapt.loss_contract), and no batch is as large until ", forbidden_->second, " samples");
}

void AdaptContract::visit_state(StateValues& values) {
  bool counted_samples = counts_samples_;
  values(counted_samples, last_, relayouts_, speed_, sentinel_, seconds_, batch_before_, forbidden_);
  if (counted_samples != counts_samples_) sentinel_.restart();  // the run was resumed with another objective
}

}  // namespace copus
