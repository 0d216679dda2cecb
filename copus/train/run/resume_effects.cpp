#include "copus/train/run/resume_effects.h"

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/learning_rate/learning_rate.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/train/optimizer/update_rule.h"

namespace copus {

namespace {

std::string describe_end(const TrainConfig& limits) {
  const int64_t tokens = limit_in_tokens(limits);
  std::string text;
  if (tokens > 0) text = concat("after ", tokens, " tokens");
  if (limits.max_seconds > 0)
    text += concat(tokens > 0 ? " or " : "", "after ", format_duration(limits.max_seconds), " of training");
  return text;
}

}  // namespace

std::vector<std::string> describe_resume_effects(const RunConfig& then, const RunConfig& now,
                                                 const TrainingState& state, const Configuration& start) {
  std::vector<std::string> lines;
  const std::string end = describe_end(now.train), old_end = describe_end(then.train);
  if (end != old_end) lines.push_back(concat("the run now ends ", end, " (was ", old_end, ")"));

  const RunProgress here{state.consumed_tokens, state.elapsed_seconds};
  const LearningRate before(then.optimizer, then.train), after(now.optimizer, now.train);
  const auto percent = [&](const LearningRate& rate) { return format_number("%.3g %%", 100 * rate.share(here)); };
  if (before.share(here) != after.share(here)) {
    lines.push_back(concat(percent(after), " of the run is now done (was ", percent(before), ")"));
  }
  const bool is_same_batch = state.configuration.global_batch == start.global_batch;
  const double factor = is_same_batch ? state.rate_factor : initial_rate_factor(now, start.global_batch);
  const double old_rate = before.at(here) * state.rate_factor, rate = after.at(here) * factor;
  if (rate != old_rate) {
    const auto text = [](double value) { return format_number("%.4g", value); };
    const auto rule = make_update_rule(now);
    const auto old_batch = static_cast<double>(state.configuration.global_batch);
    const auto batch = static_cast<double>(start.global_batch);
    const bool shrinks = batch < old_batch && rule->rate_factor(rule->after_update(state.optimizer, batch)) < 1;
    lines.push_back(concat("the learning rate at this point is now ", text(rate), " (was ", text(old_rate), ")",
                           shrinks ? ", and lower for some steps, since the batch shrinks" : ""));
  }
  return lines;
}

}  // namespace copus
