#include "copus/orchestrator/policies/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "copus/base/error.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/policies.h"
#include "copus/record/batch_worth.h"

namespace copus {

std::string why_batch_is_held(SchedulePhase phase) {
  return concat("the learning rate's schedule is in its phase \"", to_string(phase),
                "\", in which adapt.hold_in keeps the batch");
}

std::unique_ptr<Policy> make_policy(const JobConfig& config, std::string_view file_text) {
  const AdaptConfig& adapt = config.adapt;
  switch (adapt.policy) {
    case PolicyKind::none:
      break;
    case PolicyKind::copus:
      return make_goodput_policy(config, std::nullopt);
    case PolicyKind::oracle:
      return make_goodput_policy(config, parse_noise_trace(file_text, adapt.file));
    case PolicyKind::copus_paper:
      return make_paper_policy(config);
    case PolicyKind::fixed:
    case PolicyKind::static_best:
    case PolicyKind::cbs_pessimistic:
    case PolicyKind::cbs_optimistic:
    case PolicyKind::olmo:
    case PolicyKind::norm_test:
    case PolicyKind::ddp_norm:
    case PolicyKind::fsdp_norm:
      return make_batch_policy(config);
    case PolicyKind::steps:
    case PolicyKind::seesaw:
    case PolicyKind::late_switch:
      return make_schedule_policy(config);
    case PolicyKind::cona:
      return make_cona_policy(config);
    case PolicyKind::script:
      return make_script_policy(config, file_text);
  }
  fail_check("a policy", __FILE__, __LINE__, concat("adapt.policy \"", to_string(adapt.policy), "\""));
}

Choice BaselinePolicy::choose(const Situation& situation) {
  Choice choice = decide(situation);
  choice.predicted_gain = std::numeric_limits<double>::quiet_NaN();
  if (situation.candidates.empty()) return choice;
  const GoodputRanking ranking(config_, believed_noise(situation.latest), situation);
  choice.best = ranking.best();
  const Configuration& wanted = choice.target.value_or(choice.best.front().configuration);
  if (find_candidate(situation.candidates, wanted) != nullptr) choice.predicted_gain = ranking.gain_of(wanted);
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

Choice BaselinePolicy::to_batch(const Situation& situation, double batch, const std::string& why) {
  return to_batch(situation, batch, layout_is(situation.current.strategy), why);
}

Choice BaselinePolicy::to_batch(const Situation& situation, double batch, const CandidateFilter& layout,
                                const std::string& why) {
  const Candidate* candidate = fastest_near(situation, batch, layout);
  if (candidate == nullptr) return hold(concat(why, ", but the layout has no candidate"));
  const Configuration& nearest = candidate->configuration;
  const bool is_exact = static_cast<double>(nearest.global_batch) == batch;
  const std::string said =
      is_exact ? why : concat(why, "; the nearest feasible batch of the layout is ", nearest.global_batch);
  if (nearest.strategy == situation.current.strategy && nearest.global_batch == situation.current.global_batch) {
    return hold(said);
  }
  return move(nearest, said);
}

double BaselinePolicy::critical_batch_in(const Situation& situation) const {
  return BatchWorth(config_).critical_batch(believed_noise(situation.latest).value,
                                            static_cast<double>(situation.latest.consumed_samples));
}

std::optional<Choice> BaselinePolicy::dwell(const Situation& situation) const {
  const std::optional<std::string> why = dwell_reason(config_, situation);
  return why ? std::optional(hold(*why)) : std::nullopt;
}

const Candidate* find_candidate(const std::vector<Candidate>& candidates, const Configuration& configuration) {
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Candidate& c) { return c.configuration == configuration; });
  return found == candidates.end() ? nullptr : &*found;
}

CandidateFilter layout_is(const ParallelStrategy& strategy) {
  return [strategy](const Candidate& candidate) { return candidate.configuration.strategy == strategy; };
}

const Candidate* fastest_near(const Situation& situation, double batch, const CandidateFilter& allowed) {
  const Candidate* best = nullptr;
  double best_distance = 0;
  for (const Candidate& candidate : situation.candidates) {
    if (!allowed(candidate)) continue;
    const double distance = std::abs(std::log(static_cast<double>(candidate.configuration.global_batch) / batch));
    const bool nearer =
        best == nullptr || distance < best_distance ||
        (distance == best_distance && candidate.configuration.global_batch < best->configuration.global_batch);
    const bool faster = best != nullptr && candidate.configuration.global_batch == best->configuration.global_batch &&
                        candidate.step_seconds < best->step_seconds;
    if (!nearer && !faster) continue;
    best = &candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace copus
