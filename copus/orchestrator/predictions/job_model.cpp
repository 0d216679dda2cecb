#include "copus/orchestrator/predictions/job_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "copus/base/error.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/measured/accumulation_time.h"
#include "copus/performance/memory.h"
#include "copus/performance/relayout_forecast.h"
#include "copus/performance/step_time.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

namespace {

// Bytes per second that one core copies, which counts if ranks share a machine.
constexpr double copied_bytes_per_second = 4e9;

RelayoutForecast relayout_forecast(const RunConfig& config) {
  const PredictedJob job = predicted_job(config);
  ClusterDescription cluster = config.cluster.description;
  const bool spans_machines =
      std::min(cluster.within_node.bytes_per_second, cluster.between_nodes.bytes_per_second) > 0 &&
      config.parallel.world_size() > cluster.ranks_per_node;
  const bool are_links_used = config.cluster.clock != ClockKind::real || spans_machines;
  // Ranks on CPUs open no communicators, even if the description is of GPUs.
  if (!config.cluster.is_modelled() && processor_of(config) == Processor::cpu) cluster.communicators = {};
  return {job.model, job.sequence_length, std::move(cluster), training_system_of(config),
          are_links_used ? 0 : copied_bytes_per_second};
}

std::unique_ptr<StepTimeModel> step_time_model(const RunConfig& config) {
  const PredictedJob job = predicted_job(config);
  return std::make_unique<StepTimeModel>(job.model, job.sequence_length, config.cluster.as_timed(),
                                         training_system_of(config));
}

// The model of a job that Copus trains. Each part is made on first use, because the cluster's description may suffice
// for some parts only.
class OwnJob : public JobModel {
 public:
  explicit OwnJob(RunConfig config) : config_(std::move(config)) {}

  std::optional<std::string> infeasible_reason(const Configuration& configuration) const override {
    if (auto reason = copus::infeasible_reason(config_, configuration)) return reason;
    const PredictedJob job = predicted_job(config_);
    return cut_below_unit(job.model, configuration.strategy, job.sequence_length,
                          optimizer_slots(config_.optimizer.kind));
  }

  std::optional<std::string> out_of_memory_reason(const Configuration& configuration) override {
    return copus::out_of_memory_reason(
        memory().predict(configuration),
        memory_of_rank(config_.cluster.description, configuration.strategy.world_size()));
  }

  double memory_bytes(const Configuration& configuration) override {
    return memory().predict(configuration).parts.total();
  }

  StepTimeParts predict_step(const Configuration& configuration) override {
    if (!time_) time_ = step_time_model(config_);
    return time_->predict(configuration);
  }

  FactorPrior prior() const override { return {}; }

  PerformanceTable table(const Knowledge& known, int64_t ranks) override {
    return predicted_table(config_, known, ranks);
  }

  double move_seconds(const ParallelStrategy& from, const ParallelStrategy& to) override {
    if (!moves_) moves_.emplace(relayout_forecast(config_));
    return moves_->seconds(from, to);
  }

  bool is_finite(const Observation& step) const override {
    return std::isfinite(step.loss) && std::isfinite(step.grad_norm);
  }

  // On the modelled clock nothing has to warm up: a resumed run decides as if it had never been interrupted.
  bool warms_up() const override { return !config_.cluster.is_modelled(); }

  bool may_lack_choice() const override { return false; }

 private:
  MemoryModel& memory() {
    if (!memory_) memory_.emplace(memory_model_of(config_));
    return *memory_;
  }

  RunConfig config_;
  std::optional<MemoryModel> memory_;
  std::unique_ptr<StepTimeModel> time_;
  std::optional<RelayoutForecast> moves_;
};

// The model of a job that another program trains. The job's layout and micro-batch are fixed and fit into memory, so
// only its batch can be chosen. The job need not report its loss.
class AdvisedJobModel : public JobModel {
 public:
  AdvisedJobModel(AdvisedConfig config, AccumulationTime time) : config_(std::move(config)), time_(time) {}

  std::optional<std::string> infeasible_reason(const Configuration& configuration) const override {
    const Configuration own = configuration_of(config_);
    if (configuration.strategy != own.strategy || configuration.micro_batch != own.micro_batch) {
      return concat(to_string(configuration), " has another layout or micro-batch than the program that trains");
    }
    return copus::infeasible_reason(config_, configuration);
  }

  std::optional<std::string> out_of_memory_reason(const Configuration& /*configuration*/) override {
    return std::nullopt;
  }

  double memory_bytes(const Configuration& /*configuration*/) override { return 0; }

  StepTimeParts predict_step(const Configuration& configuration) override { return time_.predict(configuration); }

  FactorPrior prior() const override { return accumulation_prior; }

  PerformanceTable table(const Knowledge& known, int64_t /*ranks*/) override {
    const Knowledge knowledge = known.under(prior());
    const Configuration own = configuration_of(config_);
    PerformanceTable table;
    for (const int64_t batch : batches_of(config_)) {
      Configuration configuration = own;
      configuration.global_batch = batch;
      if (infeasible_reason(configuration) || may_be_blind(configuration, own)) continue;
      const StepTimeParts parts = time_.predict(configuration);
      table.cells.push_back({.configuration = configuration,
                             .parts = parts,
                             .memory = {},
                             .step = knowledge.correct(configuration, parts),
                             .measured_steps = knowledge.measured_steps(configuration)});
    }
    return table;
  }

  double move_seconds(const ParallelStrategy& /*from*/, const ParallelStrategy& /*to*/) override { return 0; }

  bool is_finite(const Observation& step) const override { return std::isfinite(step.grad_norm); }

  bool warms_up() const override { return true; }

  bool may_lack_choice() const override { return true; }

 private:
  // A step of one micro-batch shows the noise scale only if the adviser observes the gradients' reduction. If the user
  // lists a batch with one micro-batch, or begins in one, the adviser is assumed to observe the reduction.
  bool may_be_blind(const Configuration& configuration, const Configuration& own) const {
    return configuration.num_microbatches() == 1 && own.num_microbatches() > 1 && config_.adapt.global_batches.empty();
  }

  AdvisedConfig config_;
  AccumulationTime time_;
};

}  // namespace

bool predicts_steps(const RunConfig& config) { return is_speed_known(config.cluster.as_timed()); }

bool predicts_steps(const AnyConfig& config) {
  const auto* own = std::get_if<RunConfig>(&config);
  return !own || predicts_steps(*own);
}

std::unique_ptr<JobModel> job_model_of(const RunConfig& config) { return std::make_unique<OwnJob>(config); }

std::unique_ptr<JobModel> job_model_of(const AnyConfig& config, const Knowledge& known) {
  if (const auto* own = std::get_if<RunConfig>(&config)) return job_model_of(*own);
  const std::optional<AccumulationTime> time = AccumulationTime::of(known);
  if (!time) {
    throw UserError("no step of the job was measured, and nothing else says how long steps of another program take");
  }
  return std::make_unique<AdvisedJobModel>(std::get<AdvisedConfig>(config), *time);
}

}  // namespace copus
