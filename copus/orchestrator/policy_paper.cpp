// The rule of COPUS as it is published (Sakip et al., arXiv 2604.26687): the configuration with the highest throughput
// x statistical efficiency x sqrt(B), at the noise scale as it is measured, if it is better by a tenth than the current
// one. The learning rate follows the square root of the batch without a cap (rate_rule_of).
#include <algorithm>
#include <string>
#include <utility>

#include "copus/base/error.h"
#include "copus/orchestrator/goodput_ranking.h"
#include "copus/orchestrator/policies.h"

namespace copus {

namespace {

constexpr double published_threshold = 0.1;

// With alpha = 1/2 and r = sqrt(B / B_ref), Goodput has the factor sqrt(B) of the paper.
RunConfig as_published(RunConfig config) {
  config.adapt.alpha = 0.5;
  return config;
}

class PaperPolicy : public BaselinePolicy {
 public:
  explicit PaperPolicy(RunConfig config) : BaselinePolicy(as_published(std::move(config))) {}

 private:
  Choice decide(const Situation& situation) override {
    if (const std::optional<Choice> dwelling = dwell(situation)) return *dwelling;
    const NoiseBelief noise = believed_noise(situation.latest);
    if (!noise.is_bounded()) return hold(describe(noise));
    const GoodputRanking ranking(config(), noise, situation);
    const Candidate& best = *std::max_element(situation.candidates.begin(), situation.candidates.end(),
                                              [&](const Candidate& a, const Candidate& b) {
                                                return ranking.gains_of(a).at_value < ranking.gains_of(b).at_value;
                                              });
    const double gain = ranking.gains_of(best).at_value;
    const std::string what = concat("throughput x efficiency x sqrt(B) ", percent(gain));
    if (gain < published_threshold) return hold(concat(what, ", less than ", percent(published_threshold)));
    return move(best.configuration, what);
  }
};

}  // namespace

std::unique_ptr<Policy> make_paper_policy(const RunConfig& config) { return std::make_unique<PaperPolicy>(config); }

}  // namespace copus
