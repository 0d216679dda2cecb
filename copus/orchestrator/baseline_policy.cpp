#include "copus/orchestrator/baseline_policy.h"

#include "copus/base/error.h"
#include "copus/orchestrator/goodput_ranking.h"

namespace copus {

Choice BaselinePolicy::choose(const Situation& situation) {
  const GoodputRanking ranking(config_, believed_noise(situation.latest), situation);
  Choice choice = decide(situation);
  choice.best = ranking.best();
  choice.critical_batch = ranking.critical_batch();
  choice.predicted_gain = ranking.gain_of(choice.target.value_or(choice.best.front().configuration));
  return choice;
}

Choice BaselinePolicy::hold(const std::string& why) {
  Choice choice;
  choice.reason = "holds: " + why;
  return choice;
}

Choice BaselinePolicy::move(const Configuration& target, const std::string& why) {
  Choice choice;
  choice.target = target;
  choice.reason = concat(why, ": to ", to_string(target));
  return choice;
}

std::optional<Choice> BaselinePolicy::dwell(const Situation& situation) const {
  const std::optional<std::string> why = dwell_reason(config_, situation);
  return why ? std::optional(hold(*why)) : std::nullopt;
}

}  // namespace copus
