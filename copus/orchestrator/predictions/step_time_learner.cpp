#include "copus/orchestrator/predictions/step_time_learner.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/performance/training_system.h"

namespace copus {

namespace {

std::string describe(const Corrected& step) {
  return concat(format_number("%.3g s", step.seconds), " give or take ",
                format_number("%.0f %%", 100 * step.relative_deviation));
}

TrainingSystem system_of(const RunConfig& config, bool is_bf16, Processor processor) {
  const OptimizerKind optimizer = config.optimizer.kind;
  TrainingSystem system = is_bf16 ? copus_in_bf16(processor, optimizer) : copus_in_fp32(processor, optimizer);
  TrainingSystem::WholeMatrices& matrices = system.whole_matrices;
  if (config.noise_scale.dual_interval > 0) {
    matrices.are_exchanged = true;
    system.measures_dual_norms = true;
  }
  if (needs_whole_matrices(optimizer)) {
    const MuonSettings& muon = config.optimizer.muon;
    matrices.newton_schulz_steps = muon.newton_schulz_steps;
    if (muon.newton_schulz_precision != Precision::automatic) {
      matrices.element_bytes = muon.newton_schulz_precision == Precision::bf16 ? 2 : 4;
    }
  }
  system.memory.communicators = config.cluster.description.communicators;
  if (config.data.masks_across_documents()) system.document_length = config.data.document_length;
  return system;
}

}  // namespace

Processor processor_of(const RunConfig& config) {
  return config.execution.device == "cpu" ? Processor::cpu : Processor::gpu;
}

TrainingSystem training_system_of(const RunConfig& config) {
  const Precision precision = predicted_job(config).precision;
  COPUS_CHECK(precision != Precision::automatic, "not resolved");
  const bool is_bf16 = precision == Precision::bf16;
  // On the modelled clock, the processor that `copus plan` predicts for.
  const Processor planned = is_bf16 ? Processor::gpu : Processor::cpu;
  return system_of(config, is_bf16, config.cluster.is_modelled() ? planned : processor_of(config));
}

TrainingSystem executed_system_of(const RunConfig& config) {
  return system_of(config, config.execution.precision == Precision::bf16, processor_of(config));
}

MemoryModel memory_model_of(const RunConfig& config) {
  const PredictedJob job = predicted_job(config);
  return {job.model, job.sequence_length, training_system_of(config)};
}

StepTimeLearner::StepTimeLearner(const RunConfig& config, const Configuration& initial, const Knowledge& known)
    : StepTimeLearner(job_model_of(config), initial, known) {}

StepTimeLearner::StepTimeLearner(std::shared_ptr<JobModel> job, const Configuration& initial, const Knowledge& known)
    : job_(std::move(job)),
      configuration_(initial),
      parts_(job_->predict_step(initial)),
      known_before_(known.under(job_->prior())),
      expected_at_first_(known_before_.correct(configuration_, parts_)),
      expected_(expected_at_first_) {}

// Learns at once from each of the first steps, which add the most information. Later it waits for a whole measurement.
// Learning takes longer with more measured configurations: with hundreds of them, learning from every step would slow
// down short steps.
void StepTimeLearner::add(double step_seconds) {
  if (++steps_ <= warm_up_steps) return;
  window_.push_back(step_seconds);
  const bool complete = std::ssize(window_) == steps_per_measurement;
  if (steps_ > warm_up_steps + steps_per_measurement && !complete) return;
  Knowledge known = knowledge();
  expected_ = known.correct(configuration_, parts_);
  ++revision_;
  if (!complete) return;
  known_before_ = std::move(known);
  window_.clear();
}

void StepTimeLearner::change_configuration(const Configuration& configuration) {
  begin_anew();
  configuration_ = configuration;
  parts_ = job_->predict_step(configuration);
  expected_at_first_ = expected_ = known_before_.correct(configuration_, parts_);
}

void StepTimeLearner::begin_warm_up() { begin_anew(); }

void StepTimeLearner::begin_anew() {
  known_before_ = knowledge();
  window_.clear();
  steps_ = 0;
  ++revision_;
}

void StepTimeLearner::visit_state(StateValues& values) {
  values(configuration_, expected_at_first_, expected_, steps_, revision_, window_);
  values.visit_knowledge(known_before_, job_->prior());
  parts_ = job_->predict_step(configuration_);
}

Knowledge StepTimeLearner::knowledge(int64_t open_steps) const {
  if (open_steps == 0) return known_before_;
  const std::vector<double> seconds(window_.begin(), window_.begin() + open_steps);
  return observe(known_before_, configuration_, parts_, measurement_of(seconds));
}

std::string StepTimeLearner::introduction() const { return describe(expected_); }

std::optional<std::string> StepTimeLearner::conclusion() const {
  if (counted_steps() == 0) return std::nullopt;
  const Knowledge known = knowledge();
  const MeasuredCell& cell = known.cells().at(configuration_);
  return concat(format_number("%.3g s", cell.seconds()), " (median of ", cell.steps(), "), predicted at first ",
                describe(expected_at_first_), ", now ", describe(known.correct(configuration_, parts_)), ".");
}

}  // namespace copus
