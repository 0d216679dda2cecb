#include "copus/train/run/run_forecast.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/available_memory.h"
#include "copus/base/process/cores.h"
#include "copus/base/text/units.h"
#include "copus/data/dataset.h"
#include "copus/model/kernels/precision.h"
#include "copus/orchestrator/policies/adapt_forecast.h"
#include "copus/orchestrator/policies/starting_configuration.h"
#include "copus/orchestrator/predictions/candidates.h"
#include "copus/orchestrator/predictions/job_model.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/block_time.h"
#include "copus/performance/measured/machine.h"
#include "copus/performance/memory.h"
#include "copus/placement/matrix_shares.h"
#include "copus/record/batch_worth.h"
#include "copus/report/files/performance_profile.h"
#include "copus/statistics/busiest_share.h"
#include "copus/statistics/efficiency_belief.h"
#include "copus/train/run/device.h"
#include "copus/train/run/run_data.h"
#include "copus/train/run/run_output.h"
#include "copus/train/run/run_setup.h"
#include "copus/train/step/training_state.h"
#include "copus/train/trainer/modelled_job.h"

namespace copus {

namespace {

// docs/decisions/train.md gives the evidence for these numbers.
constexpr double certain_share = 0.9;                // fraction of the forecast that every run needs
constexpr double process_bytes = 100.0 * (1 << 20);  // of a rank's process, in addition to the forecast

// Returns the memory of the processes that train. On the modelled clock these processes train config.model, and not the
// model of the predicted job.
std::vector<MemoryParts> memory_by_pipeline_rank(const RunConfig& config, const Configuration& configuration) {
  MemoryModel model(config.model, config.train.sequence_length, executed_system_of(config));
  return model.predict_every_rank(executed_configuration(config, configuration));
}

// Sums the part of each rank's memory that `bytes` selects over all ranks.
template <typename Bytes>
double sum_over_ranks(RunConfig config, const Configuration& configuration, const Bytes& bytes) {
  if (config.execution.precision == Precision::automatic) {  // not chosen yet: assumes the smaller need
    config.execution.precision = Precision::bf16;
    const double in_bf16 = sum_over_ranks(config, configuration, bytes);
    config.execution.precision = Precision::fp32;
    return std::min(in_bf16, sum_over_ranks(config, configuration, bytes));
  }
  double sum = 0;
  for (const MemoryParts& parts : memory_by_pipeline_rank(config, configuration)) sum += bytes(parts);
  const ParallelStrategy layout = executed_configuration(config, configuration).strategy;
  return sum * static_cast<double>(layout.ranks_per_stage());
}

double bytes_of_all(const RunConfig& config, const Configuration& configuration) {
  return sum_over_ranks(config, configuration, [](const MemoryParts& parts) { return parts.total(); });
}

std::string what_fits(const RunConfig& config, const Configuration& configuration, double left) {
  const double state = sum_over_ranks(config, configuration, [](const MemoryParts& parts) {
    return parts.weights + parts.gradients + parts.optimizer;
  });
  if (state > left) {
    return concat("weights, gradients and the optimizer's state alone take ", format_bytes(state),
                  "; train a smaller model ([model] has ",
                  format_count(static_cast<double>(count_parameters(config.model))),
                  " parameters), share it out over more machines ([parallel]), or free memory or raise its limit "
                  "(ulimit -v)");
  }
  const auto fits = [&](const Configuration& other) {
    return !infeasible_reason(config.model, other, config.train.sequence_length) && bytes_of_all(config, other) <= left;
  };
  Configuration other = configuration;
  const int64_t sequences = configuration.global_batch / configuration.strategy.data_parallel;
  while (--other.micro_batch > 0) {
    if (sequences % other.micro_batch != 0) continue;
    if (fits(other)) return concat("train.micro_batch = ", other.micro_batch, " fits");
  }
  other.micro_batch = 1;
  other.strategy.recompute = Recompute::full;
  if (fits(other)) return "train.recompute = \"full\" with train.micro_batch = 1 fits";
  return "no train.micro_batch fits; take shorter sequences (train.sequence_length) or a smaller model";
}

// Resolves an automatic precision as the run will. If the device is a GPU that cannot be queried here, assumes bf16 and
// returns the reason.
std::optional<std::string> resolve(ExecutionConfig& execution) {
  try {
    execution.precision = resolve_precision(execution.precision, find_device(execution.device));
    return std::nullopt;
  } catch (const UserError& error) {
    if (!execution.device.starts_with("cuda")) throw;
    if (execution.precision == Precision::automatic) execution.precision = Precision::bf16;
    return error.what();
  }
}

// Describes the fraction of attention's work that remains with masked documents, and how unevenly it is spread over
// data-parallel ranks.
std::string describe_documents(const RunConfig& config, const Configuration& configuration,
                               const DocumentLengths& lengths) {
  const int64_t ranks = configuration.strategy.data_parallel;
  const auto sequence = static_cast<double>(config.train.sequence_length);
  const double attended = attended_length(training_system_of(config), config.train.sequence_length);
  // Only work within documents varies; reading whole blocks of keys adds equally to all sequences.
  const double deviation = lengths.deviation * std::min(1.0, lengths.of_a_token / attended);
  const double busiest = busiest_share(deviation, ranks, configuration.global_batch / ranks);
  return concat("a token's document has ", format_number("%.0f", config.data.document_length),
                " tokens on average; attention takes ", format_number("%.0f %%", 100 * attended / sequence),
                " of its full time",
                ranks > 1 ? concat(", and ", format_number("%.2f", busiest),
                                   " times as long as on average on the busiest data-parallel rank of a step")
                          : "");
}

// Describes how evenly ranks share Muon's matrices, on the pipeline rank with the most uneven distribution.
std::string describe_matrices(const RunConfig& config, const ParallelStrategy& strategy) {
  const std::vector<LayerRange> stages =
      balance_stages(config.model, config.train.sequence_length, strategy.num_stages());
  MatrixShares worst;
  for (int64_t rank = 0; rank < strategy.pipeline_parallel; ++rank) {
    MatrixShares shares = share_matrices(config.model, strategy, stages, rank);
    if (rank == 0 || shares.imbalance > worst.imbalance) worst = std::move(shares);
  }
  return concat(strategy.ranks_per_stage(), " ranks share the Newton-Schulz iterations of ", worst.matrices.size(),
                " matrices; the busiest rank does ", format_number("%.2f", worst.imbalance), " times the mean",
                worst.idle_ranks > 0 ? concat(", and ", worst.idle_ranks, " ranks own no matrix") : "");
}

void warn(const std::optional<std::string>& reason) {
  if (reason) std::cout << "warning    " << *reason << '\n' << std::flush;
}

// Returns the run's progress where it begins or resumes.
TrainingState state_at_start(const RunPlan& plan) {
  return plan.checkpoint ? parse_training_state(plan.checkpoint->training_state(), "training_state.json")
                         : TrainingState();
}

// Returns the seconds until tokens or time, whichever is first, end the run.
double seconds_to_end(const RunPlan& plan, double step_seconds) {
  const TrainConfig& train = plan.config.train;
  const TrainingState done = state_at_start(plan);
  double seconds = std::numeric_limits<double>::infinity();
  if (const int64_t tokens = limit_in_tokens(train); tokens > 0) {
    const auto tokens_a_step = static_cast<double>(plan.start.global_batch * train.sequence_length);
    seconds = std::ceil(static_cast<double>(tokens - done.consumed_tokens) / tokens_a_step) * step_seconds;
  }
  if (train.max_seconds > 0) seconds = std::min(seconds, train.max_seconds - done.elapsed_seconds);
  return std::max(0.0, seconds);
}

// Reports the time that adaptation may save and cost, if the next step takes `step` and `seconds_left` seconds remain.
void tell_adapting(const RunPlan& plan, const Knowledge& known, const Corrected& step, double seconds_left) {
  RunConfig config = plan.config;
  config.adapt.policy = PolicyKind::copus;  // forecasts this policy, whatever the run has
  const std::unique_ptr<JobModel> job = job_model_of(config);
  const Candidate current{plan.start, step.seconds, step.relative_deviation, 0, false, job->predict_step(plan.start)};
  const PerformanceTable table = job->table(known, plan.start.strategy.world_size());
  const double steps = seconds_left / step.seconds;
  const auto tokens_of_a_step = static_cast<double>(plan.start.global_batch * config.train.sequence_length);
  const TokensLeft tokens{static_cast<double>(state_at_start(plan).consumed_tokens), steps * tokens_of_a_step};
  const auto pause_seconds = [&](const ParallelStrategy& to) { return job->move_seconds(plan.start.strategy, to); };
  const std::vector<EfficiencyLaw> laws = laws_by_tokens(evidence_of(config.noise_scale), config.execution.seed);
  const AdaptForecast forecast =
      forecast_adapting(config, candidates_of(table, current, config), plan.start, tokens, pause_seconds, laws);
  std::cout << "adapting   may save, of this time:\n";
  for (const std::string& line : describe(forecast)) std::cout << "           " << line << '\n';
  std::cout << std::flush;
}

void tell_speed_and_time(const RunPlan& plan) {
  const auto known = knowledge_of_run(plan.config, plan.resume ? profile_path(plan) : std::filesystem::path());
  if (!known) {
    const double limit = plan.config.train.max_seconds;
    std::cout
        << "speed      not known: nothing says how fast this machine computes (copus profile --machine here.toml, "
        << "then --set cluster.config=here.toml)\n";
    if (limit > 0) std::cout << "ends       after at most " << format_duration(limit) << '\n';
    return;
  }
  const StepTimeLearner learner(plan.config, plan.start, known->profile.knowledge);
  const Corrected step = learner.expected();
  const double seconds_left = seconds_to_end(plan, step.seconds);
  const auto tokens = static_cast<double>(plan.start.global_batch * predicted_job(plan.config).sequence_length);
  std::cout << "speed      " << format_rate(tokens / step.seconds, "tokens") << ", a step " << learner.introduction()
            << "; " << known->grounds << "\nends       after " << format_duration(seconds_left) << '\n';
  if (seconds_left > 0) tell_adapting(plan, known->profile.knowledge, step, seconds_left);
}

}  // namespace

std::optional<std::string> check_memory(const RunConfig& config, const Configuration& configuration, double left) {
  const double needed = bytes_of_all(config, configuration);
  const auto ranks = static_cast<double>(num_training_ranks(config));
  if (needed + ranks * process_bytes <= left) return std::nullopt;
  const std::string reason = concat("the run needs ", format_bytes(needed), " in ", to_string(configuration), ", and ",
                                    format_bytes(left), " are left on this machine: ");
  if (certain_share * needed > left) throw UserError(concat(reason, what_fits(config, configuration, left)));
  return concat(reason, "it may be ended by the system; a smaller train.micro_batch needs less");
}

std::optional<std::string> why_ranks_take_turns(int64_t ranks, int64_t cores) {
  if (ranks <= cores) return std::nullopt;
  return concat(ranks, " ranks share ", counted(cores, "core"),
                " and take turns: steps take longer than on as many ranks as cores");
}

void check_machine(const RunPlan& plan) {
  const RunConfig& config = plan.config;
  if (config.execution.device != "cpu") return;  // GPUs report lack of memory themselves, and need no core
  warn(why_ranks_take_turns(num_training_ranks(config), usable_cores()));
  // A run that adapts chooses its layout later, within the memory of its cluster's description.
  if (config.adapt.policy != PolicyKind::none) return;
  warn(check_memory(config, plan.start, static_cast<double>(available_memory_bytes())));
}

void tell_forecast(RunPlan plan, bool checks_machine) {
  const RunConfig& config = plan.config;
  const int64_t sequence_length = config.train.sequence_length;
  const ExecutionConfig& execution = config.execution;
  const std::optional<std::string> no_device = resolve(plan.config.execution);
  const Dataset dataset = open_run_data(config);
  resolve_documents(plan.config, dataset);
  if (!plan.checkpoint) plan.start = starting_configuration(config);
  check_modelled_job(plan);
  check_units(config, executed_configuration(config, plan.start), optimizer_slots(config.optimizer.kind));
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  const int64_t ranks = plan.start.strategy.world_size();
  std::cout << "model      " << count(count_parameters(config.model)) << " parameters\n"
            << "data       " << count(dataset.train_tokens()) << " tokens to train on\n"
            << "training   " << to_string(execution.precision) << " on " << execution.device << ", "
            << plan.start.global_batch << " x " << sequence_length << " tokens a step\n"
            << "runs in    " << to_string(plan.start) << " on " << counted(ranks, "rank") << '\n';
  if (config.data.masks_across_documents()) {
    std::cout << "documents  " << describe_documents(config, plan.start, dataset.document_lengths()) << '\n';
  } else if (const auto note = note_on_documents(config, dataset)) {
    std::cout << "documents  " << *note << '\n';
  }
  const ParallelStrategy& strategy = plan.start.strategy;
  if (needs_whole_matrices(config.optimizer.kind) && strategy.ranks_per_stage() > 1) {
    std::cout << "muon       " << describe_matrices(config, strategy) << '\n';
  }
  const std::vector<MemoryParts> memory = memory_by_pipeline_rank(config, plan.start);
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    std::cout << "memory     " << format_bytes(memory[rank].total()) << " on each rank of pipeline rank " << rank
              << '\n';
  }
  std::cout << "           " << format_bytes(bytes_of_all(config, plan.start)) << " on all ranks";
  if (execution.device == "cpu") {
    std::cout << "; " << format_bytes(static_cast<double>(available_memory_bytes())) << " are left on this machine";
  }
  std::cout << '\n';
  tell_speed_and_time(plan);
  warn(warning_of_precision(config.cluster.description.device, to_string(predicted_job(plan.config).precision)));
  if (no_device) std::cout << "warning    the run cannot begin here: " << *no_device << '\n' << std::flush;
  if (checks_machine) check_machine(plan);
}

}  // namespace copus
