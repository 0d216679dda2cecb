// CONA's rule (OSSS-KU/CONA, EMNLP 2026), as in its code. CONA doubles the batch, in the fastest layout for the new
// batch, as soon as this increases throughput / (batch + phi). It returns to the previous configuration once the
// average of phi has fallen in a hundred consecutive observations. CONA's own code takes phi from one rank, and
// compares predicted step times of the target with measured ones of the current configuration. Here, step times, phi
// and adapt.dwell_samples between moves are the same as for the other baselines.
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/policies.h"

namespace copus {

namespace {

constexpr double smoothing = 0.1;         // weight of the latest phi in the average
constexpr int64_t falls_to_return = 100;  // observations in a row

class ConaPolicy : public BaselinePolicy {
 public:
  using BaselinePolicy::BaselinePolicy;

  void observe(const Observation& observation, const Configuration&) override {
    if (!observation.noise_scale) return;
    const double before = average_.value_or(*observation.noise_scale);
    average_ = before + smoothing * (*observation.noise_scale - before);
    falls_ = *average_ < before ? falls_ + 1 : 0;
  }

  void visit_state(StateValues& values) override { values(average_, falls_, last_, earlier_); }

 private:
  // Keeps the configurations that the run has left, to return to them.
  void follow(const Configuration& current) {
    if (last_ && *last_ != current) {
      falls_ = 0;
      average_.reset();  // CONA runs each stage as a process with a new average
      if (!earlier_.empty() && earlier_.back() == current) {
        earlier_.pop_back();
      } else {
        earlier_.push_back(*last_);
      }
    }
    last_ = current;
  }

  Choice decide(const Situation& situation) override {
    follow(situation.current);
    if (const std::optional<Choice> dwelling = dwell(situation)) return *dwelling;
    if (falls_ >= falls_to_return && !earlier_.empty() &&
        find_candidate(situation.candidates, earlier_.back()) != nullptr) {
      return move(earlier_.back(),
                  concat("the average of the noise scale has fallen ", falls_, " observations in a row"));
    }
    if (!situation.latest.noise_scale) return hold("the noise scale is not known");
    const double phi = *situation.latest.noise_scale;
    const int64_t doubled = 2 * situation.current.global_batch;
    const Candidate* const fastest =
        fastest_near(situation, static_cast<double>(doubled),
                     [&](const Candidate& candidate) { return candidate.configuration.global_batch == doubled; });
    if (fastest == nullptr) return hold(concat("no candidate has batch ", doubled));
    const auto worth = [&](const Candidate& candidate) {
      return candidate.throughput() / (static_cast<double>(candidate.configuration.global_batch) + phi);
    };
    const double gain = worth(*fastest) / worth(current_candidate(situation)) - 1;
    const std::string what = concat("throughput / (batch + noise scale) at batch ", doubled, ", noise scale ",
                                    format_number("%.3g", phi), ": ", percent(gain));
    if (!(gain > 0)) return hold(what);
    return move(fastest->configuration, what);
  }

  std::optional<double> average_;
  int64_t falls_ = 0;
  std::optional<Configuration> last_;
  std::vector<Configuration> earlier_;
};

}  // namespace

std::unique_ptr<Policy> make_cona_policy(const JobConfig& config) { return std::make_unique<ConaPolicy>(config); }

}  // namespace copus
