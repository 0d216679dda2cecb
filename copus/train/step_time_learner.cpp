#include "copus/train/step_time_learner.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/performance/step_time.h"
#include "copus/performance/training_system.h"

namespace copus {

namespace {

// What the clock of the run lets the cluster's description say: teraflops_per_rank is of the virtual clock alone.
ClusterDescription cluster_as_timed(const ClusterConfig& cluster) {
  ClusterDescription timed = cluster.description;
  if (cluster.clock != ClockKind::virtual_time) timed.flops_per_second = 0;
  return timed;
}

StepTimeParts predict(const RunConfig& config) {
  COPUS_CHECK(config.train.precision != Precision::automatic, "not resolved");
  StepTimeModel model(config.model, config.train.sequence_length, cluster_as_timed(config.cluster),
                      config.train.precision == Precision::bf16 ? copus_in_bf16() : copus_in_fp32());
  return model.predict(configuration_of(config));
}

std::string describe(const Corrected& step) {
  return concat(format_number("%.3g s", step.seconds), " give or take ",
                format_number("%.0f %%", 100 * step.relative_deviation));
}

int64_t measured_steps(const Knowledge& knowledge) {
  int64_t steps = 0;
  for (const auto& [configuration, cell] : knowledge.cells()) steps += cell.steps();
  return steps;
}

}  // namespace

std::optional<StepTimeLearner> StepTimeLearner::of_run(const RunConfig& config,
                                                       const std::filesystem::path& own_profile) {
  const ClusterDescription cluster = cluster_as_timed(config.cluster);
  if (cluster.flops_per_second == 0 && cluster.device.matmul_flops_per_second == 0) {
    if (config.cluster.profile.empty()) return std::nullopt;
    throw UserError(concat("cluster.profile ", config.cluster.profile, " corrects predictions, and nothing is ",
                           "predicted where the cluster's description does not say how fast it computes; describe its ",
                           "device (matmul_teraflops), or leave the profile out"));
  }
  ProfileSubject subject =
      profile_subject(config.model, config.train.sequence_length, std::string(to_string(config.train.precision)),
                      config.cluster.description, config.cluster.clock);
  std::string grounds = "nothing was measured yet";
  const auto after = [](const Knowledge& knowledge, const std::string& path) {
    return concat("after ", measured_steps(knowledge), " steps in ", path);
  };
  if (!own_profile.empty() && std::filesystem::exists(own_profile)) {
    PerformanceProfile profile = read_profile(own_profile);
    const auto reason = difference(profile.subject, subject);
    if (!reason) {
      grounds = after(profile.knowledge, own_profile.string());
      return StepTimeLearner(config, std::move(subject), std::move(profile.knowledge), std::move(grounds));
    }
    grounds = concat("what was measured before does not count: ", *reason);
  }
  Knowledge known;
  if (!config.cluster.profile.empty()) {
    known = read_knowledge(config.cluster.profile, subject);
    grounds = after(known, config.cluster.profile);
  }
  return StepTimeLearner(config, std::move(subject), std::move(known), std::move(grounds));
}

StepTimeLearner::StepTimeLearner(const RunConfig& config, ProfileSubject subject, Knowledge known, std::string grounds)
    : subject_(std::move(subject)),
      configuration_(configuration_of(config)),
      parts_(predict(config)),
      known_before_(std::move(known)),
      grounds_(std::move(grounds)),
      expected_at_first_(known_before_.correct(configuration_, parts_)),
      expected_(expected_at_first_) {}

// Learning takes as long as many cells are known: of hundreds it would be felt beside quick steps. Only at first does
// every step say much that is new.
void StepTimeLearner::add(double step_seconds) {
  if (++steps_ <= warm_up_steps) return;
  window_.push_back(step_seconds);
  const bool complete = std::ssize(window_) == steps_per_measurement;
  if (steps_ > warm_up_steps + steps_per_measurement && !complete) return;
  Knowledge known = this->known();
  expected_ = known.correct(configuration_, parts_);
  if (!complete) return;
  known_before_ = std::move(known);
  window_.clear();
}

Knowledge StepTimeLearner::known() const {
  return window_.empty() ? known_before_ : observe(known_before_, configuration_, parts_, measurement_of(window_));
}

std::string StepTimeLearner::introduction() const { return concat(describe(expected_at_first_), "; ", grounds_); }

std::optional<std::string> StepTimeLearner::conclusion() const {
  if (steps_ <= warm_up_steps) return std::nullopt;
  const Knowledge known = this->known();
  const MeasuredCell& cell = known.cells().at(configuration_);
  return concat(format_number("%.3g s", cell.seconds()), " (median of ", cell.steps(), "), predicted at first ",
                describe(expected_at_first_), ", now ", describe(known.correct(configuration_, parts_)), ".");
}

}  // namespace copus
