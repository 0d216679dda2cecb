// The rule of COPUS as published (Sakip et al., arXiv 2604.26687). It moves to the configuration with the highest
// throughput x statistical efficiency x sqrt(B) at the measured noise scale, if this product is at least 10 % higher
// than in the current configuration. The learning rate follows the square root of the batch without a cap
// (rate_rule_of).
#include <optional>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/policies.h"

namespace copus {

namespace {

constexpr double published_threshold = 0.1;

// Goodput contains the paper's factor sqrt(B) if alpha = 1/2 and the rate follows sqrt(B / B_ref). The critical batch
// is a constant times the noise scale, 2 by default as in the paper.
JobConfig as_published(JobConfig config) {
  config.adapt.alpha = 0.5;
  config.noise_scale.critical_updates = 0;
  config.noise_scale.critical_batches.clear();
  return config;
}

class PaperPolicy : public Policy {
 public:
  explicit PaperPolicy(JobConfig config) : config_(as_published(std::move(config))) {}

  Choice choose(const Situation& situation) override {
    const NoiseBelief noise = believed_noise(situation.latest);
    const GoodputRanking ranking(config_, noise, situation);
    Choice choice;
    choice.best = ranking.best();
    const Configuration& best = choice.best.front().configuration;
    choice.predicted_gain = ranking.gain_of(best);
    const std::string what = concat("throughput x efficiency x sqrt(B) ", percent(choice.predicted_gain));
    if (const std::optional<std::string> why = dwell_reason(config_, situation)) {
      choice.reason = "holds: " + *why;
    } else if (!noise.is_bounded()) {
      choice.reason = "holds: " + describe(noise);
    } else if (choice.predicted_gain < published_threshold) {
      choice.reason = concat("holds: ", what, ", less than ", percent(published_threshold));
    } else {
      choice.target = best;
      choice.reason = concat(what, ": to ", to_string(best));
    }
    return choice;
  }

 private:
  JobConfig config_;
};

}  // namespace

std::unique_ptr<Policy> make_paper_policy(const JobConfig& config) { return std::make_unique<PaperPolicy>(config); }

}  // namespace copus
