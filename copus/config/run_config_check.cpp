// Checks conditions that involve several values of a configuration.
#include <algorithm>
#include <numeric>

#include "copus/base/error.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/step_schedule.h"

namespace copus {

namespace {

void check_data(const DataConfig& data, const std::string& source) {
  if (data.train.empty()) {
    throw UserError(concat(source, ": data.train is missing: it names the text or token files to train on"));
  }
  for (const DataSource& train : data.train) {
    if (std::find(data.held_out.begin(), data.held_out.end(), train.path) != data.held_out.end()) {
      throw UserError(concat(source, ": ", train.path, " is in both data.train and data.held_out; a loss on text that ",
                             "was trained on says nothing: name other files, or leave data.held_out out to set the ",
                             "tail of every training file aside"));
    }
  }
  if (data.shuffle_shards && data.held_out.empty() && data.held_out_fraction > 0) {
    throw UserError(concat(source, ": data.shuffle_shards reads a shard only when its turn comes, so that no tail of ",
                           "the corpus can be held out; name a file in data.held_out, or set data.held_out_fraction ",
                           "= 0"));
  }
}

template <class Job>
void check_layout(const Job& config, const std::string& source) {
  const auto reason = infeasible_reason(config, configuration_of(config));
  if (reason) throw UserError(concat(source, ": ", *reason));
}

void check_length_of_run(const RunConfig& config, const std::string& source) {
  const TrainConfig& train = config.train;
  if (train.max_steps == 0 && train.max_tokens == 0 && train.max_seconds == 0) {
    throw UserError(concat(source, ": nothing says when the run ends: set train.max_steps, train.max_tokens or ",
                           "train.max_seconds (for example max_seconds = \"3m\")"));
  }
  // Values below 1 are fractions of the run.
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.schedule == LearningRateSchedule::wsd && optimizer.warmup_tokens < 1 && optimizer.decay_tokens < 1 &&
      optimizer.warmup_tokens + optimizer.decay_tokens > 1) {
    throw UserError(concat(source, ": optimizer.warmup_tokens (", optimizer.warmup_tokens,
                           ") and optimizer.decay_tokens (", optimizer.decay_tokens,
                           ") are shares of the run that together exceed all of it"));
  }
}

// Checks the job that the modelled clock predicts; on other clocks, refuses settings about such a job.
void check_modelled_clock(const RunConfig& config, const std::string& source) {
  const ClusterConfig& cluster = config.cluster;
  if (!cluster.is_modelled()) {
    const char* given = cluster.stands_for                                     ? "stands_for"
                        : cluster.stands_for_sequence_length > 0               ? "stands_for_sequence_length"
                        : cluster.stands_for_precision != Precision::automatic ? "stands_for_precision"
                        : cluster.truth                                        ? "truth"
                        : cluster.truth_layout_error > 0                       ? "truth_layout_error"
                                                                               : nullptr;
    if (given == nullptr) return;
    throw UserError(concat(source, ": cluster.", given, " says what the modelled clock is of, and cluster.clock is \"",
                           to_string(cluster.clock), "\"; set cluster.clock = \"modelled\", or leave it out"));
  }
  const auto check_speed = [&](const ClusterDescription& of, const char* key) {
    if (is_speed_known(of)) return;
    throw UserError(
        concat(source, ": cluster.clock \"modelled\" shows how long the steps of a job take, and cluster.", key,
               " does not say how fast the cluster's devices compute: describe them (matmul_teraflops in ",
               "device, or teraflops_per_rank), or name a cluster of configs/clusters/, such as \"h100-sxm\""));
  };
  check_speed(cluster.description, "config");
  if (cluster.truth) check_speed(*cluster.truth, "truth");
  const PredictedJob job = predicted_job(config);
  if (job.sequence_length > job.model.max_position_embeddings) {
    throw UserError(concat(source, ": cluster.stands_for_sequence_length (", job.sequence_length,
                           ") exceeds max_position_embeddings (", job.model.max_position_embeddings,
                           ") of the model that the run stands for; shorten it"));
  }
}

// Checks that a batch schedule can be followed: the layout allows each batch at the run's micro-batch, the run begins
// with the first batch, and each batch lasts long enough to announce the next one.
template <class Job>
void check_step_schedule(const Job& config, const std::string& source) {
  StepSchedule schedule;
  try {
    schedule = parse_step_schedule(config.adapt.schedule, config.train.sequence_length);
  } catch (const UserError& error) {
    throw UserError(concat(source, ": ", error.what()));
  }
  const auto reason_against = [&](int64_t batch, int64_t micro_batch) {
    return infeasible_reason(config, {config.parallel, batch, micro_batch});
  };
  for (const auto& [begin, batch] : schedule) {
    const auto reason = reason_against(batch, config.train.micro_batch);
    if (!reason) continue;
    const int64_t divisor = std::accumulate(schedule.begin(), schedule.end(), int64_t{0},
                                            [](int64_t all, const auto& piece) { return std::gcd(all, piece.second); });
    int64_t fitting = std::min(config.train.micro_batch, divisor);
    const auto fits_not = [&](const auto& piece) { return reason_against(piece.second, fitting).has_value(); };
    while (fitting > 0 && (divisor % fitting != 0 || std::any_of(schedule.begin(), schedule.end(), fits_not)))
      --fitting;
    throw UserError(
        concat(source, ": adapt.schedule has batch ", batch, ", and layout and micro-batch stay as they are: ", *reason,
               fitting > 0 ? concat("; train.micro_batch ", fitting, " fits all batches of the schedule") : ""));
  }
  if (config.adapt.advise) return;
  if (schedule.front().second != config.train.global_batch) {
    throw UserError(concat(source, ": adapt.schedule begins with batch ", schedule.front().second,
                           ", and train.global_batch is ", config.train.global_batch, "; set train.global_batch to ",
                           schedule.front().second));
  }
  if (const auto reason = why_too_short(schedule)) throw UserError(concat(source, ": ", *reason));
}

template <class Job>
void check_batch_schedule(const Job& config, const std::string& source) {
  const AdaptConfig& adapt = config.adapt;
  const OptimizerConfig& optimizer = config.optimizer;
  const std::string policy = concat("adapt.policy \"", to_string(adapt.policy), "\"");
  if (adapt.policy == PolicyKind::steps) check_step_schedule(config, source);
  if (adapt.policy == PolicyKind::seesaw) {
    const bool never_falls = optimizer.schedule == LearningRateSchedule::constant ||
                             (optimizer.schedule == LearningRateSchedule::wsd && optimizer.decay_tokens == 0);
    const std::string grows = concat(source, ": ", policy, " doubles the batch each time that the schedule has halved ",
                                     "the learning rate, and ");
    if (never_falls) {
      throw UserError(concat(grows, "optimizer.schedule \"", to_string(optimizer.schedule), "\"",
                             optimizer.schedule == LearningRateSchedule::wsd ? " with optimizer.decay_tokens 0" : "",
                             " never lowers it; set optimizer.schedule to \"cosine\", or to \"wsd\" with a decay"));
    }
    if (optimizer.min_lr_ratio > 0.5) {
      throw UserError(concat(grows, "optimizer.min_lr_ratio (", optimizer.min_lr_ratio,
                             ") keeps it above one half; set it to 0.5 or less"));
    }
  }
  if (adapt.policy == PolicyKind::late_switch && adapt.late_switch_batch <= config.train.global_batch) {
    throw UserError(
        concat(source, ": ", policy, " needs adapt.late_switch_batch, the batch that it switches to, larger ",
               "than train.global_batch (", config.train.global_batch, "); ",
               adapt.late_switch_batch == 0 ? "it is not given" : concat("it is ", adapt.late_switch_batch)));
  }
}

// Checks that the layout has several workers, whose gradients these policies compare. The gradients must be of the kind
// in the policy's name: whole (ddp) or sharded (fsdp).
void check_workers(const JobConfig& config, const std::string& source) {
  const PolicyKind kind = config.adapt.policy;
  if (kind != PolicyKind::ddp_norm && kind != PolicyKind::fsdp_norm) return;
  const std::string policy = concat("adapt.policy \"", to_string(kind), "\"");
  const ParallelStrategy& layout = config.parallel;
  if (layout.data_parallel == 1) {
    throw UserError(concat(source, ": ", policy, " compares the gradients of data-parallel ranks, and ",
                           "parallel.data_parallel is 1; set it to at least 2, or choose \"norm-test\", which ",
                           "compares parts of a rank's batch as well"));
  }
  if (kind == PolicyKind::ddp_norm && layout.cuts_gradients()) {
    throw UserError(concat(source, ": ", policy, " compares whole gradients of data-parallel ranks, and ",
                           "parallel.zero_stage ", layout.zero_stage, " cuts them; choose \"fsdp-norm\""));
  }
  if (kind == PolicyKind::fsdp_norm && !layout.cuts_gradients()) {
    throw UserError(concat(source, ": ", policy, " is for layouts that cut the gradients (parallel.zero_stage 2 or ",
                           "3), and here every data-parallel rank has whole ones; choose \"ddp-norm\""));
  }
}

template <class Job>
void check_adaptation(const Job& config, const std::string& source) {
  const AdaptConfig& adapt = config.adapt;
  const std::string policy = concat("adapt.policy \"", to_string(adapt.policy), "\"");
  if (adapt.advise && adapt.policy == PolicyKind::none) {
    throw UserError(concat(source, ": adapt.advise logs what a policy would do, and adapt.policy is \"none\"; set ",
                           "adapt.policy (\"copus\", for example), or leave adapt.advise out"));
  }
  if (adapt.max_tensor_parallel > 0 && config.parallel.tensor_parallel > adapt.max_tensor_parallel) {
    throw UserError(concat(source, ": adapt.max_tensor_parallel (", adapt.max_tensor_parallel,
                           ") excludes the layout that the run begins with, parallel.tensor_parallel ",
                           config.parallel.tensor_parallel));
  }
  if (traits_of(adapt.policy).reads_noise_scale && !config.noise_scale.enabled) {
    throw UserError(concat(source, ": ", policy, " decides by the noise scale, and noise_scale.enabled is false; ",
                           "switch the measurement on, or choose another policy"));
  }
  if (adapt.policy == PolicyKind::copus_paper && config.optimizer.batch_scaling != BatchScaling::square_root) {
    throw UserError(concat(source,
                           ": adapt.policy \"copus-paper\" is the paper's rule, whose learning rate follows the ",
                           "square root of the batch, and optimizer.batch_scaling is \"",
                           to_string(config.optimizer.batch_scaling), "\"; set it to \"sqrt\""));
  }
  check_batch_schedule(config, source);
  check_workers(config, source);
  if ((adapt.policy == PolicyKind::oracle || adapt.policy == PolicyKind::script) && adapt.file.empty()) {
    throw UserError(concat(source, ": ", policy, " needs adapt.file, ",
                           adapt.policy == PolicyKind::script ? "the decisions to carry out: another run's "
                                                                "decisions.jsonl, for example"
                                                              : "the true noise scale by consumed samples"));
  }
}

// Even policies that ignore step times log the best candidates by Goodput, which needs step times.
void check_speed_is_known(const RunConfig& config, const std::string& source) {
  const PolicyKind policy = config.adapt.policy;
  if (!traits_of(policy).compares_step_times || is_speed_known(config.cluster.as_timed())) return;
  throw UserError(concat(
      source, ": adapt.policy \"", to_string(policy), "\" compares how long steps take, and nothing says how fast ",
      config.cluster.description == ClusterDescription{} ? "this machine computes" : "the cluster's devices compute",
      ": measure this machine once with 'copus profile --machine machine.toml' and set cluster.config = ",
      "\"machine.toml\", or describe the cluster's device (matmul_teraflops; on the virtual clock ",
      "teraflops_per_rank will do)"));
}

}  // namespace

void check_run_config(const RunConfig& config, const std::string& source) {
  check_data(config.data, source);
  if (config.train.sequence_length > config.model.max_position_embeddings) {
    throw UserError(concat(source, ": train.sequence_length (", config.train.sequence_length,
                           ") exceeds the model's max_position_embeddings (", config.model.max_position_embeddings,
                           "); shorten the sequences or raise it in the model's description"));
  }
  check_modelled_clock(config, source);
  check_layout(config, source);
  check_length_of_run(config, source);
  check_speed_is_known(config, source);
  check_adaptation(config, source);
  if (config.execution.device.empty()) {
    throw UserError(concat(source, ": train.device is empty; expected a device such as \"cpu\" or \"cuda\""));
  }
  if (config.model.has_window(config.train.sequence_length) && config.execution.device != "cpu") {
    const int64_t window = config.model.attention_window;
    throw UserError(
        concat(source, ": the model attends within windows of ", window,
               " tokens (sliding_window), for which Copus has no GPU kernel; set train.device = \"cpu\", or "
               "train.sequence_length to at most ",
               window, ", where the window changes nothing"));
  }
  if (config.model.attention_softcap > 0 && config.execution.device != "cpu") {
    throw UserError(concat(source, ": the model has soft-caps of attention (attn_logit_softcapping), for which Copus ",
                           "has no GPU kernel; set train.device = \"cpu\""));
  }
}

void check_advised_config(const AdvisedConfig& config, const std::string& source) {
  if (!config.adapt.advise) {
    throw UserError(concat(source,
                           ": there is no [model], so that another program trains this job, and Copus can only advise ",
                           "it; set adapt.advise = true"));
  }
  for (const int64_t batch : config.adapt.global_batches) {
    Configuration other = configuration_of(config);
    other.global_batch = batch;
    const auto reason = infeasible_reason(config, other);
    if (reason) throw UserError(concat(source, ": adapt.global_batches holds ", batch, ", and ", *reason));
  }
  check_layout(config, source);
  check_adaptation(config, source);
}

}  // namespace copus
